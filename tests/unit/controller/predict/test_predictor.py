import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.predict.predictor import LARGEST_RATIO, MOST, RunningMean

values = st.floats(0, MOST)


def test_the_first_values_count_in_full() -> None:
    mean = RunningMean()
    for value in (10, 20, 30):
        mean.observe(value)
    assert mean.value == pytest.approx(20, rel=0.01)


def test_before_anything_came_all_is_nothing() -> None:
    mean = RunningMean()
    assert mean.compress(5.0) == 0.0
    assert mean.expand(1.0) == 0.0


@given(st.lists(values, min_size=1, max_size=300))
def test_what_was_seen_compresses_to_a_small_number_and_expands_again(seen: list[float]) -> None:
    mean = RunningMean()
    for value in seen:
        mean.observe(value)
        small = mean.compress(value)
        assert 0 <= small <= math.log1p(LARGEST_RATIO) + 1e-9
        assert mean.expand(small) == pytest.approx(value, rel=1e-6, abs=1e-300)


@given(st.lists(values, min_size=1, max_size=50), st.floats(-1e9, 1e9))
def test_no_expanded_value_is_below_zero_or_out_of_proportion(
    seen: list[float], compressed: float
) -> None:
    mean = RunningMean()
    for value in seen:
        mean.observe(value)
    assert 0 <= mean.expand(compressed) <= mean.value * LARGEST_RATIO * (1 + 1e-9)
