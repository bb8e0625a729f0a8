"""The contract as tests ask it: leases of one owner, and what the engine shows meanwhile."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from controller.engines.client import EngineError, call
from controller.engines.page import EngineNow, PageReader, Step
from tests.leases import renewed

ANSWER_S: Final = 10.0
PATIENCE_S: Final = 60.0
LEASE_MS: Final = 10_000


def ask(socket: Path, name: str, **fields: Any) -> Any:
    """One call; `EngineError` if it is refused."""
    return call(socket, name, ANSWER_S, **fields)


def take(
    socket: Path,
    values: Mapping[str, float],
    owner: str = "test",
    lease_ms: int = LEASE_MS,
) -> Any:
    """Take or renew the lease."""
    epoch = ask(socket, "get")["epoch"] + 1
    return ask(socket, "set", owner=owner, epoch=epoch, lease_ms=lease_ms, values=dict(values))


@contextmanager
def holding(socket: Path, **values: float) -> Iterator[None]:
    """The knobs have these values inside this context, in force before it begins."""
    try:
        with renewed(socket, "test", **values):
            until(lambda: ask(socket, "get")["state"] == "applied", "the change in force")
            yield
    finally:
        with suppress(EngineError):
            ask(socket, "release", owner="test")


def until(true: Callable[[], bool], what: str) -> None:
    """Wait for something; it fails the test when it does not come."""
    ends = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < ends, f"{what} did not come"
        time.sleep(0.01)


class Watch:
    """What a page showed since this was made."""

    def __init__(self, page: Path) -> None:
        self._page = page
        self._last = self.now().steps

    def now(self) -> EngineNow:
        """What it shows."""
        with closing(PageReader(self._page)) as reader:
            got = reader.read(tries=1000)
        assert got is not None
        return got[0]

    def steps(self) -> Sequence[Step]:
        """The steps since the last look; at most the page's 64."""
        with closing(PageReader(self._page)) as reader:
            got = reader.read(self._last, tries=1000)
        assert got is not None
        self._last = got[0].steps
        return got[1]
