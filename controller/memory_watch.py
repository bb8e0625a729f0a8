"""What the loop keeps of one engine's memory between looks, and what it makes of it."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from controller.limits.cgroup import Group
from controller.memory_history import EVENTS_NS, PRESSURE_NS, Growth, PerRequest, Rise
from controller.memory_reader import MemoryReader, memory_used
from controller.memory_sentinel import MemoryView, NeighbourMemory, SentinelMemory

LEAST_BYTES: Final = 64 << 20
"""No neighbour is held to less where there is as much for 64 of them: some times what an
interpreter has before it does anything (10 MiB, 25 with NumPy, measured), so that one that was
started anew, small, is not held at that."""

LOOK_EVERY_NS: Final = 250_000_000
LOOK_FAR_NS: Final = 1_000_000_000
"""While most of the machine's memory is free and there is no other limit."""
LOOK_CLOSELY_NS: Final = 50_000_000
"""While memory runs short: a gigabyte a second takes 50 MB between two looks."""


class MemoryWatch:
    """Looks four times a second; twenty times while memory runs short, once while it is far off."""

    def __init__(self, group: Group | None) -> None:
        """Without a `group` of the engine's own only the machine's memory is watched."""
        self.reader = MemoryReader(group)
        self.view = MemoryView()
        self.looked_ns = 0
        self._growth: dict[str, Growth] = {}
        self._low, self._high = Rise(EVENTS_NS), Rise(EVENTS_NS)
        self._some, self._full = Rise(PRESSURE_NS), Rise(PRESSURE_NS)
        self._per_request = PerRequest()

    def look(self, now_ns: int, running: int | None, filled: float = 1.0) -> bool:
        """Look if it is time to; whether it was. `running` is None while the engine does not say.

        Requests that run have `filled` of the memory that they will have. The view keeps the
        neighbours it has; `see` sets them.
        """
        every_ns = LOOK_FAR_NS if self.view.far and self.looked_ns else LOOK_EVERY_NS
        if self.view.near:
            every_ns = LOOK_CLOSELY_NS
        if now_ns - self.looked_ns < every_ns:
            return False
        self.looked_ns = now_ns
        reading = self.reader.read()
        growth = {each.path: self._growth.get(each.path) or Growth() for each in reading.levels}
        self._growth = growth
        bounds = tuple(
            growth[each.path].take(now_ns, each.path, each.limit, each.used)
            for each in reading.levels
        )
        per_request, had = self.view.per_request, (running or 0) * filled
        if running is not None and reading.used is not None:
            per_request = self._per_request.take(now_ns, had, reading.used)
        self.view = MemoryView(
            bounds,
            low_events=self._low.take(now_ns, reading.low),
            high_events=self._high.take(now_ns, reading.high),
            some=_share(self._some, now_ns, reading.some_ns),
            full=_share(self._full, now_ns, reading.full_ns),
            per_request=per_request,
            neighbours=self.view.neighbours,
            unfilled=(running or 0) - had,
            most_had=self._per_request.most_had,
        )
        return True

    def see(self, neighbours: Iterable[NeighbourMemory]) -> None:
        """These are the neighbours whose memory can be limited now."""
        self.view = replace(self.view, neighbours=tuple(neighbours))

    def forget(self) -> None:
        """The engine started anew, or nobody looked for a while."""
        self._growth.clear()
        self._per_request = PerRequest()
        self._low, self._high = Rise(EVENTS_NS), Rise(EVENTS_NS)
        self._some, self._full = Rise(PRESSURE_NS), Rise(PRESSURE_NS)
        self.view = replace(self.view, per_request=None)

    def close(self) -> None:
        """Close what is open."""
        self.reader.close()


def neighbour_memory(
    groups: Mapping[str, Group], shared: frozenset[str] = frozenset()
) -> tuple[NeighbourMemory, ...]:
    """What neighbours have, from their names and groups; only those of v2 can be held."""
    return tuple(
        NeighbourMemory(name, group.path, used, LEAST_BYTES, name in shared)
        for name, group in groups.items()
        if group.version == 2 and (used := memory_used(group.directory)) is not None
    )


def memory_status(view: MemoryView, memory: SentinelMemory) -> dict[str, Any]:
    """How memory stands, for a `status` message: the tightest bound, the danger, what is held."""
    bound = view.tightest
    return {
        "bound": bound.path if bound is not None else None,
        "left_bytes": bound.left if bound is not None else None,
        "limit_bytes": bound.limit if bound is not None else None,
        "lasts_s": bound.lasts_s if bound is not None and bound.growth > 0 else None,
        "per_request_bytes": view.per_request,
        "short": memory.why,
        "running_cap": memory.cap,
        "held": dict(memory.holds),
    }


def _share(rise: Rise, now_ns: int, total_ns: int) -> float:
    rose_ns = rise.take(now_ns, total_ns)
    return min(1.0, rose_ns / 1e9 / rise.seconds) if rise.seconds > 0 else 0.0
