from dataclasses import replace
from pathlib import Path

import pytest

from bpf.layout import Counters
from controller.cpu_limits import CpuMemory
from controller.engines.page import EngineNow
from controller.memory_sentinel import Bound, MemoryView
from controller.pace import (
    EDGE_SPACING_NS,
    FLOWING_MS,
    IDLE_MS,
    UNTUNED_MS,
    period_ms,
    what_is_due,
)
from controller.policy_model import Controller, Engine, Match
from controller.watch import EngineWatch

CONTROL = Controller()
SLOW, FAST = CONTROL.scheduler_tick_interval_ms, CONTROL.fast_tick_interval_ms
TICK_NS = 17_000_000

QUIET = Counters()
STREAMING = Counters(requests=3, responses=3, chunks=100)
MORE = STREAMING._replace(chunks=106, gaps=6)


def watch(
    before: Counters, after: Counters, injected: float = 0.0, socket: Path | None = Path("/no/such")
) -> EngineWatch:
    """An engine whose counters were these at two ticks."""
    made = EngineWatch(Engine("e", Match("port", 1), admin_socket=socket), 1, None, 500)
    for number, counters in enumerate((before, after), 1000):
        made.take(number * TICK_NS, counters, 0, injected, 0.3)
    return made


def period(*watches: EngineWatch, holding: bool = False, control: Controller = CONTROL) -> float:
    return period_ms(control, watches, holding=holding)


def test_without_a_stream_there_is_time() -> None:
    assert period(watch(QUIET, QUIET)) == IDLE_MS


def test_while_streams_flow_in_time_there_is_some() -> None:
    assert period(watch(STREAMING, MORE)) == FLOWING_MS
    assert period(watch(QUIET, QUIET), watch(STREAMING, MORE)) == FLOWING_MS


def test_what_is_found_to_run_short_of_memory_after_a_tick_does_not_wait_for_a_late_one() -> None:
    made = watch(STREAMING, MORE)
    made.memory.view = MemoryView((Bound("/e", 1000, 900, growth=1.0),))
    assert period(made) == FLOWING_MS
    made.memory.view = MemoryView((Bound("/e", 1000, 100, growth=50.0),))
    assert period(made) == SLOW


def test_an_engine_without_knobs_has_nothing_to_be_set_ahead_of_need() -> None:
    assert period() == UNTUNED_MS
    assert period(watch(STREAMING, MORE, socket=None)) == UNTUNED_MS
    assert period(watch(QUIET, QUIET, socket=None), watch(QUIET, QUIET)) == IDLE_MS
    assert period(watch(STREAMING, MORE._replace(gaps_over=1), socket=None)) == SLOW


def test_a_stream_under_way_is_a_stream_though_nothing_came_of_it_for_long() -> None:
    made = watch(STREAMING, MORE)
    for number in range(1002, 1100):
        made.take(number * TICK_NS, MORE, 0, 0.0, 0.3)
    assert period(made) == SLOW


@pytest.mark.parametrize(
    "late",
    [{"gaps_over": 1}, {"ttft_over": 1}, {"waits_over": 1}],
    ids=lambda late: next(iter(late)),
)
def test_what_is_late_is_looked_at_at_every_tick(late: dict[str, int]) -> None:
    assert period(watch(STREAMING, MORE._replace(**late))) == SLOW


def test_who_waits_in_the_engines_queue_is_looked_at_at_every_tick() -> None:
    made = watch(STREAMING, MORE)
    assert made.signals is not None
    made.signals = replace(made.signals, engine=EngineNow(running=3, waiting=1))
    assert period(made) == SLOW


@pytest.mark.parametrize(("pressure", "expected"), [(0.3, IDLE_MS), (0.5, SLOW), (0.8, FAST)])
def test_the_more_pressure_the_sooner(pressure: float, expected: float) -> None:
    assert period(watch(QUIET, QUIET, pressure)) == expected


def test_short_waits_for_a_cpu_are_no_reason_to_hurry() -> None:
    often = MORE._replace(run_ns=2_000_000, wait_ns=20_000_000, wait_other_ns=20_000_000, waits=40)
    made = watch(STREAMING, often)
    assert made.pressure.cpu > CONTROL.backpressure_threshold
    assert period(made) == FLOWING_MS
    assert period(watch(STREAMING, often._replace(waits_over=1))) == FAST


def test_while_anything_is_held_every_tick_counts() -> None:
    by_hand, weight = watch(QUIET, QUIET), watch(QUIET, QUIET)
    by_hand.by_hand = {"values": {}}
    weight.cpu = CpuMemory(weight=400)
    assert period(by_hand) == period(weight) == SLOW
    assert period(watch(QUIET, QUIET), holding=True) == SLOW


def test_one_engine_in_need_is_enough() -> None:
    late = watch(STREAMING, MORE._replace(gaps_over=1))
    assert period(watch(QUIET, QUIET), late) == SLOW
    assert period(watch(QUIET, QUIET), watch(QUIET, QUIET, 0.8)) == FAST


@pytest.mark.parametrize(("tick_ms", "expected"), [(10, IDLE_MS), (200, 200)])
def test_no_period_is_shorter_than_the_policy_says(tick_ms: float, expected: float) -> None:
    control = Controller(scheduler_tick_interval_ms=tick_ms)
    assert period(watch(QUIET, QUIET), control=control) == expected


def test_an_edge_goes_before_a_tick_that_is_due_as_well() -> None:
    assert what_is_due(100, 100, 100) == "edges"


def test_a_tick_that_is_late_itself_is_not_kept_waiting_by_edges() -> None:
    assert what_is_due(EDGE_SPACING_NS, 0, 0) == "tick"


def test_an_edge_needs_no_tick_to_be_due() -> None:
    assert what_is_due(100, 1_000, 100) == "edges"


def test_edges_that_must_wait_hold_nothing_up() -> None:
    assert what_is_due(100, 100, 101) == "tick"
    assert what_is_due(99, 100, 101) is None
