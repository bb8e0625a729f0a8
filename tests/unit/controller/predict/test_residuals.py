import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.predict.residuals import FEW, KEPT, Residuals, Window

numbers = st.floats(-1e12, 1e12)


def filled(values: list[float]) -> Window:
    window = Window()
    for value in values:
        window.add(value)
    return window


def test_a_window_of_nothing_says_zero() -> None:
    assert Window().quantile(0.9) == 0.0


def test_the_quantile_leaves_room_for_the_value_to_come() -> None:
    nine = filled([float(n) for n in range(1, 10)])
    assert nine.quantile(0.9) == 9.0  # the ⌈0.9·10⌉th
    nineteen = filled([float(n) for n in range(1, 20)])
    assert nineteen.quantile(0.9) == 18.0
    assert nineteen.quantile(0.5) == 10.0


@given(st.lists(numbers, min_size=1, max_size=3 * KEPT), st.floats(0, 1))
def test_the_quantile_is_that_of_the_newest_values(values: list[float], q: float) -> None:
    window = filled(values)
    kept = sorted(values[-KEPT:])
    assert len(window) == len(kept)
    rank = min(max(math.ceil(q * (len(kept) + 1)), 1), len(kept))
    assert window.quantile(q) == kept[rank - 1]


def test_a_quantile_covers_its_share_of_what_comes_next() -> None:
    chance = random.Random(1)
    window = Window()
    covered = 0
    for index in range(6000):
        value = chance.expovariate(1)
        if index >= 1000:
            covered += value <= window.quantile(0.9)
        window.add(value)
    assert covered / 5000 == pytest.approx(0.9, abs=0.02)


def test_what_a_burst_taught_does_not_widen_the_plan_for_quiet_times() -> None:
    residuals = Residuals()
    for _ in range(FEW):
        residuals.add(0.0, 100.0, 1.0)
        residuals.add(500.0, 100.0, 900.0)
    assert residuals.quantile(0.9, 0.0, 100.0) == 1.0
    assert residuals.quantile(0.9, 500.0, 100.0) == 400.0


def test_a_regime_of_which_little_is_known_plans_as_the_widest() -> None:
    residuals = Residuals()
    residuals.add(50.0, 100.0, 51.0)
    for _ in range(FEW):
        residuals.add(500.0, 100.0, 900.0)
    assert residuals.quantile(0.9, 50.0, 100.0) == 400.0
