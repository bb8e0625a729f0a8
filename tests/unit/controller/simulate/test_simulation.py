from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise

import pytest

from controller.engines.page import Step
from controller.policy_model import Controller, Engine, Match, Slo
from controller.simulate.controls import Aimd, Control, Fixed, Ours, Seen
from controller.simulate.simulation import Run, is_good, simulate
from controller.simulate.virtual_engine import EngineSpec, StepTimes
from controller.simulate.workload import Arrival, poisson

SLO = Slo(ttft_ms=1000, gap_ms=40)
SPEC = EngineSpec(StepTimes(4.0, 0.04, 0.2, 1e-5), kv_tokens=100_000)
STEADY = poisson(lambda _: 6.0, 30, 800, 60, seed=3)


class Watcher:
    """A control that changes nothing and keeps what it saw."""

    def __init__(self) -> None:
        self.seen: list[Seen] = []

    def tick(self, seen: Seen) -> Mapping[str, float] | None:
        self.seen.append(seen)
        return None

    def period_ns(self) -> int:
        return 17_000_000


def ran(control: Control, spec: EngineSpec = SPEC, seed: int = 0) -> Run:
    return simulate(STEADY, spec, SLO, control, seed)


def ours() -> Ours:
    return Ours(Engine("e", Match("port", 1), slo=SLO), Controller(), SPEC.knobs())


def test_a_request_alone_takes_its_prompt_and_then_a_step_a_token() -> None:
    spec = EngineSpec(StepTimes(10, 0.1, 1))
    (served,) = simulate((Arrival(0, 100, 3),), spec, SLO, Fixed()).served
    assert served.first_ns - served.arrival_ns == 20_000_000
    assert served.longest_gap_ns == 11_000_000
    assert served.last_ns - served.first_ns == 22_000_000


def test_a_prompt_over_the_budget_takes_several_steps() -> None:
    spec = EngineSpec(StepTimes(10, 0.1, 1), max_batched_tokens=50)
    (served,) = simulate((Arrival(0, 100, 1),), spec, SLO, Fixed()).served
    assert served.first_ns - served.arrival_ns == 30_000_000


def test_every_token_is_delivered_and_counted_once() -> None:
    watcher = Watcher()
    run = ran(watcher)
    asked = sum(each.answer_tokens for each in STEADY)
    assert sum(served.tokens for served in run.served) == asked
    assert run.figures.unfinished == run.figures.refused == 0
    counters = watcher.seen[-1].counters
    assert counters.chunks == pytest.approx(asked, rel=0.05)
    assert counters.first_chunks + counters.gaps == counters.chunks


def test_counters_agree_with_the_requests() -> None:
    watcher = Watcher()
    run = ran(watcher)
    counters, last_ns = watcher.seen[-1].counters, watcher.seen[-1].now_ns
    done = [served for served in run.served if served.last_ns <= last_ns]
    late = sum(served.first_ns - served.arrival_ns > 1e9 for served in done)
    assert counters.ttft_over >= late
    assert counters.gaps_over >= sum(served.gaps_over for served in done) > 0


def test_steps_are_seen_once_and_in_order() -> None:
    watcher = Watcher()
    ran(watcher)
    steps: list[Step] = [step for seen in watcher.seen for step in seen.steps]
    assert [step.index for step in steps] == list(range(1, len(steps) + 1))
    assert all(seen.now_ns >= step.end_ns for seen in watcher.seen for step in seen.steps)


def test_a_late_gap_is_answered_before_the_period_ends() -> None:
    watcher = Watcher()
    run = ran(watcher)
    periods = {b.now_ns - a.now_ns for a, b in pairwise(watcher.seen)}
    assert run.figures.ticks == len(watcher.seen)
    assert min(periods) < 17_000_000
    assert min(periods) >= 3_000_000


def test_a_static_point_is_in_force_from_the_start() -> None:
    watcher = Watcher()
    ran(watcher, replace(SPEC, max_batched_tokens=256))
    most = max(step.prefill_tokens + step.decode_seqs for s in watcher.seen for step in s.steps)
    assert most == 256
    run = ran(Fixed({"max_batched_tokens": 256}))
    assert [change.values for change in run.changes] == [{"max_batched_tokens": 256}]
    assert run.figures.changes == 0


def test_the_same_seed_gives_the_same_run_and_another_does_not() -> None:
    noisy = replace(SPEC, times=replace(SPEC.times, noise=0.2))
    assert ran(Fixed(), noisy).figures == ran(Fixed(), noisy).figures
    assert ran(Fixed(), noisy).figures != ran(Fixed(), noisy, seed=1).figures


def test_a_full_queue_refuses() -> None:
    run = ran(Fixed(), replace(SPEC, max_queued=1, max_running=1))
    assert run.figures.refused > 0
    assert run.figures.attainment < 1
    assert not any(is_good(served, SLO) for served in run.served if served.refused)


def test_a_request_larger_than_the_cache_is_refused() -> None:
    run = simulate((Arrival(0, 100, 3),), replace(SPEC, kv_tokens=50), SLO, Fixed())
    assert run.figures.refused == 1
    assert run.figures.unfinished == 0


def test_a_run_ends_though_work_is_left() -> None:
    run = simulate((Arrival(0, 10, 1000),), SPEC, SLO, Fixed(), drain_s=1)
    assert run.figures.unfinished == 1
    assert run.figures.virtual_s == pytest.approx(1, abs=0.1)


def test_our_control_beats_the_defaults_where_prompts_make_gaps_late() -> None:
    default, controlled = ran(Fixed()), ran(ours())
    assert controlled.figures.attainment > default.figures.attainment + 0.2
    assert controlled.changes


def test_aimd_cuts_and_grows_back() -> None:
    aimd = Aimd(int(SLO.gap_ms * 1e6), SPEC.knobs()["max_batched_tokens"])
    run = ran(aimd)
    budgets = [change.values["max_batched_tokens"] for change in run.changes]
    moves = [b - a for a, b in pairwise(budgets)]
    assert budgets[0] < SPEC.max_batched_tokens
    assert min(moves) < 0 < max(moves)
