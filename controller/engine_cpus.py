"""Which CPUs an engine may use: by its cgroup's cpuset, or by the affinity of its processes."""

import os
from pathlib import Path

from controller.limits.cgroup import Group

CPUSET = "cpuset.cpus.effective"


def cpus_of(group: Group | None) -> frozenset[int]:
    """The CPUs that the first process of a cgroup may run on; all of ours where that is not known.

    An affinity lies within the cpuset, so it says more than that does.
    """
    if group is not None:
        try:
            text = Path(group.directory, "cgroup.procs").read_text()
            first = text.split()[0]
            return frozenset(os.sched_getaffinity(int(first)))
        except (OSError, IndexError, ValueError):
            pass
        try:
            return parse_cpus(Path(group.directory, CPUSET).read_text())
        except (OSError, ValueError):
            pass
    return frozenset(range(os.cpu_count() or 1))


def parse_cpus(text: str) -> frozenset[int]:
    """A CPU list such as "0-2,5" (cpuset(7), list format); `ValueError` if it is not one."""
    found: set[int] = set()
    for part in text.strip().split(","):
        first, dash, last = part.partition("-")
        found.update(range(int(first), int(last if dash else first) + 1))
    return frozenset(found)
