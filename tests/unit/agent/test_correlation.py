import math
import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.correlation import HELD_FOR, MAX_LAG, MIN_PAIRS, Series, correlate, held

values = st.lists(st.one_of(st.none(), st.floats(-1e6, 1e6)), max_size=120)


def noise(n: int, seed: int = 7) -> list[float]:
    made = random.Random(seed)
    return [made.gauss(0, 1) for _ in range(n)]


def later(series: list[float], lag: int, scale: float = 1.0, spread: float = 0.0) -> list[float]:
    """The series, `lag` samples later, with noise of its own."""
    own = noise(len(series), seed=99)
    return [
        scale * (series[i - lag] if i >= lag else 0.0) + spread * own[i] for i in range(len(series))
    ]


@pytest.mark.parametrize("lag", range(MAX_LAG + 1))
def test_a_known_lag_is_found_again(lag: int) -> None:
    x = noise(300)
    found = correlate("x", "y", x, later(x, lag, scale=5.0, spread=1.0), 100)
    assert found.lag_ms == lag * 100
    assert found.rho is not None
    assert found.rho > 0.95
    assert (found.samples, found.detail) == (300 - lag, "")


def test_what_falls_when_the_other_rises_is_found_as_such() -> None:
    x = noise(300)
    found = correlate("x", "y", x, later(x, 3, scale=-1.0, spread=0.5), 100)
    assert found.lag_ms == 300
    assert found.rho is not None
    assert found.rho < -0.8


def test_the_strength_is_pearson_s() -> None:
    x = noise(5_000)
    found = correlate("x", "y", x, later(x, 0, scale=3.0, spread=4.0), 100)
    # 3/√(3² + 4²)
    assert found.rho == pytest.approx(0.6, abs=0.03)


def wandering(n: int, seed: int) -> list[float]:
    """A series whose neighbouring samples are alike."""
    made = [0.0]
    for step in noise(n, seed):
        made.append(0.9 * made[-1] + step)
    return made[1:]


@pytest.mark.parametrize("series", [noise, wandering])
def test_two_series_that_know_nothing_of_each_other_are_seldom_taken_for_more_than_chance(
    series: Callable[[int, int], list[float]],
) -> None:
    pairs = 300
    taken = sum(
        correlate("x", "y", series(150, 2 * n), series(150, 2 * n + 1), 100).detail == ""
        for n in range(pairs)
    )
    # 5% and three standard errors of it
    assert taken / pairs <= 0.05 + 3 * (0.05 * 0.95 / pairs) ** 0.5


def test_two_slow_series_are_worth_few_samples() -> None:
    slow = [math.sin(i / 40) for i in range(300)]
    other = [math.sin(i / 55 + 1) for i in range(300)]
    found = correlate("x", "y", slow, other, 100)
    assert found.effective < found.samples / 10


def test_a_series_that_stands_still_tells_nothing_and_is_named() -> None:
    flat = [3.0] * 100
    for x, y, name in ((flat, noise(100), "x"), (noise(100), flat, "y")):
        found = correlate("x", "y", x, y, 100)
        assert found.rho is None
        assert found.detail == f"not enough variation in {name}"


def test_too_few_samples_tell_nothing() -> None:
    short = noise(MIN_PAIRS - 1)
    assert correlate("x", "y", short, short, 100).detail == "too few samples of x"


def test_series_that_were_never_measured_together_tell_nothing() -> None:
    known = noise(MIN_PAIRS)
    apart: Series = [None] * 60
    found = correlate("x", "y", [*apart, *known], [*known, *apart], 100)
    assert (found.rho, found.detail) == (None, "too few samples of both at once")


def test_samples_that_are_missing_do_not_move_the_lag() -> None:
    x = noise(400)
    y: list[float | None] = list(later(x, 4))
    for i in range(0, 400, 7):
        y[i] = None
    assert correlate("x", "y", x, y, 100).lag_ms == 400


def test_a_gap_is_filled_for_so_long_and_no_longer() -> None:
    gap: Series = [1.0, *[None] * (HELD_FOR + 2), 2.0]
    assert held(gap) == [1.0, *[1.0] * HELD_FOR, None, None, 2.0]
    assert held([None, 1.0]) == [None, 1.0]


@given(values, values)
def test_whatever_the_series_rho_is_between_its_bounds_or_absent(
    x: list[float | None], y: list[float | None]
) -> None:
    found = correlate("x", "y", x, y, 100)
    if found.rho is None:
        assert found.detail
    else:
        assert -1 <= found.rho <= 1
        assert found.lag_ms is not None
        assert 0 <= found.lag_ms <= MAX_LAG * 100
        assert 0 < found.effective <= found.samples
