import math
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.engines.contract import Knob
from controller.guards import LEAST_REST_NS, REST
from controller.step_model import StepModel
from controller.window import HIGHEST_MS, needed_window_ms
from controller.window_choice import (
    EVERY_NS,
    FIRM_NS,
    WINDOW,
    Demand,
    WindowMemory,
    batch_time,
    choose_window,
)

# 20 ms a batch and 2 ms an item
MODEL = StepModel(theta=(20.0, 200.0, 0.0, 0.0), steps=1000, prefill_steps=1000, error=0.0)
CALM = Demand(0, 40.0, 100.0, math.inf, False, 0)
MS = 1_000_000


def knob(start: float, cost: str = "reload") -> Knob:
    return Knob(WINDOW, 0, max(start, 200), start, "ms", cost)


def after(
    seconds: float, of: Knob, demand: Demand, memory: WindowMemory | None = None
) -> list[tuple[float, float]]:
    """What is set when, if the demand stays and the knob takes it."""
    held: dict[str, float] = {}
    memory, changes = memory or WindowMemory(), []
    for tick in range(int(seconds * 10)):
        now_ns = tick * 100 * MS
        memory, wanted = choose_window(of, held, memory, MODEL, replace(demand, now_ns=now_ns))
        if wanted is not None:
            held = {WINDOW: wanted}
            changes.append((now_ns / 1e9, wanted))
    return changes


def test_a_window_that_makes_the_first_request_of_a_batch_late_is_cut_once() -> None:
    (change,) = after(120, knob(150), CALM)
    assert change[1] < 100
    assert change[0] == pytest.approx(FIRM_NS / 1e9, abs=0.2)


@pytest.mark.parametrize("start_ms", [0, 2.5, 5, 40, 60])
def test_a_window_that_meets_the_slo_is_not_reloaded_to_be_a_little_better(start_ms: float) -> None:
    assert not after(120, knob(start_ms), CALM)


def test_the_same_window_is_followed_where_a_change_costs_nothing() -> None:
    assert after(120, knob(60, "step"), CALM) == [(0, 5)]


def test_a_window_too_short_to_keep_up_grows_where_users_wait_for_it() -> None:
    late = replace(CALM, arrival_rps=250, pressed=True)
    (change,) = after(120, knob(2.5), late)
    assert change[1] == math.ceil(needed_window_ms(batch_time(MODEL), 250))
    assert not after(120, knob(2.5), replace(late, pressed=False))


def test_a_window_is_not_lengthened_beyond_what_keeps_up() -> None:
    assert not after(120, knob(40, "step"), replace(CALM, arrival_rps=250, latency_slo_ms=60))[1:]


def test_a_full_batch_leaves_at_once_so_a_long_window_does_no_harm() -> None:
    # 8 items come in 35 ms
    assert not after(60, knob(150), replace(CALM, arrival_rps=200, largest_batch=8))
    assert after(60, knob(150), replace(CALM, arrival_rps=20, largest_batch=8))


def test_a_failure_that_passes_is_no_reason() -> None:
    memory, _ = choose_window(knob(150), {}, WindowMemory(), MODEL, CALM)
    assert memory.failing_ns == 0
    relaxed = replace(CALM, now_ns=FIRM_NS // 2, latency_slo_ms=1000)
    memory, _ = choose_window(knob(150), {}, memory, MODEL, relaxed)
    assert memory.failing_ns is None
    _, wanted = choose_window(knob(150), {}, memory, MODEL, replace(CALM, now_ns=FIRM_NS))
    assert wanted is None


@pytest.mark.parametrize("demand", [replace(CALM, arrival_rps=0), replace(CALM, arrival_rps=-1)])
def test_nothing_is_changed_for_nobody(demand: Demand) -> None:
    assert not after(60, knob(150), demand)


def test_nothing_is_changed_before_the_time_of_a_batch_is_known() -> None:
    memory = WindowMemory()
    for second in range(60):
        demand = replace(CALM, now_ns=second * 10**9)
        memory, wanted = choose_window(knob(150), {}, memory, StepModel(), demand)
        assert wanted is None


def test_a_model_that_misses_by_more_than_half_changes_nothing() -> None:
    uncertain = replace(MODEL, error=0.6)
    late = replace(CALM, now_ns=100 * FIRM_NS)
    _, wanted = choose_window(knob(150), {}, WindowMemory(None, 0), uncertain, late)
    assert wanted is None


def test_uneven_batches_leave_more_of_the_slo_unused() -> None:
    # so many arrive that no window keeps up: the longest that the SLO allows is wanted
    swamped = replace(CALM, now_ns=100 * FIRM_NS, arrival_rps=600, latency_slo_ms=400, pressed=True)

    def wanted_ms(error: float) -> float:
        model = replace(MODEL, error=error)
        _, wanted = choose_window(knob(5), {}, WindowMemory(None, 0), model, swamped)
        assert wanted is not None
        return wanted

    assert wanted_ms(0.4) < wanted_ms(0.0)


@given(
    st.lists(st.tuples(st.floats(0.1, 600), st.floats(20, 2000), st.booleans()), max_size=200),
    st.integers(0, 2 * 10**9),
    st.sampled_from(["step", "reload"]),
)
def test_reloads_take_at_most_a_hundredth_of_the_time_whatever_the_load_does(
    loads: list[tuple[float, float, bool]], change_ns: int, cost: str
) -> None:
    held: dict[str, float] = {}
    memory, changes = WindowMemory(), []
    for second, (rate, slo_ms, pressed) in enumerate(loads):
        demand = Demand(second * 10**9, rate, slo_ms, math.inf, pressed, change_ns)
        memory, wanted = choose_window(knob(150, cost), held, memory, MODEL, demand)
        if wanted is not None:
            assert 0 <= wanted <= HIGHEST_MS
            assert wanted == int(wanted)
            held = {WINDOW: wanted}
            changes.append(demand.now_ns)
    rest = max(LEAST_REST_NS, REST * change_ns) if cost == "reload" else EVERY_NS
    assert all(later - earlier >= rest for earlier, later in pairwise(changes))
