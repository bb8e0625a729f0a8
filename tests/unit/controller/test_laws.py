import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from controller.laws import (
    CHANCE,
    KV_WATERMARK,
    capacity_rps,
    jitter_budget,
    prefill_budget,
    prefill_rate,
    queued_cap,
    rate_floor,
    running_cap,
)
from controller.step_model import StepModel

# 10 ms a step, 0.05 ms a prompt token, 0.5 ms a sequence, 1 µs a cached token
MODEL = StepModel(theta=(10.0, 5.0, 0.5, 1.0))
UNKNOWN = StepModel()

positive = st.floats(0.001, 1000)
models = st.builds(
    lambda a, b, c, d: StepModel(theta=(a, b, c, d)), positive, positive, positive, positive
)
slos = st.floats(1, 10_000)
margins = st.floats(0.5, 1)
sequences = st.integers(0, 1000)
cached = st.integers(0, 1_000_000)
rates = st.floats(0, 1_000_000)


def test_the_budget_fills_what_the_running_sequences_leave_of_the_slo() -> None:
    # 0.8·100 − (10 + 20·0.5 + 20000·0.001) = 40 ms, for tokens of 0.05 ms
    assert prefill_budget(MODEL, 100, 0.8, 20, 20_000) == pytest.approx(800)


def test_the_budget_is_negative_when_not_even_the_running_sequences_fit() -> None:
    # 0.8·100 − (10 + 100·0.5 + 30000·0.001) = −10 ms
    assert prefill_budget(MODEL, 100, 0.8, 100, 30_000) == pytest.approx(-200)


def test_tokens_that_cost_nothing_need_no_budget() -> None:
    assert prefill_budget(UNKNOWN, 100, 0.8, 1, 1) == math.inf


def test_the_floor_keeps_up_with_what_arrives() -> None:
    # 8 tokens/ms · 25 ms / (1 − 8·0.05): in 25 + 0.05·B ms a step prefills B
    floor = rate_floor(MODEL, 8_000, 20, 5_000)
    assert floor == pytest.approx(8 * 25 / 0.6)
    assert floor / MODEL.predict_ms(floor, 20, 5_000) == pytest.approx(8)


def test_there_is_no_floor_without_arrivals() -> None:
    assert rate_floor(MODEL, 0, 20, 5_000) == 0


@pytest.mark.parametrize("tokens_per_s", [20_000, 20_001, 1e9])
def test_the_floor_is_infinite_when_prefill_alone_takes_all_the_time(tokens_per_s: float) -> None:
    assert rate_floor(MODEL, tokens_per_s, 0, 0) == math.inf


def test_the_cap_is_what_the_slo_leaves_room_for() -> None:
    # (0.8·100 − 10) / (0.5 + 0.001·500)
    assert running_cap(MODEL, 100, 0.8, 500, 10**9) == pytest.approx(70)


def test_the_cap_is_what_the_kv_cache_holds() -> None:
    assert running_cap(MODEL, 100, 0.8, 500, 10_000) == pytest.approx(KV_WATERMARK * 20)


def test_the_cap_is_never_below_one() -> None:
    assert running_cap(MODEL, 5, 0.8, 500, 10_000) == 1
    assert running_cap(MODEL, 100, 0.8, 500, 10) == 1


def test_the_cap_is_infinite_when_nothing_is_known() -> None:
    assert running_cap(UNKNOWN, 100, 0.8, 0, 0) == math.inf


@given(models, slos, margins, sequences, cached, st.floats(1, 10))
def test_the_budget_grows_with_slo_and_margin_and_falls_with_what_runs(
    model: StepModel, slo: float, margin: float, running: int, kv: int, more: float
) -> None:
    budget = prefill_budget(model, slo, margin, running, kv)
    assert prefill_budget(model, slo * more, margin, running, kv) >= budget
    assert prefill_budget(model, slo, margin * more, running, kv) >= budget
    assert prefill_budget(model, slo, margin, running + 1, kv) <= budget
    assert prefill_budget(model, slo, margin, running, kv + 1) <= budget


@given(models, rates, sequences, cached, st.floats(1, 10))
def test_the_floor_grows_with_arrivals_and_with_what_runs(
    model: StepModel, rate: float, running: int, kv: int, more: float
) -> None:
    floor = rate_floor(model, rate, running, kv)
    assert floor >= 0
    assert rate_floor(model, rate * more, running, kv) >= floor
    assert rate_floor(model, rate, running + 1, kv) >= floor
    assert rate_floor(model, rate, running, kv + 1) >= floor


@given(models, slos, margins, st.floats(0, 100_000), st.integers(0, 10**8), st.floats(1, 10))
def test_the_cap_grows_with_slo_margin_and_cache_and_falls_with_longer_sequences(
    model: StepModel, slo: float, margin: float, per_seq: float, total: int, more: float
) -> None:
    cap = running_cap(model, slo, margin, per_seq, total)
    assert running_cap(model, slo * more, margin, per_seq, total) >= cap
    assert running_cap(model, slo, margin * more, per_seq, total) >= cap
    assert running_cap(model, slo, margin, per_seq * more, total) <= cap
    if total:
        assert running_cap(model, slo, margin, per_seq, 2 * total) >= cap


@given(models, rates, sequences, cached)
def test_any_budget_from_the_floor_up_keeps_up_with_the_arrivals(
    model: StepModel, rate: float, running: int, kv: int
) -> None:
    floor = rate_floor(model, rate, running, kv)
    assume(floor < 1e12)
    for budget in (floor, 2 * floor, floor + 100):
        per_s = 1e3 * budget / model.predict_ms(budget, running, kv)
        assert per_s >= rate * (1 - 1e-6) - 1e-9


@given(models, slos, margins, sequences, cached)
def test_a_step_of_the_budget_takes_the_margin_of_the_slo(
    model: StepModel, slo: float, margin: float, running: int, kv: int
) -> None:
    budget = prefill_budget(model, slo, margin, running, kv)
    without = model.predict_ms(0, running, kv)
    assert without + model.prefill_ms * budget == pytest.approx(margin * slo, abs=1e-9 * without)


def test_capacity_is_what_ends_while_as_much_begins() -> None:
    # 100 prompt and 50 answer tokens: 0.5 + 0.125 + 0.05·2 ms a sequence, (60 − 10)/0.725 of them
    running = 50 / 0.725
    assert capacity_rps(MODEL, 60, 1000, 100, 50) == pytest.approx(1e3 * running / (50 * 60))


def test_capacity_is_bound_by_the_running_cap() -> None:
    assert capacity_rps(MODEL, 60, 4, 100, 50) == pytest.approx(1e3 * 4 / (50 * (10 + 4 * 0.725)))


def test_an_engine_whose_empty_step_is_too_long_has_no_capacity() -> None:
    assert capacity_rps(MODEL, 10, 64, 100, 50) == 0


@given(models, slos, st.floats(1, 1000), st.floats(1, 5000), st.floats(1, 500))
def test_more_time_for_a_step_never_lowers_capacity(
    model: StepModel, step_ms: float, most: float, prompt: float, answer: float
) -> None:
    low = capacity_rps(model, step_ms, most, prompt, answer)
    assert 0 <= low <= capacity_rps(model, 2 * step_ms, most, prompt, answer) * (1 + 1e-9)


def test_as_many_may_wait_as_will_be_served_within_the_bound() -> None:
    # 10 a second for 2 s, and the 4 a second that are over for 30 s
    assert queued_cap(10, 6, 2000, 30_000) == pytest.approx(20 + 120)


def test_under_lasting_overload_only_those_wait_that_can_be_on_time() -> None:
    assert queued_cap(10, 15, 2000, 30_000) == pytest.approx(20)


def test_jitter_bounds_what_prompts_add_to_a_step() -> None:
    assert jitter_budget(MODEL, 3) == pytest.approx(120)
    assert jitter_budget(MODEL, 0) == math.inf
    assert jitter_budget(UNKNOWN, 3) == math.inf


def test_the_prefill_rate_is_the_budget_over_the_step() -> None:
    assert prefill_rate(MODEL, 500, 20, 5_000) == pytest.approx(500 / 50 * 1e3)
    assert prefill_rate(MODEL, 0, 20, 5_000) == 0
    assert prefill_rate(MODEL, math.inf, 20, 5_000) == 0
    assert prefill_rate(MODEL, -3, 20, 5_000) == 0


@given(models, slos, margins, st.floats(0.01, 2000), st.floats(0.1, 500))
def test_a_cap_for_prompts_too_is_no_higher_than_one_for_answers_alone(
    model: StepModel, slo: float, margin: float, kv_per_seq: float, mix: float
) -> None:
    alone = running_cap(model, slo, margin, kv_per_seq, 0)
    assert 1 <= running_cap(model, slo, margin, kv_per_seq, 0, mix) <= alone


def test_as_many_run_as_last_with_the_prompts_that_follow_and_as_come_by_chance() -> None:
    # 10 + n·(0.5 + 100·0.001 + 4·0.05) = 0.9·100, so 100 run for ever
    assert running_cap(MODEL, 100, 0.9, 100, 0, 4) == pytest.approx(100 + CHANCE * 10)
