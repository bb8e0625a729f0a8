import math
from dataclasses import replace
from itertools import pairwise
from typing import Final

import pytest

from bpf.layout import Counters
from controller.actions import Proposal, ReleaseKnobs
from controller.attribution import ON_THE_WAY, STOPS, Cause
from controller.batching import BUDGET, BatchMemory, BatchView
from controller.core import (
    GIVE_BACK_NS,
    IDLE_NS,
    SLOW_NS,
    CoreState,
    decide,
    gap_attainment,
    learn_steps,
    phase_ns,
    step_margin,
)
from controller.engines.contract import Knob
from controller.engines.page import EngineNow, Step
from controller.load import Load
from controller.policy_model import KnobFloors, Slo
from controller.step_model import StepModel
from controller.trim import START

from .situations import MS, SECOND, window

KNOBS: Final = {BUDGET: Knob(BUDGET, 16, 2048, 2048, "tokens")}
VIEW: Final = BatchView(KNOBS, Slo(ttft_ms=2000, gap_ms=60), KnobFloors())
ENGINE: Final = EngineNow(steps=500, running=4)
HELD: Final = CoreState(batch=BatchMemory({BUDGET: 256.0}))


def second(
    state: CoreState, at: int, totals: Counters, cause: Cause = Cause.NONE
) -> tuple[CoreState, Proposal | None]:
    signals = replace(window(at * SECOND, engine=ENGINE), totals=totals)
    return decide(VIEW, state, signals, cause, 0.99)


def course(state: CoreState, passed: Counters, seconds: int, cause: Cause) -> CoreState:
    """The state after seconds in each of which the same was counted; stops at a proposal."""
    names = Counters._fields
    for at in range(seconds):
        totals = Counters(*(at * getattr(passed, name) for name in names))
        state, _ = second(state, at + 1, totals, cause)
    return state


LATE: Final = Counters(gaps=100, gaps_over=20, chunks=104, requests=4, first_chunks=4)
GOOD: Final = LATE._replace(gaps_over=0)


def test_the_margin_shrinks_while_gaps_are_late_for_the_batchs_sake() -> None:
    assert course(CoreState(), LATE, 5, Cause.BATCH).trim.margin < START


def test_the_margin_grows_while_no_gap_is_late_and_requests_wait_long() -> None:
    waiting = GOOD._replace(ttft_over=1)
    assert course(CoreState(), waiting, 5, Cause.NONE).trim.margin > START


def test_the_margin_does_not_grow_for_nobodys_sake() -> None:
    assert course(CoreState(), GOOD, 50, Cause.NONE).trim.margin == START


def test_one_late_gap_spoils_a_stream_so_longer_answers_allow_fewer() -> None:
    load = Load(requests=30, finished=30, generated=30 * 51, seconds=60, seen=30)
    assert gap_attainment(0.99, load) == pytest.approx(1 - 0.01 / 50)
    assert gap_attainment(0.99, Load()) == pytest.approx(1 - 0.01 / 100)
    single = Load(requests=30, finished=30, generated=30, seconds=60, seen=30)
    assert gap_attainment(0.99, single) == pytest.approx(0.99)


@pytest.mark.parametrize("cause", sorted(STOPS))
def test_what_others_do_moves_no_margin(cause: Cause) -> None:
    assert course(CoreState(), LATE, 5, cause).trim.margin == START


@pytest.mark.parametrize("cause", sorted(ON_THE_WAY))
def test_gaps_that_were_late_on_the_way_shrink_no_margin(cause: Cause) -> None:
    unsent = LATE._replace(gaps_unsent=LATE.gaps_over)
    assert course(CoreState(), unsent, 5, cause).trim.margin == START


@pytest.mark.parametrize("cause", sorted(ON_THE_WAY))
def test_beside_them_the_margin_shrinks_for_the_engines_own(cause: Cause) -> None:
    some = LATE._replace(gaps_unsent=LATE.gaps_over // 2)
    assert course(CoreState(), some, 5, cause).trim.margin < START


def test_a_point_is_not_blamed_for_gaps_that_were_late_on_the_way() -> None:
    free = course(CoreState(), GOOD, 15, Cause.NONE)
    held = replace(free, batch=HELD.batch, slow_ns=None)
    unsent = LATE._replace(gaps_unsent=LATE.gaps_over)
    assert course(held, unsent, 60, Cause.SLOW_READER).trial.roll_backs == 0


def test_one_tick_that_others_disturbed_spoils_its_second() -> None:
    state, _ = second(CoreState(), 1, Counters())
    signals = replace(window(SECOND + 500 * MS, engine=ENGINE), totals=LATE)
    state, _ = decide(VIEW, state, signals, Cause.NEIGHBOUR_CPU, 0.99)
    state, _ = second(state, 2, LATE, Cause.BATCH)
    assert state.trim.margin == START
    assert not state.disturbed


def test_a_point_that_does_harm_is_given_back_and_not_set_again_in_the_pause() -> None:
    free = course(CoreState(), GOOD, 15, Cause.NONE)
    held = replace(free, batch=HELD.batch, slow_ns=None)
    names = Counters._fields
    released = None
    at = 16
    while released is None and at < 60:
        totals = Counters(*((at - 16) * getattr(LATE, name) for name in names))
        held = replace(held, batch=held.batch if held.batch.point else HELD.batch)
        held, proposal = second(held, at, totals, Cause.UNKNOWN)
        if proposal is not None and isinstance(proposal.actions[0], ReleaseKnobs):
            released = proposal
        at += 1
    assert released is not None
    assert "late" in released.reason
    assert held.trial.roll_backs == 1
    assert held.batch == BatchMemory()
    again, proposal = second(held, at, totals, Cause.BATCH)
    assert proposal is None
    assert again.batch == BatchMemory()


def test_layer_two_runs_once_a_second() -> None:
    state, _ = second(CoreState(), 1, Counters())
    signals = replace(window(SECOND + SLOW_NS - 1, engine=ENGINE), totals=LATE)
    state, _ = decide(VIEW, state, signals, Cause.BATCH, 0.99)
    assert state.trim.margin == START
    state, _ = second(state, 2, LATE, Cause.BATCH)
    assert state.trim.margin != START


def test_a_disturbed_step_teaches_nothing() -> None:
    step = Step(100, SECOND, 10 * MS, 50, 4, 1000)
    stolen = window(run_ns=50 * MS, wait_ns=50 * MS, wait_other_ns=50 * MS)
    assert learn_steps(CoreState(), [step], stolen, 0.1) == CoreState()
    assert learn_steps(CoreState(), [step], window(), 0.1).model.steps == 1


def released(proposal: Proposal | None) -> str:
    """Why a point was given back."""
    assert proposal is not None
    assert isinstance(proposal.actions[0], ReleaseKnobs)
    return proposal.reason


def test_a_point_is_given_back_when_its_figures_were_in_doubt_for_long() -> None:
    signals = replace(window(1000 * SECOND), doubted_ns=GIVE_BACK_NS - 1)
    state, proposal = decide(VIEW, HELD, signals, Cause.BATCH, 0.99)
    assert (proposal, state.batch) == (None, HELD.batch)
    signals = replace(signals, doubted_ns=GIVE_BACK_NS)
    state, proposal = decide(VIEW, state, signals, Cause.BATCH, 0.99)
    assert released(proposal) == "its figures have been in doubt for 10 s"
    assert state.batch == BatchMemory()
    assert decide(VIEW, state, signals, Cause.BATCH, 0.99)[1] is None


def test_a_point_is_given_back_when_nobody_came_for_long_and_taken_again_when_one_does() -> None:
    model = StepModel(theta=(8.0, 6.0, 0.4, 0.5), steps=1000, prefill_steps=500, error=0.05)
    state = replace(HELD, model=model)
    idle, busy = EngineNow(steps=500), EngineNow(steps=500, running=9, waiting=3)
    changes = []
    for at in range(3600):
        # whoever asks for its metrics is no traffic
        signals = window(at * SECOND, engine=idle, requests=1, chunks=1)
        state, proposal = decide(VIEW, state, signals, Cause.NONE, 0.99)
        if proposal is not None and isinstance(proposal.actions[0], ReleaseKnobs):
            changes.append((at, released(proposal)))
    assert changes == [(IDLE_NS // SECOND, "no traffic for 300 s")]
    assert state.batch == BatchMemory()
    signals = window(3600 * SECOND, engine=busy)
    state, proposal = decide(VIEW, state, signals, Cause.NONE, 0.99)
    assert proposal is not None
    assert state.batch.point[BUDGET] < 2048


def test_a_request_too_short_to_be_seen_running_is_traffic() -> None:
    state = HELD
    for at in range(3600):
        engine = EngineNow(steps=500, requests_total=at // 60)
        state, proposal = decide(VIEW, state, window(at * SECOND, engine=engine), Cause.NONE, 0.99)
        assert proposal is None or not isinstance(proposal.actions[0], ReleaseKnobs)


EVEN: Final = StepModel(
    theta=(8.0, 6.0, 0.4, 0.5), steps=1000, prefill_steps=500, error=0.05, spread=0.05
)
BUSY: Final = EngineNow(steps=500, running=9, waiting=3)


def planned(model: StepModel) -> CoreState:
    state, _ = decide(VIEW, CoreState(model=model), window(engine=BUSY), Cause.NONE, 0.99)
    return state


def test_an_engine_of_uneven_steps_is_given_more_room() -> None:
    even, uneven = planned(EVEN), planned(replace(EVEN, spread=0.2))
    assert step_margin(VIEW, uneven) < 0.8 * step_margin(VIEW, even)
    assert uneven.batch.point[BUDGET] < 0.7 * even.batch.point[BUDGET]


def test_without_a_model_no_step_is_planned() -> None:
    assert planned(StepModel()).share is None


def test_the_plan_is_looked_at_once_a_second() -> None:
    state = planned(EVEN)
    worse = replace(state, model=replace(EVEN, spread=0.2))
    soon, _ = decide(VIEW, worse, window(100 * MS, engine=BUSY), Cause.NONE, 0.99)
    assert soon.share == state.share
    assert state.slow_ns is not None
    at_ns = state.slow_ns + SLOW_NS
    later, _ = decide(VIEW, worse, window(at_ns, engine=BUSY), Cause.NONE, 0.99)
    assert later.share is not None
    assert state.share is not None
    assert later.share < state.share


@pytest.mark.parametrize("base_ms", [0.0, 8.0, 0.7 * VIEW.slo.gap_ms])
def test_what_came_of_the_plan_trims_what_it_leaves_beside_an_empty_step(base_ms: float) -> None:
    state = planned(replace(EVEN, theta=(base_ms, 6.0, 0.4, 0.5)))
    trimmed = replace(state, trim=replace(state.trim, margin=0.7))
    base_share = base_ms / VIEW.slo.gap_ms
    planned_part = step_margin(VIEW, state) - base_share
    assert planned_part > 0
    assert step_margin(VIEW, trimmed) - base_share == pytest.approx(planned_part * 0.7 / START)


def test_where_an_empty_step_takes_the_slo_there_is_nothing_to_trim() -> None:
    state = planned(replace(EVEN, theta=(2 * VIEW.slo.gap_ms, 6.0, 0.4, 0.5)))
    trimmed = replace(state, trim=replace(state.trim, margin=0.7))
    assert step_margin(VIEW, trimmed) == step_margin(VIEW, state) == state.share


def slow_ticks(row: int) -> list[int]:
    """The ticks, 17 ms apart, at which layer 2 of the engine of this row runs."""
    state, ran = CoreState(slow_after_ns=SLOW_NS + phase_ns(row)), []
    for at in range(400):
        before = state.slow_ns
        state, _ = decide(VIEW, state, window(at * 17 * MS, engine=ENGINE), Cause.NONE, 0.99)
        if at and state.slow_ns != before:
            ran.append(at)
    return ran


def test_an_engine_whose_requests_have_no_tokens_may_have_any_number_waiting() -> None:
    load = Load(requests=50, finished=50, weight_s=60, seconds=60, seen=50, totals=(50, 0, 50, 0))
    state = replace(HELD, load=load, model=EVEN, slow_ns=0, slow_after_ns=SLOW_NS)
    empty = EngineNow(steps=500, requests_total=50, finished_total=50, kv_total=1000)
    signals = replace(window(2 * SECOND, engine=empty), totals=GOOD)
    after, _ = decide(VIEW, state, signals, Cause.NONE, 0.99)
    assert after.load.known
    assert after.most_queued == math.inf


def test_of_eight_engines_no_two_have_their_second_in_one_tick() -> None:
    ticks = [slow_ticks(row) for row in range(8)]
    for first, second in pairwise(sorted(ticks)):
        assert not {*first} & {*second}
    assert len({tick for ran in ticks for tick in ran}) == sum(map(len, ticks))


def test_after_its_phase_an_engine_is_looked_at_once_a_second() -> None:
    for row in range(8):
        assert all(after - before == 59 for before, after in pairwise(slow_ticks(row)))
