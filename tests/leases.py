"""Leases that somebody else than sits holds, however slow the machine is."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from controller.engines.client import EngineError, call
from tests.clients import clients

LEASE_MS: Final = 10_000
RENEWED_S: Final = 1.0


def take(socket: Path, owner: str, **values: float) -> None:
    """Set knobs by hand under a lease of ten seconds; `EngineError` if that is refused."""
    epoch = call(socket, "get", 10)["epoch"] + 1
    call(socket, "set", 10, owner=owner, epoch=epoch, lease_ms=LEASE_MS, values=values)


@contextmanager
def renewed(socket: Path, owner: str, **values: float) -> Iterator[None]:
    """Take them and keep them meanwhile; then the lease runs out."""
    take(socket, owner, **values)

    def renew(stop: threading.Event) -> None:
        while not stop.wait(RENEWED_S):
            with suppress(EngineError):
                take(socket, owner, **values)

    with clients(1, renew):
        yield
