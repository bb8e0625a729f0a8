"""When a process that keeps ending is started again: later each time, until one runs for long."""

from dataclasses import dataclass, replace
from typing import Final

LAST_S: Final = 30.0
"""No start waits longer."""

SETTLED_S: Final = 60.0
"""After a run as long as this the waits begin anew."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """Seconds of CLOCK_MONOTONIC. The first wait is `first_s`, each next one `factor` times longer.

    Due from `due_s` on. `started_s` is None while nothing runs.
    """

    first_s: float
    factor: float
    due_s: float = 0.0
    started_s: float | None = None
    waited_s: float = 0.0

    def started(self, now_s: float) -> "Backoff":
        """It runs."""
        return replace(self, started_s=now_s)

    def ended(self, now_s: float) -> "Backoff":
        """It ended, or could not even be started."""
        settled = self.started_s is not None and now_s - self.started_s > SETTLED_S
        again = self.waited_s > 0 and not settled
        wait_s = min(LAST_S, self.factor * self.waited_s) if again else self.first_s
        return replace(self, due_s=now_s + wait_s, started_s=None, waited_s=wait_s)
