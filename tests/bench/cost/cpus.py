"""Who runs where: the load has one CPU, whoever watches it the others."""

import os
from collections.abc import Iterator, Set
from contextlib import contextmanager


def divided() -> tuple[int, frozenset[int]]:
    """The load's CPU and the others; on a machine with one they are the same."""
    *others, last = sorted(os.sched_getaffinity(0))
    return last, frozenset(others or (last,))


@contextmanager
def keeping_to(cpus: Set[int]) -> Iterator[None]:
    """This process and what it starts keep to these CPUs meanwhile."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cpus)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
