from math import ceil, inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bpf.histogram import (
    EMPTY,
    FIRST_BIT,
    LAST_BIT,
    SLOTS,
    UPPER_BOUNDS_NS,
    Histogram,
    middle_ns,
    slot_of,
    upper_bound_ns,
)

any_ns = st.integers(0, 1 << 40)
in_range_ns = st.integers(1 << FIRST_BIT, 60_000_000_000)


def histogram_of(values_ns: list[int]) -> Histogram:
    slots = [0] * SLOTS
    for value in values_ns:
        slots[slot_of(value)] += 1
    return Histogram(tuple(slots), sum(values_ns))


@given(in_range_ns)
def test_a_slots_middle_is_within_a_sixteenth_of_every_value_from_1_us_to_60_s(value: int) -> None:
    assert abs(middle_ns(slot_of(value)) - value) <= value * 0.0625


@given(any_ns)
def test_a_value_lies_between_the_bounds_of_its_slot(value: int) -> None:
    slot = slot_of(value)
    assert value < upper_bound_ns(slot)
    assert slot == 0 or value >= upper_bound_ns(slot - 1)


@given(any_ns, any_ns)
def test_a_larger_value_never_falls_into_a_lower_slot(one: int, other: int) -> None:
    assert slot_of(min(one, other)) <= slot_of(max(one, other))


@pytest.mark.parametrize("slot", range(SLOTS - 1))
def test_the_bound_between_two_slots_belongs_to_the_upper(slot: int) -> None:
    bound = int(upper_bound_ns(slot))
    assert (slot_of(bound - 1), slot_of(bound)) == (slot, slot + 1)


def test_bounds_rise_and_end_in_infinity() -> None:
    assert list(UPPER_BOUNDS_NS) == sorted(set(UPPER_BOUNDS_NS))
    assert UPPER_BOUNDS_NS[-1] == inf
    assert len(UPPER_BOUNDS_NS) == SLOTS


def test_the_overflow_slot_starts_at_the_last_bound_and_stands_at_its_lower_edge() -> None:
    assert slot_of((1 << LAST_BIT) - 1) == SLOTS - 2
    assert slot_of(1 << LAST_BIT) == slot_of(1 << 63) == SLOTS - 1
    assert middle_ns(SLOTS - 1) == 1 << LAST_BIT


@given(st.lists(any_ns, min_size=1), st.floats(0, 1))
def test_a_quantile_stands_for_the_slot_of_the_exact_one(values: list[int], q: float) -> None:
    exact = sorted(values)[max(1, ceil(q * len(values))) - 1]
    assert histogram_of(values).quantile_ns(q) == middle_ns(slot_of(exact))


def test_nothing_has_no_quantile() -> None:
    assert EMPTY.quantile_ns(0.5) is None


@given(st.lists(any_ns), st.lists(any_ns, min_size=1).map(sorted))
def test_cumulative_counts_are_those_of_the_slots_that_end_at_or_below_the_bound(
    values: list[int], bounds: list[int]
) -> None:
    lower_edges = [UPPER_BOUNDS_NS[slot_of(bound) - 1] if slot_of(bound) else 0 for bound in bounds]
    expected = [sum(value < edge for value in values) for edge in lower_edges]
    assert histogram_of(values).cumulative(bounds) == expected


@given(st.lists(any_ns))
def test_cumulative_counts_rise_to_the_count_without_the_overflow(values: list[int]) -> None:
    histogram = histogram_of(values)
    counts = histogram.cumulative([int(bound) for bound in UPPER_BOUNDS_NS[:-1]])
    assert counts == sorted(counts)
    assert counts[-1] + histogram.slots[-1] == histogram.count == len(values)


@given(st.lists(any_ns), st.lists(any_ns))
def test_since_is_what_was_counted_in_between(before: list[int], after: list[int]) -> None:
    assert histogram_of(before + after).since(histogram_of(before)) == histogram_of(after)
