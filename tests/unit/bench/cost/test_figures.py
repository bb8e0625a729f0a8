from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.bench.cost.figures import Figure, alternate, ratios, rounded, slowdowns

VALUES = st.lists(st.floats(0.001, 1e9), min_size=1, max_size=9)


@given(VALUES)
def test_a_median_lies_between_the_least_and_the_largest_run(values: list[float]) -> None:
    figure = Figure(tuple(values))
    assert (figure.low, figure.high) == (min(values), max(values))
    assert figure.median is not None
    assert min(values) <= figure.median <= max(values)


def test_one_run_that_went_wrong_does_not_move_the_median() -> None:
    assert Figure((1.0, 1.1, 50.0, 1.2, 0.9)).median == 1.1


def test_what_was_not_measured_has_neither_median_nor_spread() -> None:
    figure = Figure(note="no such hardware")
    assert (figure.median, figure.low, figure.high) == (None, None, None)


def test_every_other_round_runs_in_the_opposite_order() -> None:
    ran: list[str] = []

    def turn(name: str) -> int:
        ran.append(name)
        return len(ran)

    found = alternate(3, {name: partial(turn, name) for name in ("a", "b", "c")})
    assert "".join(ran) == "abccbaabc"
    assert found == {"a": [1, 6, 7], "b": [2, 5, 8], "c": [3, 4, 9]}


@given(VALUES, st.floats(1.0, 100.0))
def test_a_machine_that_is_slower_in_a_round_cancels_in_its_ratio(
    values: list[float], factor: float
) -> None:
    found = ratios([value * factor for value in values], values)
    assert found == pytest.approx([factor] * len(values))
    assert slowdowns([value * factor for value in values], values) == pytest.approx(
        [factor - 1] * len(values)
    )


@pytest.mark.parametrize(("value", "told"), [(123456.0, 123500.0), (0.0123456, 0.01235), (0, 0)])
def test_a_figure_is_told_to_four_digits(value: float, told: float) -> None:
    assert rounded(value) == told
