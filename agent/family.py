"""A process and all that it started, without a look at every other process of the machine.

The kernel lists each thread's children in /proc/PID/task/TID/children (proc(5); since 3.5, where
it is built with CONFIG_PROC_CHILDREN). A kernel without that is asked the long way, by psutil.
"""

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

import psutil

from agent.cgroup_trees import read_whole

PROC: Final = Path("/proc")


def family_of(pid: int, proc: Path = PROC) -> frozenset[int]:
    """The process ids of `pid` and of everything below it; of one that is gone, none."""
    if not (proc / f"{pid}/task/{pid}/children").is_file():
        return _by_psutil(pid)
    found: set[int] = set()
    unseen = [pid]
    while unseen:
        each = unseen.pop()
        if each not in found:
            found.add(each)
            unseen += _children(f"{proc}/{each}/task")
    return frozenset(found)


def _children(tasks: str) -> list[int]:
    """What the threads of a process started; nothing once it is gone."""
    found: list[int] = []
    with suppress(OSError):
        for task in os.listdir(tasks):  # noqa: PTH208 - names only
            found += map(int, read_whole(f"{tasks}/{task}/children").split())
    return found


def _by_psutil(pid: int) -> frozenset[int]:
    try:
        below = psutil.Process(pid).children(recursive=True)
    except psutil.Error:
        return frozenset()
    return frozenset({pid, *(child.pid for child in below)})
