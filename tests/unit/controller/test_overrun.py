import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.overrun import LEAST, UNKNOWN, planned_share, spread_after

# beyond these hardly a stream is good whatever the plan
spreads = st.floats(0, 0.25)
bases = st.floats(0, 0.35)
streams = st.floats(1, 2000)


def good(share: float, spread: float, base: float, gaps: float) -> float:
    """Good streams by share, as the docstring of the law has it."""
    late = 0.5 * math.erfc(-math.log(share) / (max(spread, LEAST) * math.sqrt(2)))
    return (1 - base / share) * math.pow(1 - late, gaps)


@given(spreads, bases, streams)
def test_no_other_share_gives_more_good_streams(spread: float, base: float, gaps: float) -> None:
    found = planned_share(spread, base, gaps)
    assert 0 < found <= 1
    most = max(good(each / 1000, spread, base, gaps) for each in range(301, 1001))
    assert good(found, spread, base, gaps) >= 0.97 * most


@given(st.tuples(spreads, spreads), bases, streams)
def test_the_more_uneven_the_steps_the_shorter_they_are_planned(
    two: tuple[float, float], base: float, gaps: float
) -> None:
    even, uneven = sorted(two)
    assert planned_share(uneven, base, gaps) <= planned_share(even, base, gaps) + 0.011


@given(spreads, st.tuples(bases, bases), streams)
def test_the_dearer_an_empty_step_the_longer_they_are_planned(
    spread: float, two: tuple[float, float], gaps: float
) -> None:
    cheap, dear = sorted(two)
    assert planned_share(spread, dear, gaps) >= planned_share(spread, cheap, gaps) - 1e-9


@given(spreads, bases, st.tuples(streams, streams))
def test_the_longer_the_streams_the_shorter_the_steps(
    spread: float, base: float, two: tuple[float, float]
) -> None:
    short, long = sorted(two)
    assert planned_share(spread, base, long) <= planned_share(spread, base, short) + 1e-9


def test_a_machine_where_even_an_empty_step_is_late_is_planned_for_the_most_it_can_serve() -> None:
    assert planned_share(0.1, 1.2, 50) == 1.0


def test_the_spread_becomes_that_of_the_steps() -> None:
    chance, spread = random.Random(3), UNKNOWN
    for _ in range(5000):
        spread = spread_after(spread, chance.lognormvariate(0, 0.07))
    assert spread == pytest.approx(0.07, rel=0.15)


def test_one_stop_hardly_moves_the_plan() -> None:
    """A share that follows single stops makes those that run too many at once."""
    before = planned_share(0.1, 0.15, 56)
    after = planned_share(spread_after(0.1, 40.0), 0.15, 56)
    assert before - after < 0.03


@given(spreads, st.floats(allow_nan=True, allow_infinity=True))
def test_whatever_a_step_took_the_spread_stays_a_spread(spread: float, ratio: float) -> None:
    assert 0 <= spread_after(spread, ratio) <= max(spread, math.log(2)) + 1e-9
