from dataclasses import replace
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bpf.layout import Counters
from controller.engines.page import EngineNow
from controller.pressure import Pressure
from controller.progress import FORGOTTEN_NS, IDLE_SHARE, PROBE_NS, SUSPECT_NS, Progress, Stall

from .situations import MS, SECOND

TICK_NS: Final = 17 * MS
RUNNING: Final = EngineNow(steps=5, running=2)


class Engine:
    """An engine over time: it uses `share` of a CPU."""

    def __init__(self, page: EngineNow | None = RUNNING) -> None:
        self.progress = Progress()
        self.now_ns = 1000 * SECOND
        self.page = page
        self.counters = Counters()
        self.pressure = Pressure()
        self.share = 0.0
        self.used_ns: int | None = 0
        self.asked = 0

    def run(self, ns: int) -> Stall | None:
        end_ns = self.now_ns + ns
        while self.now_ns < end_ns:
            self.now_ns += TICK_NS
            if self.used_ns is not None:
                self.used_ns += int(self.share * TICK_NS)
            self.progress.take(self.now_ns, self.counters, self.page, self.pressure, self._used)
        return self.progress.stall

    def step(self) -> Stall | None:
        assert self.page is not None
        self.page = replace(self.page, steps=self.page.steps + 1)
        return self.run(TICK_NS)

    def _used(self) -> int | None:
        self.asked += 1
        return self.used_ns


def test_an_engine_with_work_that_does_nothing_is_stopped_while_it_is() -> None:
    engine = Engine()
    stall = engine.run(400 * MS)
    assert stall is not None
    assert stall.until_ns == engine.now_ns
    assert stall.until_ns - stall.since_ns >= 400 * MS - 2 * TICK_NS


def test_an_engine_that_goes_on_was_stopped_until_then() -> None:
    engine = Engine()
    engine.run(400 * MS)
    ended = engine.step()
    assert ended is not None
    for _ in range(50):
        engine.step()
    assert engine.progress.stall == ended


def test_a_long_step_is_no_standstill() -> None:
    engine = Engine()
    engine.share = 2 * IDLE_SHARE
    assert engine.run(3 * SECOND) is None


def test_an_engine_out_of_memory_stands_still_even_if_some_thread_spins() -> None:
    engine = Engine()
    engine.share = 0.5
    engine.pressure = Pressure(out_of_memory=True)
    stall = engine.run(400 * MS)
    assert stall is not None
    assert stall.out_of_memory
    engine.pressure = Pressure()
    engine.step()
    assert engine.progress.stall is not None
    engine.run(SECOND)
    assert engine.progress.stall.until_ns < engine.now_ns - SECOND + 2 * TICK_NS


def test_an_engine_that_makes_steps_is_never_looked_into() -> None:
    engine = Engine()
    for _ in range(200):
        engine.step()
    assert (engine.progress.stall, engine.asked) == (None, 0)


def test_an_engine_without_work_is_not_stopped() -> None:
    assert Engine(EngineNow(steps=5)).run(3 * SECOND) is None
    assert Engine(None).run(3 * SECOND) is None


def test_a_proxy_that_waits_for_its_engine_is_not_stopped() -> None:
    assert Engine(EngineNow(running=2, waiting=3)).run(3 * SECOND) is None


def test_an_engine_whose_cpu_time_is_not_known_is_never_called_stopped() -> None:
    engine = Engine()
    engine.used_ns = None
    assert engine.run(3 * SECOND) is None


def test_it_takes_little_longer_than_the_suspicion_to_be_sure() -> None:
    engine = Engine()
    assert engine.run(SUSPECT_NS + PROBE_NS + 4 * TICK_NS) is not None


def test_without_a_page_the_kernels_count_of_requests_is_the_work() -> None:
    engine = Engine(None)
    engine.counters = Counters(requests=3, ends_complete=1, ends_early=1)
    assert engine.run(400 * MS) is not None
    engine.counters = engine.counters._replace(chunks=1)
    ended = engine.run(TICK_NS)
    engine.counters = engine.counters._replace(ends_complete=2)
    engine.run(SECOND)
    assert engine.progress.stall == ended


def test_a_stream_that_waits_to_be_sent_is_not_the_engines_work() -> None:
    engine = Engine(None)
    engine.counters = Counters(requests=1, blocked_begun=1)
    assert engine.run(SECOND) is None


def test_requests_that_nothing_is_heard_of_for_a_minute_are_not_there() -> None:
    engine = Engine(None)
    engine.counters = Counters(requests=1)
    stall = engine.run(FORGOTTEN_NS - SECOND)
    assert stall is not None
    assert stall.until_ns == engine.now_ns
    engine.run(3 * SECOND)
    assert engine.progress.stall is not None
    assert engine.progress.stall.until_ns < engine.now_ns
    # another one counts
    engine.counters = Counters(requests=2)
    stall = engine.run(400 * MS)
    assert stall is not None
    assert stall.until_ns == engine.now_ns


@pytest.mark.parametrize(("share", "stopped"), [(IDLE_SHARE, True), (IDLE_SHARE + 0.01, False)])
def test_next_to_no_cpu_is_none_and_a_little_more_is_a_step(share: float, stopped: bool) -> None:
    engine = Engine()
    engine.share = share
    assert (engine.run(SECOND) is not None) == stopped


def test_an_engine_that_computes_again_after_a_pause_was_stopped_only_in_between() -> None:
    engine = Engine()
    engine.run(400 * MS)
    engine.share = 1.0
    engine.run(300 * MS)
    computing_ns = engine.now_ns
    ended = engine.run(SECOND)
    assert ended is not None
    assert ended.until_ns < computing_ns


def test_a_response_that_nobody_asked_for_is_no_work_left_undone() -> None:
    engine = Engine(None)
    engine.counters = Counters(requests=1, ends_complete=2)
    assert engine.run(SECOND) is None


@given(st.lists(st.tuples(st.integers(1, 5), st.floats(0, 1)), min_size=1, max_size=30))
def test_an_engine_that_goes_on_within_the_suspicion_is_never_stopped(
    steps: list[tuple[int, float]],
) -> None:
    engine = Engine()
    for ticks, share in steps:
        engine.share = share
        engine.run((ticks - 1) * TICK_NS)
        assert engine.step() is None


@given(st.lists(st.tuples(st.integers(1, 40), st.floats(0, 1)), min_size=1, max_size=20))
def test_a_standstill_lies_between_two_signs_of_progress(steps: list[tuple[int, float]]) -> None:
    engine = Engine()
    engine.run(TICK_NS)
    moved_ns = engine.now_ns
    for ticks, share in steps:
        engine.share = share
        stall = engine.run(ticks * TICK_NS)
        if stall is not None and stall.until_ns > moved_ns:
            assert stall.since_ns == moved_ns
            assert stall.until_ns - stall.since_ns > SUSPECT_NS
            assert stall.until_ns <= engine.now_ns
        engine.step()
        moved_ns = engine.now_ns


@pytest.mark.parametrize("released", [False, True])
def test_a_standstill_knows_what_pressure_there_was_meanwhile(released: bool) -> None:
    engine = Engine()
    engine.pressure = Pressure(memory_ns=100, starved_ns=10)
    engine.run(2 * TICK_NS)
    engine.pressure = Pressure(memory_ns=400, starved_ns=15, out_of_memory=True)
    engine.run(400 * MS)
    engine.pressure = replace(engine.pressure, out_of_memory=not released)
    stall = engine.run(400 * MS)
    assert stall is not None
    assert (stall.memory_ns, stall.starved_ns, stall.out_of_memory) == (300, 5, True)
