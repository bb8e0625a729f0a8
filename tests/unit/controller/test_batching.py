from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from controller.actions import ReleaseKnobs, SetKnobs
from controller.admission import CALM_NS, DEADLINE, DEFERRAL
from controller.attribution import ON_THE_WAY, STOPS, Cause
from controller.batching import (
    BLIND_CUT,
    BUDGET,
    KEPT_RATE,
    RUNNING,
    BatchMemory,
    BatchView,
    decide_batch,
)
from controller.engines.contract import Knob
from controller.engines.page import EngineNow
from controller.guards import DEAD_BAND, DWELL_STEPS
from controller.laws import MARGIN, prefill_rate
from controller.policy_model import KnobFloors, Slo
from controller.step_model import StepModel
from controller.window_choice import WINDOW

from . import synthetic
from .situations import SECOND, window

SLO: Final = Slo(ttft_ms=2000, gap_ms=60)
KNOBS: Final = {
    RUNNING: Knob(RUNNING, 1, 64, 64, "requests"),
    BUDGET: Knob(BUDGET, 16, 2048, 2048, "tokens"),
    "max_queued": Knob("max_queued", 1, 1000, 1000, "requests"),
}
VIEW: Final = BatchView(KNOBS, SLO, KnobFloors(min_batched_tokens=64, min_running=2))
# 8 ms a step, 0.06 ms a prompt token, 0.4 ms a sequence, 0.5 µs a cached token
TRUSTED: Final = StepModel(theta=(8.0, 6.0, 0.4, 0.5), steps=1000, prefill_steps=500, error=0.0)
UNTRUSTED: Final = StepModel()
BUSY: Final = EngineNow(steps=500, running=20, kv_used=20_000, kv_total=60_000)
IDLE: Final = EngineNow(steps=500, kv_total=60_000)


def decide(
    engine: EngineNow | None,
    memory: BatchMemory | None = None,
    model: StepModel = TRUSTED,
    cause: Cause = Cause.NONE,
    view: BatchView = VIEW,
    arrival_tokens_per_s: float = 0.0,
) -> tuple[BatchMemory, SetKnobs | ReleaseKnobs | None]:
    signals = window(engine=engine, arrival_tokens_per_s=arrival_tokens_per_s)
    memory, proposal = decide_batch(view, memory or BatchMemory(), signals, model, cause)
    if proposal is None:
        return memory, None
    (action,) = proposal.actions
    assert isinstance(action, SetKnobs | ReleaseKnobs)
    assert proposal.reason
    return memory, action


def settle(
    engine: EngineNow,
    memory: BatchMemory | None = None,
    model: StepModel = TRUSTED,
    cause: Cause = Cause.NONE,
    arrival_tokens_per_s: float = 0.0,
) -> tuple[BatchMemory, list[SetKnobs | ReleaseKnobs]]:
    """Decide on one situation, some steps apart, until nothing changes."""
    memory = memory or BatchMemory()
    actions: list[SetKnobs | ReleaseKnobs] = []
    for _ in range(1000):
        memory, action = decide(engine, memory, model, cause, VIEW, arrival_tokens_per_s)
        if action is None:
            return memory, actions
        actions.append(action)
        engine = replace(engine, steps=engine.steps + DWELL_STEPS)
    raise AssertionError(f"still changing: {actions[-5:]}")


def value(memory: BatchMemory, knob: str) -> float:
    return memory.point.get(knob, KNOBS[knob].start)


def test_the_budget_is_cut_to_what_fits_into_the_gap() -> None:
    memory, action = decide(BUSY)
    # 20 + (0.85·60 − 8 − 0.4·20 − 0.0005·20000) / 0.06
    assert isinstance(action, SetKnobs)
    assert action.values == {BUDGET: 436}
    assert action.old == {BUDGET: 2048}
    assert memory.point == {BUDGET: 436}


def test_the_budget_stays_at_what_the_arrivals_need() -> None:
    # the floor at λ = 9 tokens/ms: 9·26 / (1 − 9·0.06)
    memory, _ = decide(BUSY, arrival_tokens_per_s=9_000)
    assert memory.point == {BUDGET: 20 + int(9 * 26 / 0.46)}


@pytest.mark.parametrize("arrival_tokens_per_s", [13_000, 1e6])
def test_what_hardly_any_budget_keeps_up_with_leaves_three_quarters_of_the_rate(
    arrival_tokens_per_s: float,
) -> None:
    memory, _ = decide(BUSY, arrival_tokens_per_s=arrival_tokens_per_s)
    most = prefill_rate(TRUSTED, 2048 - 20, 20, 20_000)
    kept = prefill_rate(TRUSTED, memory.point[BUDGET] - 20, 20, 20_000)
    assert kept == pytest.approx(KEPT_RATE * most, rel=0.01)


def test_the_policys_floor_holds() -> None:
    tight = replace(VIEW, slo=Slo(gap_ms=1))
    memory, _ = decide(BUSY, view=tight)
    assert memory.point == {BUDGET: 64, RUNNING: 2}


def test_a_floor_above_the_start_value_raises_nothing() -> None:
    high = replace(VIEW, floors=KnobFloors(min_batched_tokens=100_000, min_running=1000))
    assert decide(BUSY, view=high) == (BatchMemory(), None)


def test_the_running_cap_is_cut_when_those_that_run_leave_no_room_for_prompts() -> None:
    crowd = replace(BUSY, running=60, waiting=5, kv_used=60_000)
    memory, _ = decide(crowd)
    # (0.85·60 − 8) / (0.4 + 0.0005·1000), and by memory 0.95·60
    assert memory.point[RUNNING] == 47


def test_while_prompts_fit_only_memory_caps_what_runs() -> None:
    crowd = replace(BUSY, running=40, waiting=5, kv_used=40_000)
    memory, _ = decide(crowd)
    assert memory.point[RUNNING] == 57


def test_the_running_cap_lands_on_a_captured_graph_size() -> None:
    crowd = replace(BUSY, running=40, waiting=5, kv_used=40_000)
    memory, _ = decide(crowd, view=replace(VIEW, graph_sizes=(8, 16, 32, 64)))
    assert memory.point[RUNNING] == 32


def test_a_running_cap_that_binds_nothing_is_left_alone() -> None:
    few = replace(BUSY, running=3, kv_used=10_000)
    memory, _ = decide(few)
    assert RUNNING not in memory.point


@pytest.mark.parametrize("cause", sorted(STOPS))
@pytest.mark.parametrize("model", [TRUSTED, UNTRUSTED], ids=["trusted", "untrusted"])
def test_nothing_is_changed_for_a_fault_that_is_not_the_batchs(
    cause: Cause, model: StepModel
) -> None:
    held = BatchMemory({BUDGET: 200.0}, changed_at_step=100)
    assert decide(BUSY, held, model, cause) == (held, None)
    assert decide(BUSY, None, model, cause) == (BatchMemory(), None)


@pytest.mark.parametrize("cause", sorted(ON_THE_WAY))
def test_streams_late_on_the_way_change_nothing_in_what_the_others_are_given(cause: Cause) -> None:
    assert decide(BUSY, cause=cause)[0].point == decide(BUSY, cause=Cause.NONE)[0].point != {}


@pytest.mark.parametrize("cause", sorted(ON_THE_WAY))
def test_without_a_model_a_point_is_kept_while_streams_are_late_on_the_way(cause: Cause) -> None:
    held = BatchMemory({BUDGET: 200.0}, changed_at_step=100)
    assert decide(BUSY, held, UNTRUSTED, cause) == (held, None)


def test_nothing_is_changed_without_sight_of_the_engine() -> None:
    assert decide(None, model=UNTRUSTED, cause=Cause.BATCH) == (BatchMemory(), None)


def test_an_engine_without_the_knobs_is_left_alone() -> None:
    bare = replace(VIEW, knobs={"max_queued": KNOBS["max_queued"]})
    assert decide(BUSY, view=bare, cause=Cause.BATCH) == (BatchMemory(), None)
    assert decide(BUSY, view=bare, cause=Cause.BATCH, model=UNTRUSTED) == (BatchMemory(), None)


def test_an_engine_with_one_of_the_knobs_has_that_one_changed() -> None:
    only = replace(VIEW, knobs={BUDGET: KNOBS[BUDGET]})
    memory, _ = decide(replace(BUSY, running=40, kv_used=40_000), view=only)
    assert list(memory.point) == [BUDGET]


def test_without_a_model_a_rank_that_has_nothing_to_do_is_not_cut() -> None:
    idle = replace(BUSY, running=0, waiting=0)
    assert decide(idle, model=UNTRUSTED, cause=Cause.BATCH) == (BatchMemory(), None)


def test_without_a_model_a_rank_whose_steps_are_short_is_not_cut() -> None:
    short = replace(window(engine=BUSY), longest_step_ns=int(VIEW.slo.gap_ms * 1e6 / 10))
    decided = decide_batch(VIEW, BatchMemory(), short, UNTRUSTED, Cause.BATCH)
    assert decided == (BatchMemory(), None)


def test_without_a_model_a_batch_to_blame_is_cut_by_a_share() -> None:
    memory, action = decide(BUSY, model=UNTRUSTED, cause=Cause.BATCH)
    assert isinstance(action, SetKnobs)
    assert action.values == {BUDGET: int(2048 * BLIND_CUT)}
    assert memory.changed_at_step == BUSY.steps


def test_without_a_model_one_long_step_is_cut_for_once() -> None:
    memory, _ = decide(BUSY, model=UNTRUSTED, cause=Cause.BATCH)
    for later in range(DWELL_STEPS):
        following = replace(BUSY, steps=BUSY.steps + later)
        assert decide(following, memory, UNTRUSTED, Cause.BATCH) == (memory, None)
    following = replace(BUSY, steps=BUSY.steps + DWELL_STEPS)
    memory, _ = decide(following, memory, UNTRUSTED, Cause.BATCH)
    assert memory.point[BUDGET] == int(int(2048 * BLIND_CUT) * BLIND_CUT)


@pytest.mark.parametrize("cause", [Cause.NONE, Cause.UNKNOWN, Cause.QUEUE])
def test_without_a_model_and_a_batch_to_blame_nothing_is_cut(cause: Cause) -> None:
    assert decide(BUSY, model=UNTRUSTED, cause=cause) == (BatchMemory(), None)


@pytest.mark.parametrize("model", [TRUSTED, UNTRUSTED], ids=["trusted", "untrusted"])
def test_the_way_back_ends_with_the_lease_given_back(model: StepModel) -> None:
    loose = replace(model, theta=(1.0, 0.1, 0.01, 0.01)) if model.trusted else model
    held = BatchMemory({BUDGET: 600.0, RUNNING: 20.0}, changed_at_step=0)
    memory, actions = settle(IDLE, held, loose)
    assert memory.point == {}
    assert isinstance(actions[-1], ReleaseKnobs)
    assert all(isinstance(action, SetKnobs) for action in actions[:-1])


def test_growth_waits_for_the_engines_steps() -> None:
    held = BatchMemory({BUDGET: 100.0}, changed_at_step=BUSY.steps - DWELL_STEPS + 1)
    assert decide(BUSY, held) == (held, None)
    memory, _ = decide(replace(BUSY, steps=BUSY.steps + 1), held)
    assert memory.point == {BUDGET: 162}


def test_a_change_names_the_whole_operating_point() -> None:
    held = BatchMemory({RUNNING: 60.0}, changed_at_step=BUSY.steps)
    _, action = decide(BUSY, held)
    assert isinstance(action, SetKnobs)
    assert action.values == {BUDGET: 436, RUNNING: 60}
    assert action.old == {BUDGET: 2048, RUNNING: 60}


def test_a_knob_that_is_back_is_said_once_and_held_no_more() -> None:
    held = BatchMemory({RUNNING: 63.0, BUDGET: 436.0}, changed_at_step=0)
    memory, action = decide(BUSY, held)
    assert isinstance(action, SetKnobs)
    assert action.values == {RUNNING: 64, BUDGET: 436}
    assert memory.point == {BUDGET: 436}


models = st.builds(
    lambda a, b, c, d: replace(TRUSTED, theta=(a, b, c, d)),
    st.floats(0, 50),
    st.floats(0.1, 20),
    st.floats(0, 2),
    st.floats(0, 5),
)
engines = st.builds(
    EngineNow,
    steps=st.integers(100, 10**6),
    running=st.integers(0, 64),
    waiting=st.integers(0, 100),
    kv_used=st.integers(0, 60_000),
    kv_total=st.just(60_000),
)


@given(models, engines, st.floats(0, 50_000))
def test_the_step_planned_for_fits_the_slo_or_sits_at_a_floor(
    model: StepModel, engine: EngineNow, rate: float
) -> None:
    memory, _ = settle(engine, None, model, arrival_tokens_per_s=rate)
    budget = value(memory, BUDGET)
    assume(budget > 64)
    left = budget - engine.running
    planned_ms = model.predict_ms(left, engine.running, engine.kv_used)
    fits = planned_ms <= MARGIN * SLO.gap_ms * (1 + DEAD_BAND) + model.prefill_ms
    per_s = 1e3 * left / planned_ms if planned_ms else 0
    assert fits or per_s <= rate * (1 + 2 * DEAD_BAND) + 1 or budget == 2048


@given(models, engines, st.sampled_from(Cause), st.booleans(), st.floats(0, 50_000))
def test_every_value_asked_for_is_in_the_engines_range(
    model: StepModel, engine: EngineNow, cause: Cause, trusted: bool, rate: float
) -> None:
    memory = BatchMemory()
    for _ in range(10):
        known = model if trusted else UNTRUSTED
        memory, action = decide(engine, memory, known, cause, VIEW, rate)
        point: Mapping[str, float] = action.values if isinstance(action, SetKnobs) else {}
        for name, asked in point.items():
            assert KNOBS[name].check(asked) == asked
            assert asked <= KNOBS[name].start
        engine = replace(engine, steps=engine.steps + 1)


@given(models, engines, st.sampled_from(Cause), st.floats(0, 50_000))
def test_one_situation_leads_to_one_operating_point(
    model: StepModel, engine: EngineNow, cause: Cause, rate: float
) -> None:
    memory, _ = settle(engine, None, model, cause, rate)
    assert settle(engine, replace(memory, changed_at_step=0), model, cause, rate)[1] == []


@pytest.mark.parametrize("seed", [1, 2])
def test_late_gaps_vanish_once_the_model_is_warm(seed: int) -> None:
    load = synthetic.Load(per_s=9, seed=seed)
    alone = synthetic.run(load, 30, SLO, controlled=False)
    controlled = synthetic.run(load, 30, SLO)
    assert alone.late_after(5) > 0.02 * alone.gaps
    assert controlled.late_after(5) < 0.001 * controlled.gaps
    assert controlled.model.trusted
    # what is served is what arrives
    assert controlled.tokens > 0.98 * alone.tokens


def test_light_load_costs_no_throughput_and_no_changes() -> None:
    load = synthetic.Load(per_s=1)
    alone = synthetic.run(load, 60, SLO, controlled=False)
    controlled = synthetic.run(load, 60, SLO)
    assert controlled.tokens > 0.99 * alone.tokens
    assert controlled.late_after(10) == 0
    assert controlled.changes_a_minute(after=10) < 10


def test_steady_load_makes_no_limit_cycle() -> None:
    # equal requests: only when they come is left to chance
    load = synthetic.Load(per_s=9, prompt=(400, 400), answer=(60, 60))
    controlled = synthetic.run(load, 30, SLO)
    assert controlled.late_after(5) == 0
    assert controlled.changes_a_minute(after=5) < 120
    steady = controlled.budgets[len(controlled.budgets) // 4 :]
    assert max(steady) < 2 * min(steady)


def test_what_cannot_be_met_costs_hardly_any_throughput() -> None:
    load = synthetic.Load(per_s=20)
    alone = synthetic.run(load, 20, SLO, controlled=False)
    controlled = synthetic.run(load, 20, SLO)
    assert controlled.tokens > 0.95 * alone.tokens


RELEGATING: Final = replace(
    VIEW,
    knobs=KNOBS
    | {
        DEADLINE: Knob(DEADLINE, 0, 600_000, 0, "ms"),
        DEFERRAL: Knob(DEFERRAL, 0, 3_600_000, 60_000, "ms"),
    },
    max_deferral_ms=30_000,
)
QUEUED: Final = replace(BUSY, waiting=3, waiting_tokens=30_000)


def test_a_long_queue_is_ordered_by_deadline() -> None:
    memory, action = decide(QUEUED, view=RELEGATING)
    assert isinstance(action, SetKnobs)
    assert action.values == {BUDGET: 436, DEADLINE: 1900, DEFERRAL: 30_000}
    assert memory.pressed_ns is not None


def test_it_takes_no_model_to_relegate() -> None:
    old = replace(QUEUED, oldest_arrival_ns=99 * SECOND)
    memory, _ = decide(old, model=UNTRUSTED, view=RELEGATING)
    assert memory.point == {DEADLINE: 1900, DEFERRAL: 30_000}


def test_a_short_queue_is_left_as_it_is() -> None:
    memory, _ = decide(replace(QUEUED, waiting=1, waiting_tokens=100), view=RELEGATING)
    assert memory.point == {BUDGET: 436}


def test_where_requests_can_be_relegated_no_arrivals_make_gaps_late() -> None:
    memory, _ = decide(QUEUED, view=RELEGATING, arrival_tokens_per_s=1e6)
    assert memory.point[BUDGET] == 436


def test_relegation_ends_after_a_calm_but_not_before_the_last_waits_no_more() -> None:
    memory, _ = decide(QUEUED, view=RELEGATING)
    assert memory.pressed_ns is not None
    since_ns = memory.pressed_ns - CALM_NS
    calm = replace(memory, pressed_ns=since_ns)
    one, _ = decide(replace(BUSY, waiting=1), calm, view=RELEGATING)
    assert DEADLINE in one.point
    none, _ = decide(BUSY, calm, view=RELEGATING)
    assert none.point == {BUDGET: 436}
    assert none.pressed_ns is None
    soon, _ = decide(BUSY, replace(calm, pressed_ns=since_ns + 1), view=RELEGATING)
    assert DEADLINE in soon.point


def test_a_change_of_the_queues_cap_alone_does_not_hold_growth_back() -> None:
    memory, _ = decide(QUEUED, view=RELEGATING)
    signals = window(engine=replace(QUEUED, steps=BUSY.steps + 1))
    again, _ = decide_batch(RELEGATING, memory, signals, TRUSTED, Cause.NONE, most_queued=20)
    assert again.point == {**memory.point, "max_queued": 20}
    assert again.changed_at_step == memory.changed_at_step


WINDOWED: Final = BatchView(
    {WINDOW: Knob(WINDOW, 0, 200, 150, "ms", "reload")}, Slo(ttft_ms=100), KnobFloors()
)
# 20 ms a batch, 2 ms an item
BATCHES: Final = StepModel(theta=(20.0, 200.0, 0.0, 0.0), steps=1000, prefill_steps=1000, error=0.0)


def window_after(
    seconds: int, cause: Cause = Cause.NONE
) -> tuple[BatchMemory, list[tuple[Mapping[str, float], str]]]:
    memory, changes = BatchMemory(), []
    for second in range(1, seconds + 1):
        signals = replace(
            window(engine=EngineNow(steps=500), arrival_tokens_per_s=40.0), now_ns=second * SECOND
        )
        memory, proposal = decide_batch(WINDOWED, memory, signals, BATCHES, cause)
        if proposal is not None:
            (action,) = proposal.actions
            assert isinstance(action, SetKnobs)
            changes.append((action.values, proposal.reason))
    return memory, changes


def test_an_engine_that_batches_by_window_gets_one_that_meets_the_slo_and_is_told_why() -> None:
    memory, ((values, reason),) = window_after(60)
    assert values == memory.point == {WINDOW: 5.0}
    assert "20.0 + 2.00·n ms and 40 items/s" in reason


@pytest.mark.parametrize("cause", sorted(STOPS))
def test_no_window_is_changed_for_what_is_not_the_batches_fault(cause: Cause) -> None:
    assert window_after(60, cause)[1] == []
