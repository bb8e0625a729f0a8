"""Asks whether a neighbour's cgroup is protected, and remembers the answer for a moment."""

import os
import time
from collections.abc import Callable, Collection, Iterable
from typing import Final

from controller.limits.cgroup import Group, Hierarchies
from controller.limits.protected import Kept, own_namespace, own_paths, why_path, why_processes

ASK_AGAIN_NS: Final = 1_000_000_000
"""Processes come and go; looking at all of a cgroup's takes some microseconds for each."""


class Protection:
    """What may not be limited on this machine. The answer is the same under every policy."""

    def __init__(
        self,
        hierarchies: Hierarchies,
        pids: Collection[int] | None = None,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """`pids` are the processes whose cgroups are kept free: by default PID 1, the agent, us."""
        ours = (1, os.getppid(), os.getpid()) if pids is None else pids
        self._kept = Kept(own_paths(hierarchies.v1_cpu is not None, ours))
        self._namespace = own_namespace()
        self._clock = clock
        self._asked: dict[Group, tuple[int, str | None]] = {}

    def set_engines(self, paths: Iterable[str]) -> None:
        """The engines' cgroups: they and all above them are kept free as well."""
        self._kept = Kept(self._kept.own, frozenset(paths))

    def why(self, group: Group) -> str | None:
        """Why a cgroup may not be limited, None if it may. Looks at its processes at times."""
        why = why_path(group.path, self._kept)
        if why is not None:
            return why
        now_ns = self._clock()
        asked_ns, known = self._asked.get(group, (0, None))
        if not asked_ns or now_ns - asked_ns >= ASK_AGAIN_NS:
            known = why_processes(group, self._namespace)
            self._asked[group] = now_ns, known
        return known

    def forget_but(self, groups: Collection[Group]) -> None:
        """Only these are asked about from now on."""
        kept = frozenset(groups)
        self._asked = {group: each for group, each in self._asked.items() if group in kept}
