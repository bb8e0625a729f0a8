import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.trim import HIGHEST, LOWEST, START, Trim, trim

AT_THE_TOP = Trim(HIGHEST, HIGHEST - START)

states = st.builds(
    Trim, st.floats(LOWEST, HIGHEST), st.floats(LOWEST - START - 0.1, HIGHEST - START + 0.1)
)
counts = st.integers(-5, 1_000_000)
shares = st.floats(0, 1)


def after(state: Trim, violations: int, chunks: int, seconds: int, share: float = 0.99) -> Trim:
    for _ in range(seconds):
        state = trim(state, violations, chunks, share, 1.0)
    return state


def test_it_starts_at_085() -> None:
    assert Trim().margin == 0.85


def test_without_violations_the_margin_grows_to_the_top_and_stays() -> None:
    assert START < after(Trim(), 0, 1000, 5).margin < HIGHEST
    assert after(Trim(), 0, 1000, 60).margin == HIGHEST


def test_with_many_violations_it_falls_to_the_bottom_within_seconds() -> None:
    assert after(Trim(), 100, 1000, 10).margin == LOWEST


def test_it_falls_faster_than_it_grows() -> None:
    grown = after(Trim(), 0, 1000, 3).margin - START
    fallen = START - after(Trim(), 100, 1000, 3).margin
    assert fallen > 3 * grown


def test_as_many_violations_as_allowed_change_nothing() -> None:
    assert after(Trim(), 10, 1000, 100).margin == pytest.approx(START)


def test_without_traffic_nothing_changes() -> None:
    state = after(Trim(), 30, 1000, 4)
    assert after(state, 0, 0, 1000) == state


def test_a_few_chunks_move_it_little() -> None:
    one_late_of_ten = trim(Trim(), 1, 10, 0.99, 1.0).margin
    all_late_of_many = trim(Trim(), 1000, 1000, 0.99, 1.0).margin
    assert START - one_late_of_ten < (START - all_late_of_many) / 4
    assert abs(trim(Trim(), 0, 1, 0.99, 1.0).margin - START) < 0.001


def test_the_integral_is_frozen_at_the_top_so_that_the_first_violations_tell_at_once() -> None:
    early = after(Trim(), 0, 1000, 60)
    late = after(Trim(), 0, 1000, 6000)
    assert late == early
    assert trim(late, 100, 1000, 0.99, 1.0).margin < HIGHEST - 0.02


def test_the_integral_is_frozen_at_the_bottom_so_that_recovery_starts_at_once() -> None:
    early = after(Trim(), 500, 1000, 60)
    late = after(Trim(), 500, 1000, 6000)
    assert late == early
    assert trim(late, 0, 1000, 0.99, 1.0).margin > LOWEST


def test_when_no_violation_is_allowed_it_never_grows_and_falls_at_the_first() -> None:
    assert after(Trim(), 0, 1000, 100, share=1.0).margin == START
    assert trim(Trim(), 1, 1000, 1.0, 1.0).margin < START


def test_a_jump_of_the_clock_counts_as_seconds_only() -> None:
    assert trim(Trim(), 20, 1000, 0.99, 1e9) == trim(Trim(), 20, 1000, 0.99, 5.0)


@pytest.mark.parametrize("dt_s", [0.0, -1.0, math.nan])
def test_time_that_does_not_pass_changes_nothing(dt_s: float) -> None:
    assert trim(AT_THE_TOP, 100, 1000, 0.99, dt_s) == AT_THE_TOP


@given(states, counts, counts, shares, st.floats(0.001, 100))
def test_it_never_leaves_its_range(
    state: Trim, violations: int, chunks: int, share: float, dt_s: float
) -> None:
    for _ in range(3):
        state = trim(state, violations, chunks, share, dt_s)
        assert LOWEST <= state.margin <= HIGHEST
        assert math.isfinite(state.integral)


@given(states, st.integers(0, 1000), st.integers(0, 1000), shares)
def test_more_violations_never_give_a_larger_margin(
    state: Trim, fewer: int, more: int, share: float
) -> None:
    fewer, more = sorted((fewer, more))
    after_more = trim(state, more, 1000, share, 1.0)
    assert after_more.margin <= trim(state, fewer, 1000, share, 1.0).margin


@pytest.mark.parametrize(("spread", "expected"), [(0.02, 0.95), (0.06, 0.88), (0.2, 0.70)])
def test_on_an_engine_with_noisy_steps_it_settles_where_the_slo_holds(
    spread: float, expected: float
) -> None:
    # gaps are m·SLO times a normal factor: the rate is 1% where m = 1 / (1 + 2.33·spread)
    chance = random.Random(1)
    state = Trim()
    margins = []
    for second in range(400):
        gaps = [state.margin * chance.gauss(1, spread) for _ in range(300)]
        state = trim(state, sum(gap > 1 for gap in gaps), len(gaps), 0.99, 1.0)
        if second >= 200:
            margins.append(state.margin)
    assert sum(margins) / len(margins) == pytest.approx(expected, abs=0.02)
    assert max(margins) - min(margins) < 0.08


def test_without_pressure_the_margin_only_shrinks() -> None:
    assert trim(Trim(), 0, 10_000, 0.99, 1.0, pressed=False) == Trim()
    assert trim(Trim(), 900, 10_000, 0.99, 1.0, pressed=False).margin < START
