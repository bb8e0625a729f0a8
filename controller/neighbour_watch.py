"""What the loop keeps of a neighbour between ticks: its CPU use, and its account while held."""

from collections import deque
from typing import Any, Final

from controller.backfill import Account
from controller.neighbour_limits import NeighbourView
from controller.wire import NeighbourTarget

USE_WINDOW_NS: Final = 1_000_000_000


class NeighbourWatch:
    """One neighbour's recent past."""

    def __init__(self, target: NeighbourTarget, before: "NeighbourWatch | None" = None) -> None:
        """`before` is what was kept of it when its target looked another way."""
        self.target = target
        self.account = Account()
        self._runs: deque[tuple[int, int]] = deque()
        if before is not None:
            self.account = before.account
            if (before.target.row, before.target.cgroup) == (target.row, target.cgroup):
                self._runs = before._runs

    @property
    def used_cores(self) -> float:
        """Cores it used in the last second."""
        if len(self._runs) < 2:
            return 0.0
        (first_ns, first), (last_ns, last) = self._runs[0], self._runs[-1]
        return (last - first) / (last_ns - first_ns) if last_ns > first_ns else 0.0

    def take(self, now_ns: int, run_ns: int, held: bool) -> None:
        """Add a tick: `run_ns` is all it ever ran, `held` whether a limit of ours is in force."""
        if self._runs:
            last_ns, last = self._runs[-1]
            ran_ns = max(0, run_ns - last)
            self.account = self.account.take(now_ns - last_ns, ran_ns, self.used_cores, held)
        self._runs.append((now_ns, run_ns))
        while len(self._runs) > 2 and self._runs[1][0] <= now_ns - USE_WINDOW_NS:
            self._runs.popleft()

    def view(self, weight: int | None = None) -> NeighbourView:
        """The neighbour as the laws see it."""
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
