import random

import pytest

from controller.predict.predictor import Predictor
from controller.predict.smoothing import Ewma, KalmanLevel, LastValue


def told(predictor: Predictor, values: list[float]) -> float:
    for value in values:
        predictor.observe(value)
    return predictor.forecast()


def test_the_last_value_stays() -> None:
    assert told(LastValue(), [3.0, 8.0]) == 8.0


@pytest.mark.parametrize("make", [LastValue, lambda: Ewma(0.2), KalmanLevel])
def test_nothing_is_forecast_before_the_first_value_and_then_that_value(
    make: type[LastValue],
) -> None:
    predictor = make()
    assert predictor.forecast() == 0.0
    assert told(predictor, [7.0]) == 7.0


def test_the_first_values_of_the_mean_count_in_full() -> None:
    assert told(Ewma(0.01), [10.0, 20.0]) == pytest.approx(15, abs=0.05)


def test_the_mean_forgets_by_its_weight() -> None:
    ewma = Ewma(0.5)
    assert told(ewma, [0.0] * 50) == 0.0
    assert told(ewma, [8.0]) == pytest.approx(4)
    assert told(ewma, [8.0]) == pytest.approx(6)


def test_the_level_of_pure_noise_is_close_to_its_mean() -> None:
    chance = random.Random(1)
    level = KalmanLevel()
    misses = []
    for step in range(2000):
        level.observe(100 + chance.gauss(0, 20))
        if step >= 200:
            misses.append(abs(level.forecast() - 100))
    assert sum(misses) / len(misses) < 8


def test_the_level_follows_a_random_walk_that_is_seen_without_noise() -> None:
    chance = random.Random(1)
    level = KalmanLevel()
    value = 1000.0
    misses = []
    for step in range(2000):
        value += chance.gauss(0, 20)
        level.observe(value)
        if step >= 200:
            misses.append(abs(level.forecast() - value))
    assert sum(misses) / len(misses) < 4


def test_the_level_follows_a_step_out_of_noise() -> None:
    chance = random.Random(1)
    level = KalmanLevel()
    told(level, [100 + chance.gauss(0, 5) for _ in range(500)])
    assert told(level, [300 + chance.gauss(0, 5) for _ in range(10)]) == pytest.approx(300, abs=20)


def test_a_constant_is_forecast_as_it_is() -> None:
    assert told(KalmanLevel(), [5.0] * 1000) == 5.0
