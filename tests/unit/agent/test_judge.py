import time

import pytest

from agent.judge import TOLD_AFTER_NS, WITHIN_NS, Judge
from agent.state import State
from agent.stream_cause import StreamVerdict
from bpf.layout import Event
from controller.attribution import Cause
from controller.policy import parse_policy
from controller.policy_model import Slo

from .made import MS, end, start

POLICY = parse_policy("[engines.chat]\nport = 8000\n", "test")
(ENGINE,) = POLICY.engines


class Court:
    """A judge, and what it handed on."""

    def __init__(self) -> None:
        self.state = State(POLICY)
        self.said: list[tuple[str, Event, StreamVerdict]] = []
        self.judge = Judge(self.state, {"chat": ENGINE.slo}, lambda *told: self.said.append(told))

    def hear(self, **cause_ns: int) -> None:
        engine = {"cause_ns": cause_ns, "lost": {}, "evidence": {}}
        self.state.set_status({"type": "status", "engines": {"chat": engine}})

    @property
    def causes(self) -> list[Cause]:
        return [verdict.cause for _, _, verdict in self.said]


@pytest.fixture
def court() -> Court:
    return Court()


def slow(at_ns: int | None = None, request_ns: int | None = None) -> Event:
    at_ns = at_ns or time.monotonic_ns()
    return end(
        at_ns=at_ns,
        request_ns=request_ns or at_ns - 50 * MS,
        gaps_over=1,
        gap_max_ns=900 * MS,
        write_gap_max_ns=900 * MS,
    )


def test_what_is_not_slow_is_handed_on_at_once(court: Court) -> None:
    for event in (start(), end()):
        court.judge.take("chat", event)
    assert court.causes == [Cause.NONE, Cause.NONE]
    assert court.state.slow("chat") == {}


def test_a_slow_stream_waits_for_the_controllers_word_and_is_judged_by_it(court: Court) -> None:
    court.hear(batch=5)
    court.judge.take("chat", slow())
    court.judge.settle()
    assert court.said == []
    time.sleep(TOLD_AFTER_NS / 1e9)
    court.hear(batch=5, memory=9)
    court.judge.settle()
    assert court.causes == [Cause.MEMORY]
    assert court.state.slow("chat") == {"memory": 1}


def test_without_the_controllers_word_a_slow_stream_is_judged_in_the_end(court: Court) -> None:
    court.judge.take("chat", slow(time.monotonic_ns() - WITHIN_NS - MS))
    court.judge.take("chat", slow())
    court.judge.settle()
    assert court.causes == [Cause.APPLICATION]
    court.judge.settle(at_once=True)
    assert court.causes == [Cause.APPLICATION] * 2


def test_under_other_slos_what_ended_before_is_judged_by_those_before(court: Court) -> None:
    court.judge.take("chat", slow())
    court.judge.set_slos({"chat": Slo(ttft_ms=1, gap_ms=1), "code": Slo()})
    assert len(court.said) == 1
    court.judge.take("chat", end(first_ns=1_000 * MS + 2 * MS, request_ns=1_000 * MS))
    court.judge.take("code", end())
    assert [name for name, _, _ in court.said] == ["chat", "code"]
    court.judge.settle(at_once=True)
    assert [name for name, _, _ in court.said] == ["chat", "code", "chat"]
