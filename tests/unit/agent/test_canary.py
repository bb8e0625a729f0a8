"""Turns and counts of a trial, with time, coins and histograms in the test's hands."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.canary import EXTENSION, PAIRS, Canary, is_bad, is_error, plan_of
from bpf.histogram import EMPTY, Histogram
from bpf.layout import EndReason, Event, EventKind, StreamFlags
from controller.canary import Kind, Verdict
from controller.policy_model import Slo

from .made import MS, histogram, stream

SECOND = 1_000 * MS
SLO = Slo(ttft_ms=100, gap_ms=20)
PLAN = plan_of(180)


class Bench:
    """A trial on `chat`, beside `code`, and what happens meanwhile."""

    def __init__(self, *coins: bool) -> None:
        self.now_ns = 1_000 * SECOND
        self.gaps: dict[str, Histogram] = {"chat": EMPTY, "code": EMPTY}
        self._coins = iter((*coins, *[True] * 100))
        self._number = 0
        slos = {"chat": SLO, "code": SLO}
        self.canary = Canary(
            PLAN, ["chat"], slos, self.gaps.__getitem__, lambda: next(self._coins), self.now_ns
        )

    def wait(self, seconds: float) -> Verdict | None:
        """Time goes on, a tick ten times a second."""
        for _ in range(round(seconds * 10)):
            self.now_ns += SECOND // 10
            if (verdict := self.canary.tick(self.now_ns)) is not None:
                return verdict
        return None

    def begin(self, engine: str = "chat", **fields: Any) -> dict[str, Any]:
        """A request comes in now; what is known of its stream."""
        self._number += 1
        known = {"connection": 7, "number": self._number, "request_ns": self.now_ns} | fields
        self.canary.take(engine, Event(1, EventKind.START, None, stream(**known), b""))
        return known

    def first(self, known: dict[str, Any], ttft_ms: float, engine: str = "chat") -> dict[str, Any]:
        known = known | {"first_ns": known["request_ns"] + int(ttft_ms * MS)}
        self.canary.take(engine, Event(1, EventKind.FIRST, None, stream(**known)))
        return known

    def end(
        self,
        known: dict[str, Any],
        reason: EndReason = EndReason.COMPLETE,
        engine: str = "chat",
        **fields: Any,
    ) -> None:
        self.canary.take(engine, Event(1, EventKind.END, reason, stream(**known | fields)))

    def streams(self, count: int, ttft_ms: float = 10, engine: str = "chat", **fields: Any) -> None:
        for _ in range(count):
            self.end(self.first(self.begin(engine), ttft_ms, engine), engine=engine, **fields)

    def pair(self, old: Callable[[], None], new: Callable[[], None]) -> Verdict | None:
        """Both slices of a pair, each with what happens in the middle of it."""
        for _ in range(2):
            verdict = self.wait(5)
            if verdict is not None:
                return verdict
            (new if self.canary.is_new else old)()
            assert self.wait(5) is None
        return None


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_180_seconds_are_nine_pairs_of_ten_seconds_each() -> None:
    assert (PLAN.pairs, PLAN.slice_ns, PLAN.settle_ns) == (9, 10 * SECOND, 3 * SECOND)
    assert (PLAN.planned_s, PLAN.longest_s) == (180, 540)


@given(st.floats(36, 3600))
def test_a_plan_has_enough_pairs_and_takes_the_time_it_is_given(seconds: float) -> None:
    plan = plan_of(seconds)
    assert plan.pairs >= PAIRS
    assert plan.most_pairs == EXTENSION * plan.pairs
    assert plan.planned_s == pytest.approx(seconds, rel=0.06)
    assert 2 * SECOND <= plan.slice_ns <= 30 * SECOND
    assert 0 < plan.settle_ns < plan.slice_ns / 2


def test_both_policies_have_a_turn_in_every_pair_in_the_order_that_is_drawn() -> None:
    bench = Bench(True, False, False, True)
    turns = []
    for _ in range(8):
        turns.append(bench.canary.is_new)
        bench.wait(10)
    assert turns == [True, False, False, True, False, True, True, False]


def test_streams_count_for_the_policy_under_which_they_came_in(bench: Bench) -> None:
    bench.wait(5)
    known = bench.begin()
    bench.wait(6)
    # it is the old policy's turn, but this is the new one's stream
    assert not bench.canary.is_new
    bench.end(bench.first(known, 5_000))
    bench.wait(13)
    (pair,) = bench.canary.pairs["chat"]
    assert (pair.new.streams, pair.new.bad, pair.old.streams) == (1, 1, 0)
    assert pair.new.ttft.count == 1


def test_the_first_seconds_of_a_turn_do_not_count(bench: Bench) -> None:
    bench.wait(2.9)
    bench.streams(5)
    bench.wait(0.2)
    bench.streams(1)
    bench.wait(20.5)
    (pair,) = bench.canary.pairs["chat"]
    assert (pair.new.streams, pair.old.streams) == (1, 0)


def test_gaps_are_those_between_the_first_seconds_and_the_end(bench: Bench) -> None:
    bench.wait(1)
    bench.gaps["chat"] = histogram(5 * MS)
    bench.wait(4)
    bench.gaps["chat"] = histogram(5 * MS, 6 * MS, 90 * MS)
    bench.wait(10)
    bench.gaps["chat"] = histogram(5 * MS, 6 * MS, 90 * MS, 7 * MS)
    bench.wait(8.5)
    (pair,) = bench.canary.pairs["chat"]
    assert (pair.new.gap, pair.old.gap) == (histogram(6 * MS, 90 * MS), histogram(7 * MS))


def test_an_engine_that_started_anew_has_no_gaps_in_that_slice(bench: Bench) -> None:
    bench.gaps["chat"] = histogram(5 * MS, 6 * MS)
    bench.wait(5)
    bench.gaps["chat"] = histogram(7 * MS)
    bench.wait(18.5)
    assert bench.canary.pairs["chat"][0].new.gap == EMPTY


def test_a_request_that_waits_too_long_is_bad_before_it_ends(bench: Bench) -> None:
    bench.wait(5)
    bench.begin()
    bench.wait(18.5)
    (pair,) = bench.canary.pairs["chat"]
    assert (pair.new.streams, pair.new.bad) == (1, 1)
    assert (pair.new.ttft.quantile_ns(0.95) or 0) > 15 * SECOND


def test_the_engines_beside_it_are_counted_together(bench: Bench) -> None:
    bench.wait(5)
    bench.streams(3, engine="code")
    bench.wait(10)
    bench.streams(2, engine="code", ttft_ms=500)
    bench.wait(8.5)
    (pair,) = bench.canary.pairs["chat"]
    assert (pair.others_new.streams, pair.others_new.bad) == (3, 0)
    assert (pair.others_old.streams, pair.others_old.bad) == (2, 2)


def test_streams_of_before_the_trial_and_of_strangers_are_not_counted(bench: Bench) -> None:
    bench.end(stream_fields(bench.now_ns - SECOND))
    bench.canary.take("gone", Event(1, EventKind.START, None, stream(request_ns=bench.now_ns)))
    bench.wait(23.5)
    assert bench.canary.pairs["chat"][0].new.streams == 0


def stream_fields(request_ns: int) -> dict[str, Any]:
    return {"connection": 1, "number": 1, "request_ns": request_ns}


def test_equal_policies_end_as_no_worse_after_the_planned_time(bench: Bench) -> None:
    began_ns = bench.now_ns
    verdict = None
    while verdict is None:
        verdict = bench.pair(lambda: bench.streams(5), lambda: bench.streams(5))
    assert verdict.kind is Kind.NO_WORSE
    # the last slice's streams are given the time of a settling to end
    assert bench.now_ns - began_ns == 180 * SECOND + PLAN.settle_ns


def test_clear_harm_ends_it_early(bench: Bench) -> None:
    began_ns = bench.now_ns
    verdict = None
    while verdict is None:
        verdict = bench.pair(lambda: bench.streams(5), lambda: bench.streams(5, ttft_ms=5_000))
    assert verdict.kind is Kind.WORSE
    assert bench.now_ns - began_ns == 100 * SECOND + PLAN.settle_ns


def test_without_traffic_it_ends_at_its_longest(bench: Bench) -> None:
    verdict = bench.wait(600)
    assert verdict is not None
    assert verdict.kind is Kind.TOO_LITTLE
    assert bench.now_ns == 1_000 * SECOND + 540 * SECOND + PLAN.settle_ns


def test_what_comes_in_while_the_main_thread_stands_still_counts_for_nobody(bench: Bench) -> None:
    bench.wait(5)
    bench.now_ns += 60 * SECOND
    bench.streams(1)
    assert bench.canary.tick(bench.now_ns) is None
    assert not bench.canary.is_new
    bench.wait(5)
    bench.streams(1)
    bench.wait(8.5)
    (pair,) = bench.canary.pairs["chat"]
    assert (pair.new.streams, pair.old.streams) == (0, 1)


COMPLETE = EndReason.COMPLETE
NOT_YET: dict[str, Any] = {"first_ns": 0, "chunks": 0, "gap_max_ns": 0}


@pytest.mark.parametrize(
    ("fields", "reason", "expected"),
    [
        ({}, COMPLETE, False),
        ({"first_ns": 1_101 * MS}, COMPLETE, True),
        ({"gap_max_ns": 21 * MS}, COMPLETE, True),
        # the kernel counts by the SLO in force, which may be the new one
        ({"gaps_over": 3}, COMPLETE, False),
        ({"status": 503}, COMPLETE, True),
        ({}, EndReason.SERVER_CLOSED, True),
        (NOT_YET, COMPLETE, True),
        (NOT_YET | {"flags": StreamFlags.LENGTH}, COMPLETE, False),
        ({}, EndReason.CLIENT_RESET, None),
        ({"gap_max_ns": 21 * MS}, EndReason.CLIENT_RESET, True),
        ({}, EndReason.LOST, None),
    ],
)
def test_a_stream_is_judged_by_the_old_slo_and_not_for_what_its_client_did(
    fields: dict[str, Any], reason: EndReason, expected: bool | None
) -> None:
    assert is_bad(stream(**fields), reason, SLO) is expected


def test_only_what_the_engine_did_is_an_error() -> None:
    assert is_error(stream(status=500), COMPLETE)
    assert is_error(stream(), EndReason.SERVER_CLOSED)
    assert not is_error(stream(), EndReason.CLIENT_RESET)
    assert not is_error(stream(gap_max_ns=SECOND), COMPLETE)
