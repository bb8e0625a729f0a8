"""Reads what the kernel counted.

Counters and health are mapped into the process: reading them makes no system call, which is what
the fast loop needs. Histograms and culprits take one system call each and are for scrapes.
"""

import mmap
from dataclasses import dataclass
from typing import Final

from bpf.histogram import SLOTS, Histogram
from bpf.layout import (
    COUNTERS,
    CULPRIT,
    CULPRIT_KEY,
    HEALTH,
    HISTOGRAM,
    MAX_ROLES,
    ROLE,
    ROLE_KEY,
    Counters,
    Health,
)
from bpf.libbpf import Libbpf, Map

_WORD_BYTES: Final = 8
_ROLE_FIELDS: Final = 5


def _mapped(fd: int, length: int) -> mmap.mmap:
    pages = -(-length // mmap.PAGESIZE)
    return mmap.mmap(fd, pages * mmap.PAGESIZE, mmap.MAP_SHARED, mmap.PROT_READ)


def _over_cpus(words: memoryview, row: int, cpus: int, struct_bytes: int, field: int = 0) -> int:
    """One field of a row that has a struct for each CPU, summed."""
    step = struct_bytes // _WORD_BYTES
    start = row * cpus * step + field
    return sum(words[start : start + cpus * step - field : step])


class CounterReader:
    """The targets' counters and our own health, summed over possible CPUs."""

    def __init__(self, counters_fd: int, health_fd: int, max_targets: int, cpus: int) -> None:
        """Map both arrays; `OSError` if they can't be."""
        self._cpus = cpus
        self._stride = cpus * COUNTERS.size
        self._counters = _mapped(counters_fd, max_targets * cpus * COUNTERS.size)
        self._health = _mapped(health_fd, cpus * HEALTH.size)

    def counters(self, row: int) -> Counters:
        """What the target in `row` did so far."""
        rows = COUNTERS.iter_unpack(self._counters[row * self._stride : (row + 1) * self._stride])
        return Counters._make(next(rows) if self._cpus == 1 else map(sum, zip(*rows, strict=True)))

    def run_ns(self, row: int) -> int:
        """How long it ran so far: all that is read of neighbours at every tick.

        With 256 CPUs it takes a fiftieth of the time of `counters`.
        """
        with memoryview(self._counters) as view, view.cast("Q") as words:
            return _over_cpus(words, row, self._cpus, COUNTERS.size)

    def health(self) -> Health:
        """What our own limits cost so far."""
        rows = [
            HEALTH.unpack_from(self._health, cpu * HEALTH.size)[: len(Health.__slots__)]
            for cpu in range(self._cpus)
        ]
        return Health(*map(sum, zip(*rows, strict=True)))

    def close(self) -> None:
        """Unmap both."""
        self._counters.close()
        self._health.close()


def parse_histogram(raw: bytes) -> Histogram:
    """A value of a per-CPU histogram map, summed over CPUs."""
    totals = [sum(column) for column in zip(*HISTOGRAM.iter_unpack(raw), strict=True)]
    return Histogram(tuple(totals[1 : 1 + SLOTS]), totals[0])


class HistogramReader:
    """One per-CPU histogram map."""

    def __init__(self, lib: Libbpf, fd: int, cpus: int) -> None:
        """`cpus` is the number of possible CPUs: what one look-up returns slices for."""
        self._map = Map(lib, fd, HISTOGRAM.size * cpus)

    def read(self, row: int) -> Histogram:
        """The histogram of the target in `row`, summed over CPUs."""
        raw = self._map.get(row.to_bytes(4, "little"))
        if raw is None:
            raise IndexError(row)
        return parse_histogram(raw)


@dataclass(frozen=True, slots=True)
class Role:
    """What the threads of one name did for the target in `row`, over all CPUs; it only grows."""

    row: int
    name: str
    run_ns: int
    wait_ns: int
    waits: int
    wait_other_ns: int
    involuntary: int


class RoleReader:
    """Threads by name, mapped like the counters."""

    def __init__(self, names: Map, roles_fd: int, cpus: int) -> None:
        """`names` tells whose each row is."""
        self._names = names
        self._cpus = cpus
        self._roles = _mapped(roles_fd, MAX_ROLES * cpus * ROLE.size)

    def read(self) -> list[Role]:
        """Every role there is."""
        found = []
        with memoryview(self._roles) as view, view.cast("Q") as words:
            for key, value in self._names.items():
                row, comm = ROLE_KEY.unpack(value)
                at = int.from_bytes(key, "little")
                sums = [
                    _over_cpus(words, at, self._cpus, ROLE.size, field)
                    for field in range(_ROLE_FIELDS)
                ]
                name = comm.split(b"\0")[0].decode(errors="backslashreplace")
                found.append(Role(row, name, *sums))
        return found

    def close(self) -> None:
        """Unmap."""
        self._roles.close()


@dataclass(frozen=True, slots=True)
class Culprit:
    """A cgroup whose tasks held the CPU while a task of the target in `row` waited.

    `cgroup` is an id in the hierarchy that rules the CPU; `command` is its task
    that held the CPU for the longest of these waits.
    """

    row: int
    cgroup: int
    wait_ns: int
    waits: int
    command: str


def read_culprits(culprits: Map) -> list[Culprit]:
    """All culprits the kernel remembers, the worst first."""
    found = []
    for key, value in culprits.items():
        cgroup, row, _ = CULPRIT_KEY.unpack(key)
        wait_ns, waits, _, command = CULPRIT.unpack(value)
        text = command.split(b"\0")[0].decode(errors="backslashreplace")
        found.append(Culprit(row, cgroup, wait_ns, waits, text))
    return sorted(found, key=lambda culprit: -culprit.wait_ns)
