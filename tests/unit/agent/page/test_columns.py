import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.history import Moment
from agent.page.columns import (
    GAP_BOUNDS_MS,
    KEPT,
    MAX_ENGINES,
    STEP_S,
    TTFT_BOUNDS_MS,
    Columns,
    counts,
)
from bpf.histogram import EMPTY
from bpf.layout import Counters
from tests.unit.agent.made import MS, histogram

S = 1_000_000_000


def moment(at_s: float, *gaps_ms: float, **fields: int) -> Moment:
    gap = histogram(*(round(each * MS) for each in gaps_ms)) if gaps_ms else EMPTY
    return Moment(
        round(at_s * S),
        Counters(chunks=len(gaps_ms)),
        {"batch": fields.get("batch_ms", 0) * MS},
        EMPTY,
        gap,
        ended=fields.get("ended", 0),
        good=fields.get("good", 0),
    )


def test_a_column_is_what_happened_between_the_ends_of_two_steps() -> None:
    columns = Columns()
    columns.take("chat", moment(1, 10, ended=2, good=2), None)
    columns.take("chat", moment(3, 10, 10, ended=3, good=2), None)
    columns.take("chat", moment(6, 10, 10, 10, ended=4, good=3, batch_ms=500), None)
    (column,) = columns.after("chat", -1)
    assert (column.number, column.ended, column.good, column.risk) == (0, 2, 1, {"batch": 0.1})
    assert [count for _, count in column.gap] == [2]


def test_knobs_and_load_are_those_of_the_columns_end() -> None:
    columns = Columns()
    columns.take("chat", moment(4), None)
    columns.take(
        "chat",
        moment(5),
        {
            "knobs": {"max_running": {"value": 8}},
            "cpu_weight": {"value": 1000, "base": 100},
            "now": {"running": 3, "waiting": 1},
        },
    )
    (column,) = columns.after("chat", -1)
    assert column.knobs == {"max_running": 8, "cpu_weight": 1000}
    assert (column.running, column.waiting) == (3, 1)


def test_an_engine_that_counts_anew_makes_no_column_of_what_was_before() -> None:
    columns = Columns()
    columns.take("chat", moment(1, 10, 10), None)
    columns.take("chat", moment(6, 10), None)
    columns.take("chat", moment(11, 10, 10), None)
    assert [(each.number, each.gap[0][1]) for each in columns.after("chat", -1)] == [(1, 1)]


def test_only_newer_columns_are_told() -> None:
    columns = Columns()
    for step in range(5):
        columns.take("chat", moment(step * STEP_S), None)
    assert [each.number for each in columns.after("chat", 1)] == [2, 3]
    assert columns.after("other", -1) == []


def test_no_more_than_half_an_hour_is_kept() -> None:
    columns = Columns()
    for step in range(KEPT + 10):
        columns.take("chat", moment(step * STEP_S), None)
    assert len(columns.after("chat", -1)) == KEPT
    assert KEPT * STEP_S == 1800


def test_more_engines_than_there_is_room_for_have_no_columns() -> None:
    columns = Columns()
    for step in range(2):
        for engine in range(MAX_ENGINES + 1):
            columns.take(f"e{engine}", moment(step * STEP_S), None)
    assert columns.after(f"e{MAX_ENGINES - 1}", -1)
    assert columns.after(f"e{MAX_ENGINES}", -1) == []


def test_engines_that_left_the_policy_are_forgotten() -> None:
    columns = Columns()
    for step in range(2):
        columns.take("chat", moment(step * STEP_S), None)
    columns.keep({"other"})
    assert columns.after("chat", -1) == []


@pytest.mark.parametrize("bounds", [TTFT_BOUNDS_MS, GAP_BOUNDS_MS])
def test_bounds_are_half_octaves(bounds: tuple[float, ...]) -> None:
    assert all(high / low == pytest.approx(2**0.5) for low, high in itertools.pairwise(bounds))


@given(st.lists(st.integers(1, 2**37)))
def test_every_value_is_in_one_bucket_that_is_its_own_or_the_next(values_ns: list[int]) -> None:
    found = counts(histogram(*values_ns), TTFT_BOUNDS_MS)
    assert sum(count for _, count in found) == len(values_ns)
    for value in values_ns:
        # a kernel bucket that a bound cuts goes to the bucket above it
        fits = sum(bound * 1e6 < value for bound in TTFT_BOUNDS_MS)
        assert {fits, fits + 1} & {bucket for bucket, _ in found}
