"""How the policy changes: whole or not at all, and what is told of it."""

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest

from agent.agent_view import ApiError, JsonObject
from agent.main_thread import MainThread
from agent.policies import JOURNALLED, Hands, Policies
from bpf.histogram import EMPTY
from bpf.layout import EndReason, EventKind
from bpf.layout import Event as StreamEvent
from controller.journal import Event as JournalEvent
from controller.journal import EventRow
from controller.policy import load_policy, parse_policy
from controller.policy_model import Mode, Policy

from .made import MS, stream

BASE = 'mode = "shadow"\n[engines.chat]\nport = 8000\nslo.gap_ms = 120\n'
NEW = BASE.replace("120", "80")


class Desk:
    """Policies with a main thread of their own; keeps what was enforced and journalled."""

    def __init__(self, directory: Path) -> None:
        self.file = directory / "policy.toml"
        self.file.write_text(BASE)
        self.enforced: list[tuple[Policy, Mode | None, Collection[str]]] = []
        self.events: list[tuple[str, str, dict[str, Any]]] = []
        self._asked, self._stopped = Event(), False
        self.main = MainThread(self._asked.set)
        self.mode: Mode = "shadow"
        self.hands = Hands(
            enforce=self._enforce,
            note=self._note,
            mode=lambda: self.mode,
            load=lambda engine: {"chat": 5.0, "code": 1.0, "idle": 0.0}[engine],
            gaps=lambda _: EMPTY,
        )
        self.policies = Policies(load_policy(self.file), self.file, self.main, self.hands)
        self._thread = Thread(target=self._run)
        self._thread.start()

    def apply(self, text: str, temporary: bool = False) -> JsonObject:
        return self.policies.apply(text, "new.toml", temporary)

    def refused(self, text: str, status: int) -> str:
        """The refusal of a policy, which changed nothing at all."""
        before = (self.policies.policy, self.policies.source, self.policies.in_file)
        with pytest.raises(ApiError) as caught:
            self.apply(text)
        assert caught.value.status == status
        now = (self.policies.policy, self.policies.source, self.policies.in_file)
        assert (now, self.enforced, self.events) == (before, [], [])
        assert self.file.read_text() == BASE
        assert not self.file.with_name("policy.toml.previous").exists()
        return str(caught.value)

    def close(self) -> None:
        self._stopped = True
        self._asked.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopped:
            self._asked.wait()
            self._asked.clear()
            self.main.run()

    def _enforce(self, policy: Policy, mode: Mode | None, afresh: Collection[str]) -> None:
        self.enforced.append((policy, mode, afresh))

    def _note(self, kind: str, subject: str, detail: Mapping[str, Any]) -> None:
        self.events.append((kind, subject, dict(detail)))


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    made = Desk(tmp_path)
    yield made
    made.close()


def test_a_policy_that_is_applied_is_enforced_written_and_journalled(desk: Desk) -> None:
    answer = desk.apply(NEW)
    previous = desk.file.with_name("policy.toml.previous")
    assert answer == {
        "source": "new.toml",
        "changes": [{"key": "engines.chat.slo.gap_ms", "from": 120.0, "to": 80.0, "live": True}],
        "file": str(desk.file),
        "in_file": True,
        "previous": str(previous),
    }
    ((policy, mode, afresh),) = desk.enforced
    assert policy == desk.policies.policy == load_policy(desk.file)
    assert (mode, list(afresh)) == (None, [])
    assert previous.read_text() == BASE
    assert desk.events == [
        (
            "policy",
            str(desk.file),
            {"by": "apply", "changed": ["engines.chat.slo.gap_ms 120 → 80"]},
        )
    ]


def test_what_is_temporary_is_not_written(desk: Desk) -> None:
    answer = desk.apply(NEW, temporary=True)
    assert (answer["in_file"], answer["previous"]) == (False, None)
    assert desk.file.read_text() == BASE
    assert desk.policies.source == "new.toml"
    assert desk.policies.reload()["in_file"] is True
    assert desk.policies.policy == load_policy(desk.file)


def test_a_mode_is_set_where_the_policies_differ_in_it(desk: Desk) -> None:
    desk.apply(BASE.replace("shadow", "control"))
    desk.apply(NEW.replace("shadow", "control"))
    assert [mode for _, mode, _ in desk.enforced] == ["control", None]


def test_a_policy_that_does_not_hold_changes_nothing_and_names_each_line(desk: Desk) -> None:
    said = desk.refused('mode = "x"\n[engines.chat]\nport = 0\n', 422)
    first, second = said.split("\n")
    assert first.startswith("new.toml:1: mode: must be")
    assert second.startswith("new.toml:3: engines.chat.port: must be")


def test_a_policy_that_needs_a_restart_changes_nothing_and_names_each_key(desk: Desk) -> None:
    said = desk.refused(NEW + "[agent]\nmax_targets = 7\n[otel]\nmax_queue = 7\n", 409)
    assert said.split("\n") == [
        "new.toml:6: agent.max_targets 64 → 7: needs a restart",
        "new.toml:8: otel.max_queue 2048 → 7: needs a restart",
        "nothing was changed",
    ]


def test_a_key_that_is_gone_has_no_line(desk: Desk) -> None:
    desk.policies.policy = parse_policy(BASE + "[otel]\nmax_queue = 7\n", "before")
    assert desk.refused(BASE, 409).split("\n")[0] == (
        "new.toml: otel.max_queue 7 → 2048: needs a restart"
    )


def test_a_file_that_can_t_be_written_changes_nothing(desk: Desk) -> None:
    (desk.file.parent / ".policy.toml.previous.new").mkdir()
    said = desk.refused(NEW, 409)
    assert said.startswith(f"could not write '{desk.file}': is a directory; nothing was changed")


def test_the_same_policy_again_is_not_enforced(desk: Desk) -> None:
    assert desk.apply(BASE + "# the same\n")["changes"] == []
    assert desk.enforced == []
    assert desk.file.read_text() == BASE + "# the same\n"


def test_a_reload_takes_what_the_file_says_now(desk: Desk) -> None:
    desk.file.write_text(NEW)
    answer = desk.policies.reload()
    assert [change["key"] for change in answer["changes"]] == ["engines.chat.slo.gap_ms"]
    assert desk.policies.policy == load_policy(desk.file)
    assert desk.events[0][2]["by"] == "reload"


def test_a_reload_of_what_does_not_hold_changes_nothing_and_says_so(desk: Desk) -> None:
    before = desk.policies.policy
    for text, why in (("mode = 1", ":1: mode: must be"), ("[agent]\nmax_targets = 7", "restart")):
        desk.file.write_text(text)
        with pytest.raises(ApiError, match=why):
            desk.policies.reload()
    desk.file.unlink()
    with pytest.raises(ApiError, match="no such file"):
        desk.policies.reload()
    assert (desk.policies.policy, desk.enforced) == (before, [])


def test_a_signal_reloads_or_tells_why_not(desk: Desk) -> None:
    desk.file.write_text(NEW)
    desk.policies.reload_here()
    assert desk.policies.problem == ""
    desk.file.write_text("mode = 1")
    desk.policies.reload_here()
    why = desk.policies.problem
    assert why.startswith(f"the policy file was not read again: {desk.file}:1: mode: must be")
    kind, subject, detail = desk.events[-1]
    assert (kind, subject) == ("policy", str(desk.file))
    assert detail["refused"].startswith(f"{desk.file}:1: mode")


def test_a_diff_changes_nothing(desk: Desk) -> None:
    text = NEW + "[agent]\nmax_targets = 7\n"
    changes = desk.policies.diff(text, "new.toml")["changes"]
    assert {change["key"]: change["live"] for change in changes} == {
        "agent.max_targets": False,
        "engines.chat.slo.gap_ms": True,
    }
    assert (desk.enforced, desk.events, desk.file.read_text()) == ([], [], BASE)


def test_an_event_names_a_bounded_number_of_keys(desk: Desk) -> None:
    many = "".join(f"[engines.e{n}]\nport = {n + 1}\n" for n in range(30))
    desk.apply(BASE + many)
    detail = desk.events[0][2]
    assert len(detail["changed"]) == JOURNALLED
    assert detail["more"] > 100


TRIED = NEW.replace("shadow", "control")
IN_CONTROL = BASE.replace("shadow", "control")


@pytest.fixture
def trying(desk: Desk) -> Desk:
    """A desk in control, where a trial of `TRIED` began; nothing of that is noted."""
    desk.file.write_text(IN_CONTROL)
    desk.policies.reload()
    desk.mode = "control"
    desk.policies.try_out(TRIED, "new.toml", 180, None)
    desk.events.clear()
    desk.enforced.clear()
    return desk


def in_turn(desk: Desk, new: bool) -> None:
    """Go on until it is that policy's turn."""
    now_ns = time.monotonic_ns()
    for _ in range(5):
        trial = desk.policies.running
        assert trial is not None
        if trial.canary.is_new is new:
            break
        now_ns += 11_000_000_000
        desk.policies.tick(now_ns)
    desk.enforced.clear()


def old_of(desk: Desk) -> Policy:
    return parse_policy(IN_CONTROL, "old")


def test_a_trial_changes_neither_the_file_nor_what_is_called_in_force(desk: Desk) -> None:
    desk.file.write_text(IN_CONTROL)
    desk.policies.reload()
    desk.mode = "control"
    answer = desk.policies.try_out(TRIED, "new.toml", 180, None)
    assert (answer["in_file"], answer["previous"]) == (True, None)
    assert answer["canary"]["state"] == "running"
    assert desk.policies.policy == old_of(desk)
    assert desk.file.read_text() == IN_CONTROL
    kind, subject, detail = desk.events[-1]
    assert (kind, subject) == ("policy_canary", "new.toml")
    assert detail == {
        "state": "running",
        "engines": ["chat"],
        "changed": ["engines.chat.slo.gap_ms 120 → 80"],
    }
    assert desk.policies.figures().active


def test_both_policies_are_enforced_in_turns_and_engines_start_afresh(trying: Desk) -> None:
    in_turn(trying, new=True)
    now_ns = time.monotonic_ns() + 100_000_000_000
    for _ in range(4):
        now_ns += 11_000_000_000
        trying.policies.tick(now_ns)
    new = parse_policy(TRIED, "new")
    assert {policy.engines[0].slo.gap_ms for policy, _, _ in trying.enforced} == {80, 120}
    assert all(policy in (old_of(trying), new) for policy, _, _ in trying.enforced)
    assert all((mode, list(afresh)) == (None, ["chat"]) for _, mode, afresh in trying.enforced)


@pytest.mark.parametrize("new", [False, True])
def test_a_trial_that_is_aborted_ends_in_the_old_policy(trying: Desk, new: bool) -> None:
    in_turn(trying, new)
    answer = trying.policies.abort("a test")
    assert (answer["canary"]["state"], answer["canary"]["reason"]) == ("aborted", "a test")
    assert trying.enforced == ([(old_of(trying), None, ("chat",))] if new else [])
    assert trying.events[-1][2]["state"] == "aborted"
    assert trying.file.read_text() == IN_CONTROL
    assert trying.policies.running is None
    assert trying.policies.outcomes == {"aborted": 1}
    with pytest.raises(ApiError, match="no policy is on trial"):
        trying.policies.abort("again")


def run_out(desk: Desk, new_ttft_ms: int) -> None:
    """The trial to its end: two streams a second, whose TTFT is 10 ms under the old policy."""
    now_ns, number = time.monotonic_ns(), 0
    while (trial := desk.policies.running) is not None:
        now_ns, number = now_ns + 500 * MS, number + 1
        ttft_ms = new_ttft_ms if trial.canary.is_new else 10
        came = stream(number=number, request_ns=now_ns, first_ns=now_ns + ttft_ms * MS)
        for kind in EventKind:
            reason = EndReason.COMPLETE if kind is EventKind.END else None
            desk.policies.stream("chat", StreamEvent(now_ns, kind, reason, came))
        desk.policies.tick(now_ns)


def test_a_policy_that_does_no_harm_is_adopted(trying: Desk) -> None:
    run_out(trying, 10)
    status = trying.policies.status()
    assert status["canary"]["state"] == "adopted"
    assert status["canary"]["reason"].startswith("no worse: bad streams 0.0% → 0.0%")
    assert status["canary"]["figures"]["chat"]["new"]["streams"] > 30
    assert trying.policies.policy == parse_policy(TRIED, "new")
    assert trying.enforced[-1] == (parse_policy(TRIED, "new"), None, ())
    assert trying.file.read_text() == TRIED
    assert trying.file.with_name("policy.toml.previous").read_text() == IN_CONTROL
    tried, adopted = trying.events[-2:]
    assert (tried[0], tried[2]["state"]) == ("policy_canary", "adopted")
    assert (adopted[0], adopted[2]["by"]) == ("policy", "canary")
    assert trying.policies.outcomes == {"adopted": 1}
    assert not trying.policies.figures().active


def test_a_policy_that_does_harm_is_rolled_back(trying: Desk) -> None:
    run_out(trying, 5_000)
    status = trying.policies.status()
    assert status["canary"]["state"] == "rolled_back"
    assert status["canary"]["reason"].startswith("worse: bad streams 0.0% → 100.0%")
    assert trying.policies.policy == old_of(trying)
    assert trying.enforced[-1] == (old_of(trying), None, ("chat",))
    assert trying.file.read_text() == IN_CONTROL
    assert not trying.file.with_name("policy.toml.previous").exists()
    kind, _, detail = trying.events[-1]
    assert (kind, detail["state"]) == ("policy_canary", "rolled_back")
    assert detail["figures"]["chat"]["new"]["bad_share"] == 1
    assert trying.policies.outcomes == {"rolled_back": 1}


def test_an_adopted_policy_that_can_t_be_written_is_in_force_and_a_problem(trying: Desk) -> None:
    (trying.file.parent / ".policy.toml.previous.new").mkdir()
    run_out(trying, 10)
    assert trying.policies.policy == parse_policy(TRIED, "new")
    status = trying.policies.status()
    assert (status["in_file"], status["source"]) == (False, "new.toml")
    assert trying.policies.problem == (
        "the policy that was adopted lasts until the agent ends: could not write"
        f" '{trying.file}': is a directory"
    )


def test_while_a_policy_is_on_trial_no_other_comes_into_force(trying: Desk) -> None:
    text = IN_CONTROL.replace("120", "99")
    changes: list[Callable[[], JsonObject]] = [
        lambda: trying.policies.apply(text, "other.toml", False),
        lambda: trying.policies.try_out(text, "other.toml", 180, None),
        trying.policies.reload,
    ]
    for change in changes:
        with pytest.raises(ApiError, match=r"the policy of new\.toml is on trial") as caught:
            change()
        assert caught.value.status == 409
    assert (trying.enforced, trying.file.read_text()) == ([], IN_CONTROL)
    assert trying.policies.running is not None


def test_what_the_file_says_already_is_not_tried(desk: Desk) -> None:
    desk.mode = "control"
    desk.file.write_text(TRIED)
    with pytest.raises(ApiError, match="says this already, so a restart would put it in force"):
        desk.policies.try_out(TRIED, "policy.toml", 180, None)
    assert desk.policies.running is None


@pytest.mark.parametrize("new", [False, True])
def test_a_controller_that_dies_under_the_new_policy_ends_the_trial(
    trying: Desk, new: bool
) -> None:
    in_turn(trying, new)
    trying.policies.controller_died()
    assert (trying.policies.running is None) is new
    if new:
        assert trying.policies.status()["canary"]["reason"] == "the controller died under it"
        assert trying.enforced == [(old_of(trying), None, ("chat",))]


def test_a_mode_on_trial_takes_turns_with_the_one_before(desk: Desk) -> None:
    desk.policies.try_out(IN_CONTROL, "new.toml", 180, None)
    in_turn(desk, new=False)
    in_turn(desk, new=True)
    desk.policies.give_up("test")
    ((policy, mode, _),) = desk.enforced
    assert (policy.mode, mode) == ("shadow", "shadow")


def journalled(state: str) -> EventRow:
    return EventRow(1, 1, "boot", JournalEvent(1, "policy_canary", "new.toml", {"state": state}))


@pytest.mark.parametrize(
    ("past", "lost"),
    [
        ([], False),
        (["running"], True),
        (["rolled_back", "running"], False),
        (["running", "adopted", "running"], True),
        (["lost", "running"], False),
    ],
)
def test_a_trial_that_a_killed_agent_left_is_noted_as_lost(
    desk: Desk, past: list[str], lost: bool
) -> None:
    rows = [journalled(state) for state in past]
    Policies(load_policy(desk.file), desk.file, desk.main, desk.hands, rows)
    assert [detail["state"] for _, _, detail in desk.events] == (["lost"] if lost else [])
