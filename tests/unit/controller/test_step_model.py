import math
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.engines.page import Step
from controller.step_model import (
    OUTLIER_FACTOR,
    TRUST_ERROR,
    TRUST_PREFILL_STEPS,
    TRUST_STEPS,
    WARM_UP_STEPS,
    StepModel,
    as_felt,
    at_least_zero,
    learn,
)

MS = 1_000_000

Load = Callable[[random.Random], tuple[int, int, int]]


@dataclass(frozen=True, slots=True)
class Truth:
    """An engine: ms for a step, a prompt token, a sequence and a cached token."""

    base: float = 8.0
    prefill: float = 0.06
    decode: float = 0.4
    kv: float = 0.0005

    def ms(self, prefill: float, decode: float, kv: float) -> float:
        return self.base + self.prefill * prefill + self.decode * decode + self.kv * kv

    def times(self, factor: float) -> "Truth":
        return Truth(*(factor * each for each in (self.base, self.prefill, self.decode, self.kv)))


TRUTH = Truth()


def varied(rng: random.Random) -> tuple[int, int, int]:
    prefill = rng.randint(16, 512) if rng.random() < 0.5 else 0
    return prefill, rng.randint(1, 32), rng.randint(100, 20_000)


def steady(_: random.Random) -> tuple[int, int, int]:
    return 0, 16, 8_000


def steps(
    count: int, load: Load, truth: Truth = TRUTH, noise: float = 0.05, first: int = 100
) -> Iterable[Step]:
    rng = random.Random(7)
    for index in range(first, first + count):
        prefill, decode, kv = load(rng)
        ms = truth.ms(prefill, decode, kv) * (1 + rng.gauss(0, noise))
        yield Step(index, 0, int(ms * 1e6), prefill, decode, kv)


def trained(count: int = 500, load: Load = varied, truth: Truth = TRUTH) -> StepModel:
    return learn(StepModel(), steps(count, load, truth), disturbed=False)


def error_of(model: StepModel, truth: Truth, load: Load = varied) -> float:
    """The worst relative error over steps like those of `load`."""
    rng = random.Random(8)
    loads = [load(rng) for _ in range(100)]
    return max(abs(model.predict_ms(*each) / truth.ms(*each) - 1) for each in loads)


def test_coefficients_are_recovered_from_noisy_steps() -> None:
    model = trained()
    assert model.trusted
    assert model.base_ms == pytest.approx(TRUTH.base, rel=0.06)
    assert model.prefill_ms == pytest.approx(TRUTH.prefill, rel=0.03)
    assert model.decode_ms == pytest.approx(TRUTH.decode, rel=0.06)
    assert model.kv_ms == pytest.approx(TRUTH.kv, rel=0.08)
    assert error_of(model, TRUTH) < 0.04


def test_the_base_is_learnt_beside_long_steps_whose_noise_is_longer_than_it() -> None:
    """As on a shared machine: half of the steps are long, and those up to 2.5 times as long."""
    rng = random.Random(11)
    model = StepModel()
    for index in range(100, 1_100):
        prefill, decode, kv = varied(rng)
        ms = TRUTH.ms(prefill, decode, kv) * (rng.uniform(1.0, 2.5) if prefill else 1.0)
        model = learn(model, [Step(index, 0, int(ms * 1e6), prefill, decode, kv)], False)
    assert model.predict_ms(0, 1, 0) == pytest.approx(TRUTH.ms(0, 1, 0), rel=0.15)


def test_trust_comes_and_goes_more_seldom_than_the_error_crosses_its_bound() -> None:
    rng = random.Random(12)
    model, changes, crossings = StepModel(), 0, 0
    for index in range(100, 3_100):
        before = model
        load = varied(rng)
        ms = TRUTH.ms(*load) * rng.lognormvariate(0, 0.33)
        model = learn(model, [Step(index, 0, int(ms * 1e6), *load)], False)
        changes += model.trusted != before.trusted
        crossings += (model.error <= TRUST_ERROR) != (before.error <= TRUST_ERROR)
    assert crossings > 50
    assert changes < crossings / 5


def test_coefficients_are_exact_without_noise() -> None:
    model = learn(StepModel(), steps(500, varied, noise=0), disturbed=False)
    assert model.base_ms == pytest.approx(TRUTH.base, rel=0.01)
    assert model.prefill_ms == pytest.approx(TRUTH.prefill, rel=0.01)
    assert model.decode_ms == pytest.approx(TRUTH.decode, rel=0.01)
    assert model.kv_ms == pytest.approx(TRUTH.kv, rel=0.01)


def test_the_running_error_is_that_of_the_noise() -> None:
    # the mean of |x| of a normal distribution is 0.8 sigma
    assert trained().error == pytest.approx(0.04, rel=0.5)


def test_warm_up_steps_teach_nothing() -> None:
    warm_up = [Step(i, 0, 10**9, 100, 1, 100) for i in range(WARM_UP_STEPS + 1)]
    assert learn(StepModel(), warm_up, disturbed=False) == StepModel()
    first = Step(WARM_UP_STEPS + 1, 0, 10**9, 100, 1, 100)
    assert learn(StepModel(), [first], disturbed=False).steps == 1


def test_disturbed_steps_teach_nothing() -> None:
    model = trained()
    assert learn(model, steps(100, varied, TRUTH.times(3)), disturbed=True) == model


def test_a_step_without_a_time_teaches_nothing() -> None:
    assert learn(StepModel(), [Step(100, 0, 0, 10, 1, 10)], disturbed=False) == StepModel()


@pytest.mark.parametrize(
    "nonsense",
    [
        {"step_ns": 2**64 - 1},
        {"prefill_tokens": 2**63},
        {"decode_seqs": 2**64 - 1},
        {"kv_tokens": 2**64 - 1},
    ],
    ids=str,
)
def test_what_can_not_be_a_step_teaches_nothing(nonsense: dict[str, int]) -> None:
    step = replace(Step(100, 0, 10_000_000, 10, 4, 1000), **nonsense)
    assert learn(StepModel(), [step], disturbed=False) == StepModel()


@given(
    st.lists(
        st.builds(
            Step,
            st.integers(0, 2**64 - 1),
            st.integers(0, 2**64 - 1),
            *(4 * [st.one_of(st.integers(0, 10**9), st.integers(0, 2**64 - 1))]),
        ),
        max_size=30,
    )
)
def test_whatever_a_page_says_the_model_stays_a_model(said: list[Step]) -> None:
    model = learn(StepModel(), said, disturbed=False)
    numbers = [*model.theta, *(each for row in model.covariance for each in row), model.error]
    assert all(math.isfinite(each) for each in numbers)


def test_an_outlier_is_refused_once_the_model_is_trusted() -> None:
    model = trained()
    late = 1.1 * OUTLIER_FACTOR * TRUTH.ms(100, 8, 4000)
    taught = learn(model, [Step(9999, 0, int(late * 1e6), 100, 8, 4000)], disturbed=False)
    assert (taught.theta, taught.covariance) == (model.theta, model.covariance)
    assert taught.trusted


def test_an_outlier_is_taken_before_that() -> None:
    young = trained(TRUST_STEPS // 2)
    late = 2 * OUTLIER_FACTOR * TRUTH.ms(100, 8, 4000)
    taught = learn(young, [Step(9999, 0, int(late * 1e6), 100, 8, 4000)], disturbed=False)
    assert taught.theta != young.theta


def test_now_and_then_an_outlier_does_no_harm() -> None:
    each = enumerate(steps(1000, varied))
    spoilt = [replace(s, step_ns=s.step_ns * 8) if i % 50 == 49 else s for i, s in each]
    model = learn(trained(), spoilt, disturbed=False)
    assert model.trusted
    assert error_of(model, TRUTH) < 0.04


def test_an_engine_that_became_slower_for_good_is_no_outlier() -> None:
    slow = TRUTH.times(2 * OUTLIER_FACTOR)
    model = learn(trained(), steps(40, varied, slow), disturbed=False)
    assert not model.trusted
    model = learn(model, steps(3000, varied, slow), disturbed=False)
    assert model.trusted
    # each of the steps before, eight times as short, weighs as much as 64 of these
    assert error_of(model, slow) < 0.08


def test_steady_load_for_long_neither_blows_up_nor_stops_learning() -> None:
    model = learn(trained(), steps(100_000, steady), disturbed=False)
    figures = [*model.theta, *(value for row in model.covariance for value in row), model.error]
    assert all(math.isfinite(figure) for figure in figures)
    assert error_of(model, TRUTH, steady) < 0.02
    # what steady load says nothing of is still what it was
    assert error_of(model, TRUTH) < 0.04

    changed = learn(model, steps(500, varied), disturbed=False)
    assert error_of(changed, TRUTH) < 0.06
    slower = learn(model, steps(2000, steady, TRUTH.times(1.5)), disturbed=False)
    assert error_of(slower, TRUTH.times(1.5), steady) < 0.03
    assert slower.trusted


def test_a_covariance_stays_symmetric() -> None:
    covariance = trained(2000, steady).covariance
    assert all(covariance[i][j] == covariance[j][i] for i in range(4) for j in range(4))
    assert all(covariance[i][i] > 0 for i in range(4))


def test_a_model_is_not_trusted_without_prefill_steps() -> None:
    decodes = trained(5000, steady)
    assert decodes.error < 0.1
    assert not decodes.trusted
    few = learn(decodes, steps(TRUST_PREFILL_STEPS - 1, lambda _: (100, 4, 100)), disturbed=False)
    assert not few.trusted


def test_a_model_is_not_trusted_before_enough_steps() -> None:
    assert not trained(TRUST_STEPS - 1, lambda rng: (rng.randint(1, 512), 4, 1000)).trusted
    assert not StepModel().trusted


def test_an_empty_model_predicts_nothing() -> None:
    assert StepModel().predict_ms(1000, 10, 10_000) == 0


@given(
    st.lists(
        st.builds(
            Step,
            index=st.integers(0, 1000),
            end_ns=st.just(0),
            step_ns=st.integers(0, 2**63),
            prefill_tokens=st.integers(0, 2**32),
            decode_seqs=st.integers(0, 2**20),
            kv_tokens=st.integers(0, 2**40),
        ),
        max_size=60,
    ),
    st.integers(0, 2**20),
    st.integers(0, 2**20),
    st.integers(0, 2**30),
)
def test_no_steps_make_a_prediction_negative_or_no_number(
    taught: list[Step], prefill: int, decode: int, kv: int
) -> None:
    model = learn(StepModel(), taught, disturbed=False)
    assert 0 <= model.predict_ms(prefill, decode, kv) < math.inf
    assert 0 <= model.error <= 1


def test_who_generates_feels_what_passes_between_steps_too() -> None:
    first = Step(7, 100 * MS, 10 * MS, 0, 3, 100)
    second = Step(8, 113 * MS, 10 * MS, 0, 3, 100)
    assert [step.step_ns for step in as_felt([second], first)] == [13 * MS]
    assert [step.step_ns for step in as_felt([first, second], None)] == [10 * MS, 13 * MS]


@pytest.mark.parametrize(
    "step",
    [
        Step(9, 113 * MS, 10 * MS, 0, 3, 100),
        Step(8, 913 * MS, 10 * MS, 50, 0, 100),
        Step(8, 100 * MS, 10 * MS, 0, 3, 100),
    ],
    ids=["a step is missing between", "nobody generates", "it ends with the one before"],
)
def test_nobody_feels_more_than_the_step_where_that_is_not_known(step: Step) -> None:
    assert as_felt([step], Step(7, 100 * MS, 10 * MS, 0, 3, 100)) == [step]


def alike(rng: random.Random) -> tuple[int, int, int]:
    """All sequences are of about one length: the cached tokens tell nothing of their own."""
    decode = rng.randint(2, 40)
    return rng.choice((0, 0, 200)), decode, decode * 300 + rng.randint(-40, 40)


@pytest.mark.parametrize("seed", range(6))
def test_no_coefficient_is_below_zero_and_the_others_make_up_for_it(seed: int) -> None:
    rng, model = random.Random(seed), StepModel()
    truth = Truth(4.0, 0.03, 0.3, 0.0)
    for index in range(100, 700):
        load = alike(rng)
        ms = truth.ms(*load) * rng.lognormvariate(0, 0.12)
        model = learn(model, [Step(index, 0, int(ms * 1e6), *load)], disturbed=False)
    assert min(model.base_ms, model.prefill_ms, model.decode_ms, model.kv_ms) >= 0
    assert error_of(model, truth, alike) < 0.1


@given(
    st.tuples(*[st.floats(-3, 3)] * 4),
    st.lists(st.tuples(*[st.floats(-1, 1)] * 4), min_size=4, max_size=4),
)
def test_the_constrained_fit_is_the_best_of_those_that_leave_out_what_it_leaves_out(
    theta: tuple[float, float, float, float], rows: list[tuple[float, ...]]
) -> None:
    # any P = R·R' + I is a covariance; the cost of leaving θ is (x − θ)'·P⁻¹·(x − θ)
    covariance = np.array(rows) @ np.array(rows).T + np.eye(4)
    fixed = (tuple(map(float, row)) for row in covariance)
    found = at_least_zero(theta, tuple(fixed))  # type: ignore[arg-type]
    if min(theta) >= 0:
        assert found is None
        return
    assert found is not None
    assert min(found) >= 0
    inverse, off = np.linalg.inv(covariance), np.array(found) - np.array(theta)
    gradient = inverse @ off
    for slope, value in zip(gradient, found, strict=True):
        assert value == 0 or abs(slope) < 1e-6


def test_only_long_steps_tell_how_uneven_they_are() -> None:
    model = trained()
    short = Step(1000, 0, int(TRUTH.ms(0, 1, 10) * 3e6), 0, 1, 10)
    assert learn(model, [short], disturbed=False).spread == model.spread
    longer = Step(1000, 0, int(TRUTH.ms(900, 8, 4000) * 3e6), 900, 8, 4000)
    assert learn(model, [longer], disturbed=False).spread > model.spread
