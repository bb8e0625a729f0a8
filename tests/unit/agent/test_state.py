import time
from pathlib import Path
from typing import Any

from agent.discovery import Found, Surroundings
from agent.history import Moment
from agent.state import STATUS_STALE_S, State
from bpf.layout import Counters
from controller.policy import parse_policy

POLICY = parse_policy("[engines.chat]\nport = 8000\n[engines.code]\nport = 8001\n", "test")


def status(**cause_ns: int) -> dict[str, Any]:
    engine = {"cause_ns": cause_ns, "lost": {}, "evidence": {}}
    return {"type": "status", "engines": {"chat": engine}}


def test_an_engine_nobody_looked_for_yet_is_not_found_and_says_so() -> None:
    found = State(POLICY).found("chat")
    assert not found.present
    assert found.detail == "not looked for yet"


def test_what_was_found_is_shown_until_the_next_look() -> None:
    state = State(POLICY)
    chat = Found("chat", pids=frozenset([1]), attach=Path("/"))
    state.set_surroundings(Surroundings((chat,), (Found("n"),)))
    assert state.found("chat") == chat
    assert state.neighbours() == (Found("n"),)
    state.set_surroundings(Surroundings())
    assert not state.found("chat").present
    assert state.neighbours() == ()


def test_a_controller_that_said_nothing_yet_has_no_status() -> None:
    assert State(POLICY).status() is None
    assert State(POLICY).engine_status("chat") is None


def test_a_status_is_shown_for_the_engines_it_has() -> None:
    state = State(POLICY)
    state.set_status(status())
    assert state.engine_status("chat") == status()["engines"]["chat"]
    assert state.engine_status("code") is None


def test_a_status_too_old_to_be_true_is_not_shown() -> None:
    state = State(POLICY)
    state.set_status(status())
    state._status_s -= STATUS_STALE_S
    assert state.status() is None
    assert state.engine_status("chat") is None


def test_problems_of_one_source_replace_only_its_own() -> None:
    state = State(POLICY)
    state.set_problems("kernel", ["no BTF"])
    state.set_problems("targets", ["a", "b"])
    state.set_problems("targets", ["c"])
    assert state.problems() == ["no BTF", "c"]


def test_causes_go_on_from_where_a_dead_controller_left_them() -> None:
    state = State(POLICY)
    assert state.cause_ns("chat") == {}
    for message in (status(batch=5), status(batch=7, network=1), status(batch=2), status(batch=3)):
        state.set_status(message)
    assert state.cause_ns("chat") == {"batch": 10, "network": 1}


def test_causes_since_a_moment_are_what_came_after_the_status_before_it() -> None:
    state = State(POLICY)
    assert state.causes_since("chat", 0) == {}
    state.set_status(status(batch=5))
    between_ns = time.monotonic_ns()
    state.set_status(status(batch=7, network=1))
    assert state.causes_since("chat", between_ns) == {"batch": 2, "network": 1}
    assert state.causes_since("chat", time.monotonic_ns()) == {"batch": 0, "network": 0}


def test_what_was_lost_adds_up_and_peaks_are_of_the_time_since_they_were_taken() -> None:
    state = State(POLICY)
    for lost, step in ((5, 30.0), (9, 80.0), (2, 40.0)):
        engine = {
            "cause_ns": {},
            "lost": {"memory_ns": lost},
            "evidence": {"longest_step_ms": step},
        }
        state.set_status({"type": "status", "engines": {"chat": engine}})
    assert state.lost("chat") == {"memory_ns": 11}
    assert state.take_peaks("chat")["longest_step_ms"] == 80.0
    assert state.take_peaks("chat") == {}


def test_what_was_heard_since_a_moment_came_after_it() -> None:
    state = State(POLICY)
    before_ns = time.monotonic_ns()
    assert not state.heard_since(before_ns)
    state.set_status(status())
    assert state.heard_since(before_ns)
    assert not state.heard_since(time.monotonic_ns() + 1_000_000)


def test_slow_streams_are_counted_by_cause() -> None:
    state = State(POLICY)
    for cause in ("batch", "network", "batch"):
        state.count_slow("chat", cause)
    assert state.slow("chat") == {"batch": 2, "network": 1}
    assert state.slow("code") == {}


def test_causes_outlive_a_status_without_the_engine() -> None:
    state = State(POLICY)
    state.set_status(status(batch=5))
    state.set_status({"type": "status", "engines": {}})
    assert state.cause_ns("chat") == {"batch": 5}


def test_ends_and_decisions_are_counted_by_their_kind() -> None:
    state = State(POLICY)
    for reason, good in (("complete", True), ("complete", False), ("closed", False)):
        state.count_end("chat", reason, good)
    state.count_end("code", "lost", False, "lost")
    state.count_decision("chat", "batch")
    assert (state.untold("chat"), state.untold("code")) == ({}, {"lost": 1})
    assert state.ends("chat") == {"complete": 2, "closed": 1}
    assert (state.good("chat"), state.good("code")) == (1, 0)
    assert state.decisions() == {("chat", "batch"): 1}
    for knobs in (["max_running"], ["max_running", "max_queued"]):
        state.count_knobs("chat", knobs)
    assert state.knob_changes() == {("chat", "max_running"): 2, ("chat", "max_queued"): 1}


def test_attainment_is_the_share_of_good_streams_and_unknown_without_any() -> None:
    state = State(POLICY)
    assert state.attainment("chat", 60) is None
    for good in (True, True, True, False):
        state.count_end("chat", "complete", good)
    assert state.attainment("chat", 60) == 0.75
    assert state.attainment("chat", 0) is None


def test_under_another_policy_what_is_known_of_engines_that_stay_is_kept() -> None:
    state = State(POLICY)
    for name in ("chat", "code"):
        state.history(name).add(Moment(1, Counters()))
    policy = parse_policy("[engines.code]\nport = 8001\n[engines.new]\nport = 1\n", "test")
    state.set_policy(policy)
    assert state.policy == policy
    kept = {name: state.history(name).moment(1) for name in ("chat", "code", "new")}
    assert kept == {"chat": None, "code": Moment(1, Counters()), "new": None}
