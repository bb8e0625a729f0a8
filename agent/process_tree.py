"""Who started whom, of all processes at one moment."""

import os
from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from agent.cgroup_trees import read_whole

PROC: Final = Path("/proc")


class ProcessTree:
    """All processes of one look, read when they are first asked for: each is a file to open."""

    def __init__(self, proc: Path = PROC) -> None:
        self._proc = proc
        self._children: Mapping[int, list[int]] | None = None
        self._there: frozenset[int] = frozenset()

    def next_look(self) -> None:
        """What is asked from now on is read anew."""
        self._children = None

    def with_children(self, pids: Iterable[int]) -> frozenset[int]:
        """These processes, if they are there, and all they started."""
        if self._children is None:
            parents = read_parents(self._proc)
            self._there, self._children = frozenset(parents), children_of(parents)
        found: set[int] = set()
        todo = [pid for pid in pids if pid in self._there]
        while todo:
            pid = todo.pop()
            if pid not in found:
                found.add(pid)
                todo += self._children.get(pid, ())
        return frozenset(found)


def children_of(parents: Mapping[int, int]) -> Mapping[int, list[int]]:
    """The children of each process that has any."""
    children = defaultdict(list)
    for pid, parent in parents.items():
        children[parent].append(pid)
    return children


def read_parents(proc: Path = PROC) -> dict[int, int]:
    """The parent of each process there is; one that is just going away is left out."""
    found = {}
    for name in os.listdir(proc):  # noqa: PTH208 - a thousand paths would be made only to be named
        if name.isdigit():
            with suppress(OSError, ValueError):
                found[int(name)] = parent_in(read_whole(f"{proc}/{name}/stat"))
    return found


def parent_in(stat: bytes) -> int:
    """The parent in a /proc/PID/stat (proc_pid_stat(5)); a command's name may hold anything."""
    return int(stat[stat.rindex(b")") + 1 :].split()[1])
