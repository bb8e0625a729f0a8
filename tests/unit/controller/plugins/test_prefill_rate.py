import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.plugins.prefill_rate import PrefillRate

MS = 1_000_000
steps = st.lists(
    st.tuples(st.integers(0, 10_000), st.integers(1, 500 * MS)), min_size=1, max_size=50
)


def test_nothing_is_known_before_prompts_waited() -> None:
    rate = PrefillRate()
    assert math.isnan(rate.tokens_per_s)
    rate.take(100, 0)
    assert math.isnan(rate.tokens_per_s)


def test_steps_of_one_rate_give_that_rate_however_long_they_are() -> None:
    rate = PrefillRate()
    for step_ms in (5, 50, 1, 200):
        rate.take(3 * step_ms, step_ms * MS)
        assert rate.tokens_per_s == pytest.approx(3000)


def test_what_waits_for_a_slot_is_served_no_faster() -> None:
    rate = PrefillRate(window_ns=1e12)
    rate.take(100, 50 * MS)
    rate.take(0, 50 * MS)
    assert rate.tokens_per_s == pytest.approx(1000, rel=0.01)


def test_an_old_rate_is_forgotten_within_the_window() -> None:
    rate = PrefillRate(window_ns=1e9)
    for tokens in (100, 1000):
        for _ in range(100):
            rate.take(tokens, 100 * MS)
    assert rate.tokens_per_s == pytest.approx(10_000, rel=0.01)


@given(steps)
def test_it_is_never_outside_what_was_measured(steps: list[tuple[int, int]]) -> None:
    rate = PrefillRate()
    rates = []
    for tokens, took_ns in steps:
        rate.take(tokens, took_ns)
        rates.append(tokens / took_ns * 1e9)
        assert min(rates) * 0.999 <= rate.tokens_per_s <= max(rates) * 1.001
