"""Tells systemd that the service is well (sd_notify(3), WATCHDOG=1), for as long as it is.

The unit's WatchdogSec says how long nothing may come. Then systemd kills the service, undoes its
limits and starts it again.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from agent.notify import notify

TURNS: Final = 4
"""How often the service says so in the time after which it is killed."""


def period_s(environment: Mapping[str, str], pid: int) -> float | None:
    """After how long systemd kills this process, None where it does not watch it."""
    if environment.get("WATCHDOG_PID", str(pid)) != str(pid):
        return None
    microseconds = environment.get("WATCHDOG_USEC", "")
    return int(microseconds) / 1e6 if microseconds.isdecimal() and int(microseconds) else None


def well(period_s: float, alive: bool, silent_s: float) -> bool:
    """Whether the controller is: one that died is started again, one that hangs is not.

    `silent_s` is for how long it has said nothing. A controller may take half the period to start.
    """
    return not alive or silent_s < period_s / 2


@dataclass(slots=True)
class Watchdog:
    """Speaks a few times in a period; to be asked in each turn of the loop."""

    period_s: float | None
    _next_s: float = 0.0

    def tick(self, now_s: float, alive: bool, silent_s: float) -> None:
        """Say that all is well, if it is and if it is time to."""
        if self.period_s is None or now_s < self._next_s:
            return
        if well(self.period_s, alive, silent_s):
            notify("WATCHDOG=1")
            self._next_s = now_s + self.period_s / TURNS


def watchdog() -> Watchdog:
    """That of this process."""
    return Watchdog(period_s(os.environ, os.getpid()))
