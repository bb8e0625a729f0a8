"""Two histograms are brought to the same buckets."""

import pytest

from bpf.histogram import SLOTS, Histogram, slot_of
from tests.bench.run_queue import BUCKETS, by_power_of_two, parse, worst_difference

TEXT = """
     usecs               : count    distribution
         0 -> 1          : 5        |****    |
         2 -> 3          : 0        |        |
      1024 -> 2047       : 7        |********|
"""


def histogram(*values_ns: int) -> Histogram:
    slots = [0] * SLOTS
    for value in values_ns:
        slots[slot_of(value)] += 1
    return Histogram(tuple(slots), sum(values_ns))


def test_runqlats_buckets_are_read() -> None:
    assert parse(TEXT) == [5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7, *[0] * (BUCKETS - 11)]


def test_a_wait_well_inside_a_bucket_falls_into_it_whole() -> None:
    found = by_power_of_two(histogram(500, 3_000, 1_500_000))
    assert (found[0], found[1], found[10]) == (1, 1, 1)


def test_a_slot_that_a_bound_divides_is_divided() -> None:
    found = by_power_of_two(histogram(1_950))  # in the slot from 1920 to 2048
    assert found[0] == pytest.approx(80 / 128)
    assert sum(found) == pytest.approx(1)


def test_no_wait_is_lost() -> None:
    assert sum(by_power_of_two(histogram(*(7**n for n in range(15))))) == pytest.approx(15)


def test_the_worst_difference_is_of_shares() -> None:
    assert worst_difference([50.0, 50.0], [400, 600]) == pytest.approx(0.1)


def test_nothing_counted_is_the_worst_there_is() -> None:
    assert worst_difference([0.0], [5]) == 1
