import math
from dataclasses import dataclass
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.guards import CUT_BAND, DEAD_BAND, DWELL_STEPS, GROWTH, GROWTH_STEPS, Range, toward

TOKENS = Range(minimum=64, maximum=4096, start=2048)
SIZES = Range(minimum=1, maximum=64, start=50, sizes=(1, 2, 4, 8, 16, 32, 64))


@dataclass(frozen=True, slots=True)
class Case:
    """A range, a value in force inside it, and what is wanted."""

    allowed: Range
    current: float
    wanted: float


@st.composite
def cases(draw: st.DrawFn) -> Case:
    minimum, start, maximum = sorted(draw(st.integers(1, 10_000)) for _ in range(3))
    sizes = draw(st.lists(st.integers(1, 10_000), max_size=8, unique=True))
    allowed = Range(minimum, maximum, start, sorted(sizes))
    current = float(draw(st.integers(minimum, start)))
    wanted = draw(st.floats(allow_nan=True, allow_infinity=True) | st.floats(-100.0, 2.0 * maximum))
    return Case(allowed, current, wanted)


def walk(case: Case, limit: int = 2000) -> list[float]:
    """The values in force from the first on, until one stays."""
    values = [case.current]
    for _ in range(limit):
        values.append(toward(values[-1], case.wanted, case.allowed, steps=DWELL_STEPS))
        if values[-1] == values[-2]:
            return values
    raise AssertionError(f"still moving after {limit} changes: {values[-20:]}")


def test_a_cut_is_made_at_once_and_whole() -> None:
    assert toward(2048, 300, TOKENS, steps=DWELL_STEPS - 1) == 300
    assert toward(2048, 1, TOKENS, steps=DWELL_STEPS - 1) == 64


def test_growth_is_five_percent_an_engine_step() -> None:
    assert toward(1000, 10_000, TOKENS, steps=10) == 1628
    assert toward(1000, 10_000, TOKENS, steps=12) == 1795


def test_a_long_rest_grows_a_value_no_further_than_some_steps_do() -> None:
    grown = toward(100, 10_000, TOKENS, steps=1_000_000)
    assert grown == math.floor(100 * GROWTH**GROWTH_STEPS)


def test_a_small_value_grows_by_one() -> None:
    assert toward(3, 40, Range(1, 64, 64), steps=DWELL_STEPS) == 4


def test_growth_waits_for_the_dwell() -> None:
    assert toward(1000, 2048, TOKENS, steps=DWELL_STEPS - 1) == 1000


def test_small_changes_are_not_made() -> None:
    assert toward(1000, 1000 * (1 + DEAD_BAND / 2), TOKENS, steps=DWELL_STEPS) == 1000
    assert toward(1000, 1000 * (1 - CUT_BAND / 2), TOKENS, steps=DWELL_STEPS) == 1000


def test_what_is_too_much_is_cut_sooner_than_what_is_too_little_grows() -> None:
    assert toward(1000, 1000 * (1 - CUT_BAND * 1.5), TOKENS, steps=DWELL_STEPS) == 910
    assert toward(1000, 1000 * (1 + CUT_BAND * 1.5), TOKENS, steps=DWELL_STEPS) == 1000


def test_the_last_bit_to_the_start_value_is_made_for_then_nothing_is_held_any_more() -> None:
    assert toward(2000, 2048, TOKENS, steps=DWELL_STEPS) == 2048


def test_the_start_value_is_kept_though_no_graph_was_captured_for_it() -> None:
    assert toward(50, math.inf, SIZES, steps=DWELL_STEPS) == 50
    assert toward(49, math.inf, SIZES, steps=DWELL_STEPS) == 50


def test_a_cut_lands_on_a_captured_size() -> None:
    assert toward(50, 31, SIZES, steps=DWELL_STEPS) == 16
    assert toward(50, 32.5, SIZES, steps=DWELL_STEPS) == 32


def test_growth_gets_from_one_captured_size_to_the_next() -> None:
    values = walk(Case(SIZES, 16, 33))
    assert values[:2] == [16, math.floor(16 * GROWTH**DWELL_STEPS)]
    assert 32 * (1 - DEAD_BAND) <= values[-1] <= 32


def test_sizes_outside_the_range_do_not_count() -> None:
    allowed = Range(minimum=10, maximum=64, start=64, sizes=(4, 8))
    assert toward(64, 12.7, allowed, steps=DWELL_STEPS) == 12
    assert toward(64, 2, allowed, steps=DWELL_STEPS) == 10


def test_what_is_no_number_changes_nothing() -> None:
    assert toward(777, math.nan, TOKENS, steps=DWELL_STEPS) == 777


def test_infinity_means_the_end_of_the_range() -> None:
    assert toward(2048, -math.inf, TOKENS, steps=DWELL_STEPS) == 64
    assert walk(Case(TOKENS, 64, math.inf))[-1] == 2048


@pytest.mark.parametrize("dwelt", [True, False])
@given(case=cases())
def test_the_result_is_a_whole_number_in_the_range_and_never_above_the_start(
    case: Case, dwelt: bool
) -> None:
    value = toward(case.current, case.wanted, case.allowed, dwelt)
    assert value == int(value)
    assert case.allowed.minimum <= value <= min(case.allowed.start, case.allowed.maximum)


@given(cases())
def test_growth_is_never_more_than_five_percent_a_step_or_one(case: Case) -> None:
    value = toward(case.current, case.wanted, case.allowed, steps=DWELL_STEPS)
    grown = case.current * GROWTH**DWELL_STEPS
    assert value <= max(grown, case.current + 1)
    assert toward(case.current, case.wanted, case.allowed, steps=DWELL_STEPS - 1) <= case.current


@given(cases())
def test_it_never_moves_away_from_what_is_wanted(case: Case) -> None:
    value = toward(case.current, case.wanted, case.allowed, steps=DWELL_STEPS)
    if value > case.current:
        assert case.wanted > case.current
    if value < case.current and not case.allowed.sizes:
        assert case.wanted < case.current


@given(cases())
def test_it_comes_to_rest_near_what_is_wanted(case: Case) -> None:
    values = walk(case)
    steps = list(pairwise(values))
    assert all(a <= b for a, b in steps) or all(a >= b for a, b in steps)
    if not math.isnan(case.wanted) and not case.allowed.sizes:
        ceiling = min(case.allowed.start, case.allowed.maximum)
        goal = min(max(case.wanted, case.allowed.minimum), ceiling)
        assert abs(values[-1] - goal) <= max(1, DEAD_BAND * values[-1] + 1)


@given(cases())
def test_it_rests_at_a_captured_size_after_a_cut(case: Case) -> None:
    value = toward(case.current, case.wanted, case.allowed, steps=DWELL_STEPS)
    if value < case.current and any(
        case.allowed.minimum <= size <= case.wanted for size in case.allowed.sizes
    ):
        assert value in case.allowed.sizes
