"""Cgroups with all below them: their directories, ids and processes, read once a look.

A node may have a thousand cgroups to look at every second. So paths are plain strings here, and no
more is asked of the kernel than will do: a directory with two links has no other below it.
"""

import os
from collections.abc import Iterable
from contextlib import suppress
from typing import Final

from controller.limits.cgroup import Mount

Tree = tuple[tuple[str, int], ...]
"""Directories with their cgroup ids, parents before what is below them; empty if there is none."""

_LEAF_LINKS: Final = 2
"""A directory's links are its two own and one of each directory in it (fs/kernfs/inode.c)."""


class CgroupTrees:
    """What was found of these hierarchies in one look; what can't be read is left out."""

    def __init__(self, mounts: Iterable[Mount | None]) -> None:
        """Nothing is read yet."""
        self._mounts = tuple(mount for mount in mounts if mount is not None)
        self._trees: dict[tuple[str, str], Tree] = {}
        self._members: dict[str, frozenset[int]] = {}

    def next_look(self) -> None:
        """What is asked from now on is read anew."""
        self._trees.clear()
        self._members.clear()

    def tree(self, mount: Mount, path: str) -> Tree:
        """A cgroup in one hierarchy, and all below it."""
        top = directory_of(mount, path)
        if top is None:
            return ()
        key = str(mount.point), path
        if key not in self._trees:
            self._trees[key] = tuple(walk(top))
        return self._trees[key]

    def ids(self, mount: Mount, path: str) -> frozenset[int]:
        """The ids of a cgroup and all below it."""
        return frozenset(cgroup_id for _, cgroup_id in self.tree(mount, path))

    def members(self, path: str) -> frozenset[int]:
        """The processes in a cgroup and below it, in whichever hierarchy it exists."""
        if path not in self._members:
            pids: set[int] = set()
            for mount in self._mounts:
                for directory, _ in self.tree(mount, path):
                    with suppress(OSError):
                        pids.update(map(int, read_whole(f"{directory}/cgroup.procs").split()))
            self._members[path] = frozenset(pids)
        return self._members[path]


def read_whole(path: str) -> bytes:
    """A file of /proc or of a cgroup; `OSError` if it can't be read."""
    with open(path, "rb", 0) as file:  # noqa: PTH123 - a Path takes as long as the reading
        return file.readall()


def directory_of(mount: Mount, path: str) -> str | None:
    """The directory of a cgroup, as `Mount.directory`; None if this mount does not show it."""
    parts = path.split("/")
    if parts[0] or ".." in parts or "\0" in path:
        return None
    wanted = [part for part in parts if part]
    top = [part for part in mount.root.split("/") if part]
    if wanted[: len(top)] != top:
        return None
    return "/".join((str(mount.point), *wanted[len(top) :]))


def walk(top: str) -> list[tuple[str, int]]:
    """A cgroup's directory and all below it, with their ids; what goes meanwhile is left out."""
    try:
        status = os.stat(top)  # noqa: PTH116 - as there
    except OSError:
        return []
    found = [(top, status.st_ino)]
    if status.st_nlink != _LEAF_LINKS:
        with suppress(OSError), os.scandir(top) as entries:
            names = sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
            for name in names:
                found += walk(f"{top}/{name}")
    return found
