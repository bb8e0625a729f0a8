"""What the loop keeps of a neighbour between ticks: its CPU use, and its account while held."""

from collections import deque
from collections.abc import Sequence
from typing import Any, Final

from controller.backfill import Account
from controller.neighbour_limits import NeighbourView
from controller.wire import NeighbourTarget

USE_WINDOW_NS: Final = 1_000_000_000
MOST_A_TICK: Final = 64
"""Neighbours that are read in one tick. A thousand take turns, each four times a second: at every
tick they would take a third of a core, and delay what the tick is for."""


class NeighbourWatch:
    """One neighbour's recent past."""

    def __init__(self, target: NeighbourTarget, before: "NeighbourWatch | None" = None) -> None:
        """`before` is what was kept of it when its target looked another way."""
        self.target = target
        self.account = Account()
        self.ran_ns = 0
        """All it ever ran, as last read."""
        self._runs: deque[tuple[int, int]] = deque()
        self._seen: dict[int | None, NeighbourView] = {}
        if before is not None:
            self.account = before.account
            if (before.target.row, before.target.cgroup) == (target.row, target.cgroup):
                self._runs, self.ran_ns = before._runs, before.ran_ns

    @property
    def used_cores(self) -> float:
        """Cores it used in the last second."""
        if len(self._runs) < 2:
            return 0.0
        (first_ns, first), (last_ns, last) = self._runs[0], self._runs[-1]
        return (last - first) / (last_ns - first_ns) if last_ns > first_ns else 0.0

    def take(self, now_ns: int, run_ns: int, held: bool) -> None:
        """Add a tick: `run_ns` is all it ever ran, `held` whether a limit of ours is in force."""
        self.ran_ns = run_ns
        self._seen.clear()
        if self._runs:
            last_ns, last = self._runs[-1]
            ran_ns = max(0, run_ns - last)
            self.account = self.account.take(now_ns - last_ns, ran_ns, self.used_cores, held)
        self._runs.append((now_ns, run_ns))
        while len(self._runs) > 2 and self._runs[1][0] <= now_ns - USE_WINDOW_NS:
            self._runs.popleft()

    def view(self, weight: int | None = None) -> NeighbourView:
        """The neighbour as the laws see it, the same until it is read again."""
        seen = self._seen.get(weight)
        if seen is None:
            seen = self._seen[weight] = self._view(weight)
        return seen

    def _view(self, weight: int | None) -> NeighbourView:
        target = self.target
        return NeighbourView(
            target.name,
            self.used_cores,
            target.min_cores,
            target.cpu_share,
            target.freeze_ms,
            target.retry_ms,
            self.account.since_held_back_ns / 1e9,
            weight,
            target.idle,
        )

    def status(self) -> dict[str, Any]:
        """What it got and lost, for a `status` message."""
        return {
            "used_cores": self.used_cores,
            "class": self.target.service_class,
            "held_ns": self.account.held_ns,
            "held_used_ns": self.account.used_ns,
            "held_back_ns": self.account.held_back_ns,
        }


def in_turn(watches: Sequence[NeighbourWatch], turn: int) -> Sequence[NeighbourWatch]:
    """Those to read in the `turn`-th tick: all, or of many the next `MOST_A_TICK`."""
    if len(watches) <= MOST_A_TICK:
        return watches
    start = turn * MOST_A_TICK % len(watches)
    end = start + MOST_A_TICK
    return [*watches[start:end], *watches[: max(0, end - len(watches))]]
