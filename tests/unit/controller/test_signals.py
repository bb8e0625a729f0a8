from dataclasses import replace
from typing import Any

import pytest

from bpf.layout import Counters
from controller.engines.page import EngineNow, Step
from controller.pressure import Pressure
from controller.progress import Stall
from controller.signals import Sample, between
from controller.unsent import Unsent

from .situations import MS, window


def test_a_window_holds_what_was_counted_between_its_ends() -> None:
    first = Sample(1_000, Counters(run_ns=10, chunks=5), throttled_ns=3, neighbours_ns=100)
    last = Sample(4_000, Counters(run_ns=25, chunks=9, gaps_over=1), 10, 150)
    found = between(first, last, arrival_tokens_per_s=7.5, injected=0.25)
    assert (found.now_ns, found.window_ns) == (4_000, 3_000)
    assert found.kernel == Counters(run_ns=15, chunks=4, gaps_over=1)
    assert (found.throttled_ns, found.neighbours_ns) == (7, 50)
    assert (found.arrival_tokens_per_s, found.injected) == (7.5, 0.25)


def test_a_window_of_one_sample_is_empty() -> None:
    sample = Sample(1_000, Counters(run_ns=10, gaps_over=3), 5, 5)
    found = between(sample, sample)
    assert (found.window_ns, found.throttled_ns) == (0, 0)
    assert found.kernel == Counters()
    assert not found.at_risk


def test_the_longest_step_of_the_window_is_kept() -> None:
    sample = Sample(0, Counters())
    steps = [Step(i, 0, step_ns, 0, 1, 1) for i, step_ns in enumerate((3, 9, 4))]
    assert between(sample, sample, steps=steps).longest_step_ns == 9
    assert between(sample, sample).longest_step_ns == 0
    disturbed = between(sample, sample, steps=steps, disturbed=[1])
    assert (disturbed.longest_step_ns, disturbed.longest_computed_ns) == (9, 4)


def test_pressure_is_the_share_of_wanted_time_that_others_took() -> None:
    assert window(run_ns=60, wait_ns=40, wait_other_ns=25).neighbour_pressure == 0.25
    # a wait for the engine's own tasks, or for a CPU to wake up, is no neighbour's doing
    assert window(run_ns=60, wait_ns=40, wait_self_ns=40).neighbour_pressure == 0


def test_an_engine_that_wanted_no_cpu_is_under_no_pressure() -> None:
    assert window().neighbour_pressure == 0


def test_the_queue_is_as_old_as_its_oldest_request() -> None:
    waiting = EngineNow(waiting=2, oldest_arrival_ns=30 * MS)
    assert window(now_ns=100 * MS, engine=waiting).queue_age_ns == 70 * MS
    assert window(now_ns=100 * MS, engine=EngineNow()).queue_age_ns == 0
    assert window(now_ns=100 * MS).queue_age_ns == 0
    # the page is written while we look: an arrival after our own reading of the clock
    assert window(now_ns=20 * MS, engine=waiting).queue_age_ns == 0


@pytest.mark.parametrize("crossed", ["gaps_over", "ttft_over", "waits_over"])
def test_any_crossed_threshold_is_a_risk(crossed: str) -> None:
    counted: dict[str, Any] = {crossed: 1}
    assert window(**counted).at_risk


def test_waiting_and_retransmits_alone_are_no_risk() -> None:
    assert not window(wait_ns=10, wait_other_ns=10, waits=3, retransmits=1, gaps=7).at_risk


@pytest.mark.parametrize(
    ("again", "chunks", "losing"),
    [(2, 50, True), (1, 1, False), (2, 0, True), (4, 400, True), (3, 400, False)],
)
def test_so_many_segments_sent_again_are_a_risk(again: int, chunks: int, losing: bool) -> None:
    # in half a second: more than three a second, and a hundredth of the chunks
    signals = window(retransmits=again, chunks=chunks)
    assert (signals.losing, signals.at_risk) == (losing, losing)


def test_loss_probes_alone_are_no_risk() -> None:
    assert not window(retransmits=9, loss_probes=9, chunks=50).at_risk
    assert window(retransmits=9, loss_probes=8, chunks=50).at_risk


def test_a_standstill_and_streams_that_cannot_send_are_a_risk() -> None:
    assert replace(window(), stall=Stall(0, 300 * MS)).at_risk
    assert replace(window(), stall=Stall(0, 300 * MS)).stopped_ns == 300 * MS
    assert replace(window(), unsent=Unsent(stuck=1)).at_risk
    assert not replace(window(), unsent=Unsent(stalled=9, held=9, again=9)).at_risk


def test_what_memory_cost_is_that_of_the_window() -> None:
    first = Sample(0, Counters(), pressure=Pressure(5, 1, 2, 3))
    last = Sample(9, Counters(), pressure=Pressure(9, 1, 4, 10, True))
    found = between(first, last)
    assert (found.memory_ns, found.limit_hits, found.major_faults) == (4, 2, 7)


def test_idle_is_no_traffic_and_nothing_under_way() -> None:
    assert window().idle
    assert window(engine=EngineNow(steps=500)).idle
    assert not window(requests=1).idle
    assert not window(chunks=1).idle
    assert not window(engine=EngineNow(running=1)).idle
    assert not window(engine=EngineNow(waiting=1)).idle
