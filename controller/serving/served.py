"""What the contract's server needs of an engine."""

from collections.abc import Callable
from typing import Any, Protocol

from controller.engines.page import EngineNow
from controller.serving.leases import Leases


class Served(Protocol):
    """An engine with leased knobs. Every method may be called from any thread, and none blocks."""

    def with_leases(self, act: Callable[[Leases], dict[str, Any]]) -> dict[str, Any]:
        """Run `act` on the leases and return what it returns, with their state added."""

    def now(self) -> EngineNow:
        """What the stats page shows."""

    def next_deadline_ns(self) -> int | None:
        """When a lease or a promise next runs out, None if none stands."""

    def expire(self) -> int:
        """End what has run out; returns the leases' version, which grows with every change."""
