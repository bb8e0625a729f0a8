"""An engine that is killed leaves its cgroup a moment before its sockets close.

The kernel counts a process out of its cgroup when its last thread begins to end, and only then
closes its files (kernel/exit.c, do_exit). So what was seen of it is held for one look more while it
has streams under way: their ends are heard, and counted, while its row still has its name.
"""

from collections.abc import Callable
from dataclasses import replace

from agent.discovery import Found, Surroundings


class Leaving:
    """What was last seen of each engine, and which are held because they have just left."""

    def __init__(self) -> None:
        self._seen: dict[str, Found] = {}
        self._held: set[str] = set()

    def hold(self, now: Surroundings, under_way: Callable[[str], int]) -> Surroundings:
        """The surroundings, with engines that have just left and have streams under way."""
        return replace(now, engines=tuple(self._hold(each, under_way) for each in now.engines))

    def _hold(self, found: Found, under_way: Callable[[str], int]) -> Found:
        name = found.name
        if found.present:
            self._seen[name] = found
            self._held.discard(name)
            return found
        before = self._seen.get(name)
        if before is not None and name not in self._held and under_way(name):
            self._held.add(name)
            return before
        self._seen.pop(name, None)
        self._held.discard(name)
        return found
