"""The two predictors that learn what follows what."""

import math
import random
from collections import deque
from collections.abc import Callable, Iterable

import pytest

from controller.predict.autoregression import Autoregression
from controller.predict.predictor import Predictor
from controller.predict.recurrent import Recurrent
from controller.predict.smoothing import Ewma, LastValue

LEARNERS = [Autoregression, Recurrent]
learners = pytest.mark.parametrize("make", LEARNERS)
horizons = pytest.mark.parametrize("horizon", [1, 4])


def wave(count: int) -> list[float]:
    """A load that swings between 20 and 180 in twelve values, with some noise."""
    chance = random.Random(2)
    return [100 + 80 * math.sin(math.pi * n / 6) + chance.gauss(0, 4) for n in range(count)]


def mean_miss(predictor: Predictor, values: Iterable[float], horizon: int, warm_up: int) -> float:
    """Of the forecasts of the next `horizon` values' mean, after `warm_up` values."""
    pending: deque[float] = deque()
    recent: deque[float] = deque(maxlen=horizon)
    misses = []
    for index, value in enumerate(values):
        recent.append(value)
        if len(pending) == horizon:
            miss = abs(pending.popleft() - sum(recent) / horizon)
            if index >= warm_up:
                misses.append(miss)
        predictor.observe(value)
        pending.append(predictor.forecast())
    return sum(misses) / len(misses)


@pytest.mark.parametrize(
    ("make", "lesson"),
    [(Autoregression, 2000), (Recurrent, 30_000)],
    ids=["by least squares soon", "by gradients late"],
)
@horizons
def test_it_learns_a_wave_that_no_level_can_follow(
    make: Callable[[int], Predictor], lesson: int, horizon: int
) -> None:
    values = wave(lesson + 1000)
    miss = mean_miss(make(horizon), values, horizon, lesson)
    assert miss < 0.4 * mean_miss(LastValue(), values, horizon, lesson)
    assert miss < 0.4 * mean_miss(Ewma(0.05), values, horizon, lesson)


@learners
def test_it_starts_as_the_last_value(make: Callable[[int], Predictor]) -> None:
    predictor = make(3)
    predictor.observe(40.0)
    assert predictor.forecast() == pytest.approx(40, rel=0.7)


@learners
@horizons
def test_it_finds_a_constant(make: Callable[[int], Predictor], horizon: int) -> None:
    predictor = make(horizon)
    for _ in range(500):
        predictor.observe(50.0)
    assert predictor.forecast() == pytest.approx(50, rel=0.02)


@learners
def test_it_works_on_after_hours_of_nothing(make: Callable[[int], Predictor]) -> None:
    predictor = make(1)
    for value in [*wave(1000), *[0.0] * 20_000]:
        predictor.observe(value)
    assert predictor.forecast() == pytest.approx(0, abs=1e-6)
    values = wave(3000)
    assert mean_miss(predictor, values, 1, 2000) < 1.1 * mean_miss(LastValue(), values, 1, 2000)


@learners
@horizons
def test_extremes_leave_it_finite(make: Callable[[int], Predictor], horizon: int) -> None:
    predictor = make(horizon)
    chance = random.Random(3)
    for _ in range(5000):
        predictor.observe(chance.choice([0.0, 1e-300, 1e12, 1.0]))
        assert 0 <= predictor.forecast() < math.inf


def test_the_same_seed_is_the_same_net_and_another_seed_another() -> None:
    nets = [Recurrent(1, seed) for seed in (5, 5, 6)]
    for value in wave(50):
        for net in nets:
            net.observe(value)
    first, same, other = (net.forecast() for net in nets)
    assert first == same
    assert first != other
