import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.memory_history import Growth, PerRequest, Rise, per_unit, slope

MIB = 1 << 20
SECOND = 1_000_000_000


@given(st.floats(-1e3, 1e3), st.floats(-1e3, 1e3), st.integers(2, 16))
def test_the_slope_of_a_line_is_the_lines(rise: float, start: float, count: int) -> None:
    points = [(float(x), start + rise * x) for x in range(count)]
    assert slope(points) == pytest.approx(rise, abs=1e-6)


def test_a_quarter_of_wild_points_does_not_move_a_slope_far() -> None:
    points = [(float(x), 5.0 * x) for x in range(16)]
    for at in (3, 7, 10, 15):
        points[at] = (float(at), 1e6)
    assert slope(points) == pytest.approx(5.0, rel=0.2)


@pytest.mark.parametrize("points", [[], [(1.0, 2.0)], [(1.0, 2.0), (1.0, 5.0)]])
def test_too_few_points_have_no_slope(points: list[tuple[float, float]]) -> None:
    assert slope(points) == 0.0


def test_what_one_more_takes_is_found_through_noise() -> None:
    rng = random.Random(3)
    points = [(float(n), 100 + 4.0 * n + rng.gauss(0, 3)) for n in range(20) for _ in range(6)]
    found = per_unit(points)
    assert found is not None
    assert found == pytest.approx(4.0, rel=0.1)


def test_counts_that_hardly_differ_say_nothing_of_one() -> None:
    assert per_unit([(5.0, 10.0), (5.0, 11.0), (6.0, 90.0)]) is None
    assert per_unit([]) is None


def test_memory_that_is_taken_steadily_lasts_as_long_as_what_is_left_allows() -> None:
    growth = Growth()
    for tick in range(20):
        bound = growth.take(tick * SECOND // 4, "/a", 1000 * MIB, (100 + 25 * tick) * MIB)
    assert bound.growth == pytest.approx(100 * MIB)
    assert bound.sudden == pytest.approx(100 * MIB)
    assert bound.lasts_s == pytest.approx((1000 - 100 - 25 * 19) / 100)


def test_one_jump_is_sudden_and_no_growth() -> None:
    growth = Growth()
    for tick in range(20):
        bound = growth.take(
            tick * SECOND // 4, "/a", 1000 * MIB, (500 if tick == 19 else 100) * MIB
        )
    assert bound.growth == pytest.approx(0.0)
    assert bound.sudden == pytest.approx(800 * MIB)


def test_a_rise_is_that_of_the_window_and_begins_anew_with_the_counter() -> None:
    rise = Rise(5 * SECOND)
    assert [rise.take(second * SECOND, 10 * second) for second in range(8)] == [
        0, 10, 20, 30, 40, 50, 50, 50,
    ]  # fmt: skip
    assert rise.seconds == 5
    assert rise.take(9 * SECOND, 3) == 0


def test_what_a_request_takes_stays_known_while_their_number_is_capped() -> None:
    found = PerRequest()
    assert found.take(0, 0, 100 * MIB) is None
    for half in range(1, 21):
        known = found.take(half * SECOND // 2, half, (100 + 4 * half) * MIB)
    assert known == pytest.approx(4 * MIB, rel=0.05)
    for half in range(21, 400):
        known = found.take(half * SECOND // 2, 20, 180 * MIB)
    assert known == pytest.approx(4 * MIB, rel=0.5)
