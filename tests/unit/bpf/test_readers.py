import mmap
import os
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

from bpf.histogram import SLOTS
from bpf.layout import COUNTERS, HEALTH, HISTOGRAM, Counters, Health
from bpf.readers import CounterReader, parse_histogram

ROWS = 3
FIELDS = len(Counters._fields)
MOST = (1 << 64) - 1


def file_of(data: bytes) -> int:
    """A file in memory, of whole pages as the kernel's maps are."""
    fd = os.memfd_create("map")
    os.truncate(fd, -(-len(data) // mmap.PAGESIZE) * mmap.PAGESIZE)
    os.pwrite(fd, data, 0)
    return fd


@contextmanager
def reader_of(rows: list[list[tuple[int, ...]]]) -> Iterator[CounterReader]:
    """A reader of these counters, by row and CPU, and of a health that counts CPUs from 1."""
    cpus = len(rows[0])
    counters = b"".join(COUNTERS.pack(*values) for row in rows for values in row)
    health = b"".join(HEALTH.pack(*[cpu + 1] * 8) for cpu in range(cpus))
    fds = file_of(counters), file_of(health)
    try:
        with closing(CounterReader(*fds, len(rows), cpus)) as reader:
            yield reader
    finally:
        for fd in fds:
            os.close(fd)


def values(row: int, cpu: int) -> tuple[int, ...]:
    return tuple(10_000 * row + 100 * cpu + field for field in range(FIELDS))


@pytest.mark.parametrize("cpus", [1, 2, 7, 256])
def test_a_rows_counters_are_summed_over_its_own_cpus(cpus: int) -> None:
    rows = [[values(row, cpu) for cpu in range(cpus)] for row in range(ROWS)]
    with reader_of(rows) as reader:
        for row in range(ROWS):
            expected = Counters(*map(sum, zip(*rows[row], strict=True)))
            assert reader.counters(row) == expected
            assert reader.run_ns(row) == expected.run_ns


def test_a_sum_may_be_larger_than_any_part_of_it() -> None:
    with reader_of([[(MOST,) * FIELDS, (MOST,) * FIELDS]]) as reader:
        assert reader.counters(0) == Counters(*[2 * MOST] * FIELDS)
        assert reader.run_ns(0) == 2 * MOST


def test_our_own_health_is_summed_over_cpus() -> None:
    with reader_of([[values(0, cpu) for cpu in range(4)]]) as reader:
        assert reader.health() == Health(*[1 + 2 + 3 + 4] * len(Health.__slots__))


def test_what_is_counted_later_is_read_later() -> None:
    fds = file_of(bytes(COUNTERS.size)), file_of(bytes(HEALTH.size))
    with closing(CounterReader(*fds, 1, 1)) as reader:
        assert reader.counters(0) == Counters()
        os.pwrite(fds[0], COUNTERS.pack(*values(0, 1)), 0)
        assert reader.counters(0) == Counters(*values(0, 1))
        assert reader.run_ns(0) == values(0, 1)[0]
    for fd in fds:
        os.close(fd)


def test_a_histogram_is_summed_over_cpus_slot_by_slot() -> None:
    cpus = [[1000 * cpu, *range(cpu, cpu + SLOTS)] for cpu in range(3)]
    found = parse_histogram(b"".join(HISTOGRAM.pack(*each, *[0] * 5) for each in cpus))
    assert found.sum_ns == 3000
    assert list(found.slots) == [3 * slot + 3 for slot in range(SLOTS)]


def test_what_came_between_two_readings_is_told_field_by_field() -> None:
    earlier, later = Counters(*range(FIELDS)), Counters(*(3 * n + 1 for n in range(FIELDS)))
    assert later.since(earlier) == Counters(*(2 * n + 1 for n in range(FIELDS)))
