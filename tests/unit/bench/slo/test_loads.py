from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from demo.trace import Load, Request, read_trace
from tests.bench.slo.loads import (
    CODE,
    CONVERSATION,
    LONG_RPS,
    SHORT_RPS,
    STEP_FACTOR,
    TRACES,
    stalling,
    step,
    stretch,
    with_warm_up,
)

NAMES = (CODE, CONVERSATION)


@pytest.mark.parametrize("name", NAMES)
def test_an_excerpt_says_where_it_is_from(name: str) -> None:
    head = (TRACES / f"{name}.csv").read_text()[:700]
    assert all(word in head for word in ("Microsoft", "CC-BY-4.0", "ISCA 2024", "Changed:"))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("seed", range(1, 9))
def test_a_stretch_comes_at_the_rate_asked_for_within_its_window(name: str, seed: int) -> None:
    load = stretch(read_trace(TRACES / f"{name}.csv"), seed, 20.0, 12.0)
    assert len(load.requests) == 240
    assert load.requests[0].arrival_s == 0
    assert load.requests[-1].arrival_s <= 12.0


def test_seeds_are_different_stretches_and_each_the_same_again() -> None:
    trace = read_trace(TRACES / f"{CODE}.csv")
    loads = [stretch(trace, seed, 20.0, 12.0) for seed in (1, 2, 3, 1)]
    assert loads[0] == loads[3]
    assert len({load.requests for load in loads}) == 3


def test_the_code_trace_is_far_burstier_than_the_conversation_trace() -> None:
    peaks = []
    for name in NAMES:
        load = stretch(read_trace(TRACES / f"{name}.csv"), 1, 30.0, 20.0)
        tenths = [int(each.arrival_s * 10) for each in load.requests]
        peaks.append(max(map(tenths.count, set(tenths))))
    assert peaks[0] > 2 * peaks[1]


def test_a_step_comes_faster_in_its_middle_third_alone() -> None:
    trace = read_trace(TRACES / f"{CONVERSATION}.csv")
    thirds = [0, 0, 0]
    for seed in range(20):
        for each in step(trace, seed, 10.0, 30.0).requests:
            thirds[int(each.arrival_s // 10)] += 1
    assert thirds[1] / thirds[0] == pytest.approx(STEP_FACTOR, rel=0.15)
    assert thirds[2] / thirds[0] == pytest.approx(1.0, rel=0.15)


@given(st.integers(0, 1000))
def test_a_step_is_in_order_and_the_same_for_the_same_seed(seed: int) -> None:
    trace = [Request(0.0, 400, 40), Request(1.0, 80, 8)]
    load = step(trace, seed, 10.0, 6.0)
    assert load == step(trace, seed, 10.0, 6.0)
    assert all(a.arrival_s <= b.arrival_s < 6.0 for a, b in pairwise(load.requests))
    assert {each.prompt_tokens for each in load.requests} <= {100, 20}


def test_a_window_begins_a_pause_after_its_warm_up() -> None:
    load = Load((Request(0.0, 7, 1), Request(2.0, 8, 1)), 3.0, 4.0)
    plan = with_warm_up(load, [Request(0.0, 5, 5), Request(0.25, 5, 5)], pause_s=0.5)
    assert [each.arrival_s for each in plan.requests] == [0.0, 0.25, 0.75, 2.75]
    assert (plan.warm_up, plan.window_s, plan.speed) == (2, 4.0, 3.0)


@given(st.integers(0, 1000), st.floats(2.0, 20.0))
def test_a_stalling_load_has_its_long_prompts_evenly_apart_among_short_ones(
    seed: int, window_s: float
) -> None:
    load = stalling(seed, window_s)
    long = [each.arrival_s for each in load.requests if each.answer_tokens == 1]
    short = [each for each in load.requests if each.answer_tokens > 1]
    assert (len(long), len(short)) == (int(window_s * LONG_RPS), int(window_s * SHORT_RPS))
    assert {round(b - a, 6) for a, b in pairwise(long)} == {1 / LONG_RPS}
    assert all(a.arrival_s <= b.arrival_s for a, b in pairwise(load.requests))
    assert load.requests[-1].arrival_s <= window_s


def test_another_seed_has_the_long_prompts_at_other_times() -> None:
    assert len({stalling(seed, 6.0).requests for seed in range(10)}) == 10
