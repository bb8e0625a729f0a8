import math
import random
import subprocess
import sys
import tracemalloc
from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.predict.chooser import PREDICTORS, Chooser, Outlook
from controller.predict.predictor import MOST, Predictor


class Broken:
    """A predictor gone wrong."""

    def __init__(self, answer: float) -> None:
        self._answer = answer

    def observe(self, value: float) -> None:
        pass

    def forecast(self) -> float:
        return self._answer


def told(chooser: Chooser, values: list[float]) -> Outlook:
    for value in values:
        chooser.observe(value)
    return chooser.outlook


def test_before_the_first_value_there_is_nothing_to_plan_for() -> None:
    assert Chooser(5).outlook == Outlook(0.0, 0.0, "last")


def test_a_constant_load_is_planned_as_it_is() -> None:
    outlook = told(Chooser(5), [40.0] * 300)
    assert outlook.forecast == pytest.approx(40, rel=0.02)
    assert outlook.plan == pytest.approx(40, rel=0.02)


def test_noise_about_a_level_is_left_to_a_predictor_that_smooths() -> None:
    chance = random.Random(1)
    outlook = told(Chooser(1), [100 + chance.gauss(0, 20) for _ in range(1000)])
    assert outlook.predictor != "last"
    assert outlook.forecast == pytest.approx(100, abs=10)
    # the 0.9 quantile of a normal distribution is 1.28 deviations over its mean
    assert outlook.plan == pytest.approx(100 + 1.28 * 20, abs=12)


def test_a_walk_is_left_to_one_that_follows() -> None:
    chance = random.Random(1)
    value = 1000.0
    chooser = Chooser(1)
    for _ in range(1000):
        value += chance.gauss(0, 20)
        chooser.observe(value)
    assert chooser.outlook.predictor != "ewma_slow"
    assert chooser.outlook.forecast == pytest.approx(value, abs=25)


def test_a_load_that_alternates_is_planned_as_it_does() -> None:
    chooser = Chooser(1)
    assert told(chooser, [10.0, 90.0] * 500).plan == pytest.approx(10, abs=2)
    assert told(chooser, [10.0]).plan == pytest.approx(90, abs=2)


@pytest.mark.parametrize("horizon", [1, 5])
@pytest.mark.parametrize("q", [0.5, 0.9])
def test_the_plan_is_enough_as_often_as_asked(horizon: int, q: float) -> None:
    chance = random.Random(1)
    chooser = Chooser(horizon, q)
    pending: deque[float] = deque()
    recent: deque[float] = deque(maxlen=horizon)
    enough = []
    for index in range(4000):
        value = chance.expovariate(1 / 50)
        recent.append(value)
        if len(pending) == horizon:
            plan = pending.popleft()
            if index >= 1000:
                enough.append(sum(recent) / horizon <= plan)
        chooser.observe(value)
        pending.append(chooser.outlook.plan)
    assert sum(enough) / len(enough) == pytest.approx(q, abs=0.04)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -1.0])
def test_what_can_not_be_is_left_out(value: float) -> None:
    chooser = Chooser(2)
    before = told(chooser, [10.0, 30.0, 20.0])
    assert told(chooser, [value] * 5) == before


@pytest.mark.parametrize("answer", [math.nan, math.inf, -math.inf, -5.0])
def test_a_predictor_gone_wrong_harms_nobody(answer: float) -> None:
    chooser = Chooser(1, predictors={**PREDICTORS, "broken": lambda _: Broken(answer)})
    chance = random.Random(1)
    outlook = told(chooser, [100 + chance.gauss(0, 5) for _ in range(300)])
    assert outlook.forecast == pytest.approx(100, abs=15)
    alone = told(Chooser(1, predictors={"broken": lambda _: Broken(answer)}), [7.0])
    assert 0 <= alone.forecast <= 7.0


@settings(max_examples=60)
@given(st.lists(st.floats(), max_size=120), st.integers(1, 20), st.floats(0.01, 0.99))
def test_an_outlook_is_always_a_number_that_can_be(
    values: list[float], horizon: int, q: float
) -> None:
    chooser = Chooser(horizon, q)
    for value in values:
        chooser.observe(value)
        assert 0 <= chooser.outlook.forecast <= MOST
        assert 0 <= chooser.outlook.plan <= MOST
        assert chooser.outlook.predictor in PREDICTORS


def test_the_same_values_give_the_same_outlook() -> None:
    values = [float(n * n % 97) for n in range(300)]
    assert told(Chooser(5), values) == told(Chooser(5), values)


def test_memory_does_not_grow() -> None:
    chance = random.Random(1)
    chooser = Chooser(15)
    told(chooser, [chance.expovariate(1) for _ in range(1500)])
    tracemalloc.start()
    try:
        told(chooser, [chance.expovariate(1) for _ in range(1000)])
        size, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # what was allocated meanwhile replaced as much: numbers in full windows
    assert size < 64 * 1024


def test_it_needs_no_numpy() -> None:
    code = "import sys, controller.predict.chooser; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_predictor_is_whatever_observes_and_forecasts() -> None:
    made: list[Predictor] = [make(3) for make in PREDICTORS.values()]
    assert len(made) == len(PREDICTORS)
