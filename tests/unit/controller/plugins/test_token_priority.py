import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.plugins.token_priority import (
    aged_priority,
    decode_sensitivity,
    prefill_sensitivity,
    written_priority,
)

waits_ms = st.floats(0.001, 1e6)
sensitivities = st.floats(0, 1)


@pytest.mark.parametrize(("position", "sensitivity"), [(0, 1.0), (1, 0.5), (9, 0.1)])
def test_a_prompt_s_first_token_is_felt_most(position: int, sensitivity: float) -> None:
    assert prefill_sensitivity(position) == pytest.approx(sensitivity)


@pytest.mark.parametrize(
    ("position", "length", "sensitivity"), [(16, 16, 1.0), (15, 16, 0.8), (6, 16, 0.107374)]
)
def test_a_generated_token_is_felt_more_toward_the_end(
    position: int, length: int, sensitivity: float
) -> None:
    assert decode_sensitivity(position, length) == pytest.approx(sensitivity, rel=1e-4)


def test_the_written_priority_is_the_text_s() -> None:
    assert written_priority(0.5, 20, alpha=2, beta=10) == pytest.approx(1.5)


@given(sensitivities, waits_ms, waits_ms)
def test_the_written_priority_puts_the_last_to_come_first(
    sensitivity: float, one_ms: float, other_ms: float
) -> None:
    short, long = sorted((one_ms, other_ms))
    assert written_priority(sensitivity, short) >= written_priority(sensitivity, long)


@given(sensitivities, sensitivities, waits_ms, st.floats(1, 1e5))
def test_with_ageing_whoever_waited_a_bound_longer_is_first(
    one: float, other: float, wait_ms: float, bound_ms: float
) -> None:
    longer = aged_priority(one, wait_ms + 1.001 * bound_ms, bound_ms)
    assert longer > aged_priority(other, wait_ms, bound_ms)
