"""The paths of cgroups that the kernel told by id."""

import os
import time
from collections.abc import Callable
from typing import Final

from agent.cgroup_trees import walk
from controller.limits.cgroup import Hierarchies

MOST_GONE: Final = 4_096
GONE_S: Final = 10.0
"""For so long a cgroup that was not there is not looked for again."""


class CgroupPaths:
    """Finds paths, and remembers them: a walk over all cgroups is not for every question."""

    def __init__(
        self, hierarchies: Hierarchies, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`clock` is monotonic, in seconds."""
        mount = hierarchies.v1_cpu or hierarchies.v2
        self._root = str(mount.point) if mount is not None else None
        self._clock = clock
        self._known: dict[int, str] = {}
        self._gone: dict[int, float] = {}

    def path(self, cgroup_id: int) -> str:
        """The path below the mount, `gone (id N)` without one, the id where nothing is mounted.

        Safe from any thread: two that ask at once look twice.
        """
        if self._root is None:
            return str(cgroup_id)
        known = self._known.get(cgroup_id)
        if known is None or not _is(known, cgroup_id):
            known = self._look(self._root, cgroup_id)
        return f"gone (id {cgroup_id})" if known is None else known[len(self._root) :] or "/"

    def _look(self, root: str, cgroup_id: int) -> str | None:
        """Walk over all: with one that is found, all others are known too."""
        now_s = self._clock()
        if now_s - self._gone.get(cgroup_id, -GONE_S) < GONE_S:
            return None
        self._known = known = {each: path for path, each in walk(root)}
        if cgroup_id not in known:
            if len(self._gone) >= MOST_GONE:
                self._gone = {}
            self._gone[cgroup_id] = now_s
        return known.get(cgroup_id)


def _is(directory: str, cgroup_id: int) -> bool:
    try:
        return os.stat(directory).st_ino == cgroup_id  # noqa: PTH116 - asked of thousands
    except OSError:
        return False
