"""The bench's own hand on the engine's knobs: values under a lease that it renews."""

import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from controller.engines.client import EngineError, call
from demo.rig import RigError

OWNER: Final = "bench"
LEASE_MS: Final = 10_000
RENEW_S: Final = 2.0
ANSWER_S: Final = 2.0


class KnobHolder:
    """A context that holds the engine's lease and gives it back."""

    def __init__(self, admin_socket: Path) -> None:
        """Nothing is held before the first `set`."""
        self._path = admin_socket
        self._renewed_s = 0.0
        self._held = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._held:
            self._ask("release", owner=OWNER)

    def start_values(self) -> Mapping[str, float]:
        """What the engine was started with, by knob."""
        start: Mapping[str, float] = self._ask("get")["start"]
        return start

    def set(self, values: Mapping[str, float]) -> None:
        """Take or renew the lease with these values; `RigError` if the engine refuses."""
        epoch = self._ask("get")["epoch"] + 1
        self._ask("set", owner=OWNER, epoch=epoch, lease_ms=LEASE_MS, values=dict(values))
        self._held = True
        self._renewed_s = time.monotonic()

    def renew(self) -> None:
        """Renew the lease if that is due; called often."""
        if self._held and time.monotonic() - self._renewed_s >= RENEW_S:
            self.set({})

    def _ask(self, what: str, **fields: Any) -> Mapping[str, Any]:
        try:
            return call(self._path, what, ANSWER_S, **fields)
        except EngineError as error:
            raise RigError(f"could not set the engine's knobs: {error}") from None
