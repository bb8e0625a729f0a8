"""What the API answers, over a node of this machine, whatever that may measure."""

import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from agent.agent_view import ApiError
from agent.changes import Changes
from agent.discovery import Found, Surroundings
from agent.history import Moment
from agent.main_thread import MainThread
from agent.node import Node
from agent.policies import Hands, Policies
from agent.recorder import Recorder
from agent.sampler import Sampler
from agent.state import State
from agent.view import View
from bpf.histogram import EMPTY
from bpf.layout import Counters, Health
from controller.journal import Decision, Event, Journal
from controller.limits.cgroup import read_hierarchies
from controller.policy import parse_policy
from controller.policy_model import Mode, Policy

from .made import MS, end, histogram

SECOND_NS = 1_000 * MS


class Shown:
    """A view and all it shows."""

    def __init__(self, policy: Policy, tmp_path: Path, node: Node) -> None:
        self.state = State(policy)
        self.sampler = Sampler(node.counters)
        self.journal = Journal(tmp_path / "journal.db")
        self.asked: list[tuple[Mode, str]] = []
        self.injected: list[tuple[float, float, str]] = []
        self.runs = True
        main = MainThread(lambda: None)
        self.recorder = Recorder(self.journal)
        changes = Changes(self.recorder, main, lambda _: False, lambda: None)
        self.view = View(
            self.state,
            node,
            self.sampler,
            self.journal,
            read_hierarchies(),
            Policies(
                policy,
                Path("/etc/sits/policy.toml"),
                MainThread(lambda: None),
                Hands(
                    enforce=lambda *_: None,
                    note=lambda *_: None,
                    mode=lambda: "shadow",
                    load=lambda _: 0.0,
                    gaps=lambda _: EMPTY,
                ),
            ),
            changes,
            lambda: {"mode": "shadow", "alive": True, "pid": 7, "restarts": 1},
            lambda mode, reason: self.asked.append((mode, reason)),
            self._inject,
        )

    def _inject(self, value: float, seconds: float, reason: str) -> bool:
        self.injected.append((value, seconds, reason))
        return self.runs

    def remember(self, *causes: Mapping[str, int]) -> None:
        """One moment for each, a second apart, with one more request and chunk each time."""
        now_ns = time.monotonic_ns()
        for number, cause_ns in enumerate(causes):
            self.state.history("chat").add(
                Moment(
                    now_ns + (number - len(causes)) * SECOND_NS,
                    Counters(
                        requests=number,
                        chunks=4 * number,
                        run_ns=number * MS,
                        writes=8 * number,
                        writes_stalled=number,
                    ),
                    cause_ns,
                    ttft=histogram(),
                    gap=histogram(*[20 * MS] * number),
                )
            )

    def end(self, **fields: Any) -> None:
        (engine,) = self.state.policy.engines
        cause = fields.pop("cause", "batch")
        self.state.streams.ended("chat", end(**fields), engine.slo, cause)


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Policy:
    pins = tmp_path_factory.mktemp("no-bpffs")
    return parse_policy(f'[agent]\npin_dir = "{pins}"\n[engines.chat]\nport = 8000\n', "test")


@pytest.fixture(scope="module")
def node(policy: Policy) -> Iterator[Node]:
    made = Node(policy)
    made.load(lambda _: None)
    yield made
    made.close()


@pytest.fixture
def shown(policy: Policy, tmp_path: Path, node: Node) -> Iterator[Shown]:
    made = Shown(policy, tmp_path, node)
    yield made
    made.recorder.close()


def decision(mono_ns: int, reason: str) -> Decision:
    return Decision(mono_ns, "chat", "control", "batch", (), {}, reason, "applied")


def test_everything_is_json_before_anything_is_known(shown: Shown) -> None:
    view = shown.view
    for answer in (
        view.status(),
        view.engines(),
        view.streams(None, None, 10),
        view.explain("chat", 30),
        view.stages("chat", 30, 1.5, None),
        view.journal(10, None, None, "newest"),
        view.policy(),
        view.doctor(),
    ):
        json.dumps(answer, allow_nan=False)


def test_an_engine_not_looked_for_yet_is_shown_as_that(shown: Shown) -> None:
    (engine,) = shown.view.engines()["engines"]
    assert (engine["found"], engine["detail"]) == (False, "not looked for yet")
    assert engine["admin"]["state"] == "none"
    assert engine["attainment"] is None
    assert (engine["stall_rate"], engine["no_first_token"]) == (None, {})
    assert engine["gap_ms"] == {"p50": None, "p99": None}
    assert set(engine["totals"].values()) == {0}


def test_the_status_has_the_controller_and_all_problems(shown: Shown) -> None:
    shown.state.set_problems("targets", ["chat: listens on no TCP port yet"])
    status = shown.view.status()
    assert status["controller"] == {"alive": True, "pid": 7, "restarts": 1}
    assert status["mode"] == "shadow"
    assert status["problems"] == ["chat: listens on no TCP port yet"]
    assert status["loop"] is None


def test_rates_and_quantiles_are_of_the_window(shown: Shown) -> None:
    shown.remember({}, {}, {})
    (engine,) = shown.view.engines()["engines"]
    assert engine["window_s"] == pytest.approx(2)
    assert engine["requests_per_s"] == pytest.approx(1)
    assert engine["chunks_per_s"] == pytest.approx(4)
    assert engine["stall_rate"] == pytest.approx(1 / 8)
    assert engine["gap_ms"]["p50"] == pytest.approx(20, rel=0.0625)
    assert engine["ttft_ms"]["p50"] is None


def test_where_an_engine_is_comes_from_discovery(shown: Shown) -> None:
    found = Found("chat", frozenset([3, 1]), "/chat", ports=frozenset([8000]), detail="odd")
    shown.state.set_surroundings(Surroundings((found,), (Found("n/a", frozenset([9])),)))
    (engine,) = shown.view.engines()["engines"]
    assert (engine["pids"], engine["cgroup"], engine["ports"]) == ([1, 3], "/chat", [8000])
    assert engine["detail"] == "odd"
    (neighbour,) = shown.view.status()["neighbours"]
    assert (neighbour["name"], neighbour["found"]) == ("n/a", True)


def test_streams_without_after_are_the_newest(shown: Shown) -> None:
    for number in range(5):
        shown.end(number=number)
    newest = shown.view.streams("chat", None, 2)
    assert [each["seq"] for each in newest["streams"]] == [4, 5]
    assert newest["next"] == 5
    oldest = shown.view.streams("chat", 0, 2)
    assert [each["seq"] for each in oldest["streams"]] == [1, 2]
    assert oldest["next"] == 2


def test_an_engine_that_is_not_in_the_policy_can_not_be_explained(shown: Shown) -> None:
    with pytest.raises(ApiError, match="no engine code in the policy"):
        shown.view.explain("code", 30)


def test_nothing_known_no_traffic_and_nothing_slow_are_told_apart(shown: Shown) -> None:
    assert shown.view.explain("chat", 30)["verdict"] == "nothing is known of chat yet"
    shown.state.history("chat").add(Moment(0, Counters()))
    shown.state.history("chat").add(Moment(SECOND_NS, Counters()))
    assert shown.view.explain("chat", 30)["verdict"] == "chat had no traffic"
    shown.remember({}, {})
    shown.end()
    verdict = shown.view.explain("chat", 30)["verdict"]
    assert verdict == "chat was not slow: 0 of 1 streams that ended missed their SLO"


def test_causes_are_shares_of_the_time_at_risk_worst_first(shown: Shown) -> None:
    before = {"batch": 5 * SECOND_NS, "network": 0}
    after = {"batch": 6 * SECOND_NS, "network": 3 * SECOND_NS, "queue": 0}
    shown.remember(before, after)
    explained = shown.view.explain("chat", 30)
    assert [(each["cause"], each["share"]) for each in explained["causes"]] == [
        ("network", 0.75),
        ("batch", 0.25),
    ]
    assert "for 3.0 s its SLO was at risk because segments were lost" in explained["verdict"]


def test_an_engine_whose_streams_are_not_seen_is_told_its_cause_all_the_same(shown: Shown) -> None:
    shown.state.history("chat").add(Moment(0, Counters()))
    ailed = {"neighbour_cpu": 2 * SECOND_NS}
    shown.state.history("chat").add(Moment(SECOND_NS, Counters(waits_over=9), ailed))
    verdict = shown.view.explain("chat", 30)["verdict"]
    assert verdict.startswith("chat: for 2.0 s its SLO was at risk because other processes take")


def test_who_held_the_cpu_and_which_threads_waited_is_of_the_time_asked(shown: Shown) -> None:
    now_ns = time.monotonic_ns()
    culprits, threads = shown.state.culprits["chat"], shown.state.threads["chat"]
    for seconds_ago, wait_ns in ((100, 900 * MS), (50, 1_000 * MS), (1, 1_007 * MS)):
        at_ns = now_ns - seconds_ago * SECOND_NS
        culprits.take(at_ns, {(1, "hog"): (wait_ns, wait_ns // MS)})
        threads.take(at_ns, {"EngineCore": (wait_ns, 1, wait_ns // 2, 5 * wait_ns, 3)})
    explained = shown.view.explain("chat", 30)
    (culprit,) = explained["culprits"]
    assert (culprit["command"], culprit["wait_ms"], culprit["waits"]) == ("hog", 7, 7)
    (thread,) = explained["threads"]
    assert (thread["name"], thread["wait_ms"], thread["wait_other_ms"]) == ("EngineCore", 7, 3.5)
    assert shown.view.explain("chat", 60)["culprits"][0]["wait_ms"] == 107


def test_evidence_has_what_was_lost_in_the_window_its_rates_and_the_worst_of_it(
    shown: Shown,
) -> None:
    now_ns = time.monotonic_ns()
    for number in range(3):
        shown.state.history("chat").add(
            Moment(
                now_ns + (number - 3) * SECOND_NS,
                Counters(retransmits=8 * number),
                lost={"memory_ns": number * 5 * MS, "limit_hits": 100 + number},
                peaks={"longest_step_ms": 90.0 - 10 * number},
            )
        )
    evidence = shown.view.explain("chat", 30)["evidence"]
    assert (evidence["memory_ms"], evidence["memory_limit_hits"]) == (10, 2)
    assert evidence["longest_step_ms"] == 80
    assert evidence["retransmits_per_s"] == pytest.approx(8)


def test_slow_streams_are_counted_by_their_cause(shown: Shown) -> None:
    for cause in ("batch", "batch", "network"):
        shown.end(gaps_over=1, cause=cause)
    assert shown.view.explain("chat", 30)["stream_causes"] == {"batch": 2, "network": 1}


def test_the_slowest_streams_come_first_and_good_ones_not_at_all(shown: Shown) -> None:
    shown.end()
    for number, gap_ms in enumerate((300, 900, 600), 1):
        shown.end(number=number, gap_max_ns=gap_ms * MS, gaps_over=1)
    slow = shown.view.explain("chat", 30)["slow_streams"]
    assert [each["gap_max_ms"] for each in slow] == [900, 600, 300]


def test_decisions_of_the_time_explained_are_shown_and_older_ones_not(shown: Shown) -> None:
    now_ns = time.monotonic_ns()
    shown.journal.add_decision(decision(now_ns - 100 * SECOND_NS, "old"))
    shown.journal.add_decision(decision(now_ns - SECOND_NS, "new"))
    explained = shown.view.explain("chat", 30)
    assert [each["reason"] for each in explained["decisions"]] == ["new"]


def test_the_journal_is_shown_newest_first(shown: Shown) -> None:
    for number in range(3):
        shown.journal.add_decision(decision(number, f"reason {number}"))
        shown.journal.add_event(Event(number, "mode", "control", {"n": number}))
    answer = shown.view.journal(2, "chat", None, "newest")
    assert [each["reason"] for each in answer["decisions"]] == ["reason 2", "reason 1"]
    assert [each["detail"]["n"] for each in answer["events"]] == [2, 1]


def test_the_policy_says_where_it_is_from(shown: Shown) -> None:
    answer = shown.view.policy()
    assert answer["source"] == "/etc/sits/policy.toml"
    assert answer["engines"]["chat"]["port"] == 8000


def test_the_doctor_says_what_a_missing_thing_costs_and_of_others_nothing(shown: Shown) -> None:
    findings = {each["name"]: each for each in shown.view.doctor()["findings"]}
    assert not findings["bpffs"]["ok"]
    assert "counters start from zero" in findings["bpffs"]["cost"]
    assert all(each["cost"] == "" for each in findings.values() if each["ok"])


def test_the_doctor_counts_every_limit_and_every_program_that_is_loaded(
    shown: Shown, node: Node
) -> None:
    answer = shown.view.doctor()
    assert answer["limits"].keys() == {*Health.__slots__, "journal_rows"}
    loaded = node.programs.programs if node.programs is not None else {}
    assert [each["name"] for each in answer["programs"]] == list(loaded)


def test_a_mode_is_asked_for_with_its_reason(shown: Shown) -> None:
    assert shown.view.set_mode("control", "because") == {"mode": "control"}
    assert shown.asked == [("control", "because")]


def test_an_upstreams_backpressure_is_told_to_the_controller(shown: Shown) -> None:
    answer = shown.view.inject(0.8, 5, "a drill")
    assert answer == {"what": "backpressure", "value": 0.8, "seconds": 5}
    assert shown.injected == [(0.8, 5, "a drill")]
    told = shown.view.status()["injected"]
    assert told["left_s"] <= 5
    assert told | {"left_s": 0} == {
        "what": "backpressure",
        "value": 0.8,
        "left_s": 0,
        "reason": "a drill",
    }


def test_without_a_controller_nobody_pretends_to_take_note(shown: Shown) -> None:
    shown.runs = False
    with pytest.raises(ApiError) as caught:
        shown.view.inject(0.8, 5, "")
    assert caught.value.status == 503
