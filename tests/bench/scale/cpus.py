"""Possible CPUs, simulated for the readers: what reading costs, and whether the sums are right.

The maps are files in memory of the size that the kernel would map, filled by each CPU. What the
programs do does not depend on the number: each writes to its own CPU's row.
"""

import mmap
import os
import time
from collections.abc import Callable
from contextlib import closing
from random import Random
from typing import Final

from bpf.histogram import SLOTS
from bpf.layout import COUNTERS, HEALTH, HISTOGRAM, MAX_ROLES, ROLE, Counters
from bpf.readers import CounterReader, parse_histogram
from tests.bench.ground import Part
from tests.gate.hot import memory_file

TARGETS: Final = 200
TIMES: Final = 20
FIELDS: Final = len(Counters._fields)


def measure(cpus: int, targets: int = TARGETS) -> Part:
    """What it takes to read with so many possible CPUs; `wrong` fields were summed otherwise."""
    random = Random(cpus)
    counted = [[random.randrange(1 << 40) for _ in range(FIELDS)] for _ in range(cpus)]
    histogram = [[random.randrange(1 << 30) for _ in range(1 + SLOTS)] for _ in range(cpus)]
    raw = b"".join(HISTOGRAM.pack(*each, *[0] * 5) for each in histogram)
    counters_fd = memory_file("counters", targets * cpus * COUNTERS.size)
    health_fd = memory_file("health", cpus * HEALTH.size)
    try:
        with mmap.mmap(counters_fd, os.fstat(counters_fd).st_size) as counters:
            for row in range(targets):
                for cpu, values in enumerate(counted):
                    COUNTERS.pack_into(counters, (row * cpus + cpu) * COUNTERS.size, *values)
        with closing(CounterReader(counters_fd, health_fd, targets, cpus)) as reader:
            sums = [sum(values) for values in zip(*counted, strict=True)]
            read = list(reader.counters(1))
            found = {
                "cpus": cpus,
                "wrong": sum(a != b for a, b in zip(sums, read, strict=True))
                + (reader.run_ns(1) != sums[0])
                + (parse_histogram(raw).count != sum(sum(each[1:]) for each in histogram)),
                "counters_us": quickest_us(lambda: reader.counters(1)),
                "run_us": quickest_us(lambda: reader.run_ns(1)),
                "histogram_us": quickest_us(lambda: parse_histogram(raw)),
                "run_of_200_ms": quickest_us(lambda: [reader.run_ns(row) for row in range(targets)])
                / 1e3,
            }
    finally:
        for fd in (counters_fd, health_fd):
            os.close(fd)
    return found | {"maps_mb": round(maps_bytes(cpus, targets) / 1e6, 2)}


def maps_bytes(cpus: int, targets: int) -> int:
    """What the maps take that have a value for each CPU: of targets, of ourselves, of roles."""
    a_target = COUNTERS.size + 3 * HISTOGRAM.size
    return cpus * (targets * a_target + HEALTH.size + MAX_ROLES * ROLE.size)


def quickest_us(work: Callable[[], object]) -> float:
    """Of some times: what else runs only adds."""
    taken = []
    for _ in range(TIMES):
        began_ns = time.perf_counter_ns()
        work()
        taken.append(time.perf_counter_ns() - began_ns)
    return round(min(taken) / 1e3, 2)
