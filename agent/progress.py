"""How far a long command is: a line on a terminal's stderr, and nothing anywhere else."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Timer
from types import TracebackType
from typing import Final

PATIENCE_S: Final = 2.0
"""What is done sooner shows nothing."""

_WIDTH: Final = 24
_EVERY_S: Final = 0.1
_ERASED: Final = "\r\033[K"


class Progress:
    """A line while it is entered: call it once for each thing that is done, of `whole`."""

    def __init__(self, what: str, whole: int) -> None:
        self._what, self._whole, self._done = what, whole, 0
        self._began_s = self._said_s = time.monotonic()
        self._seen = sys.stderr.isatty()

    def __call__(self, *_: object) -> None:
        """One more is done, whatever it was."""
        self._done += 1
        now_s = time.monotonic()
        if self._seen and now_s - self._began_s >= PATIENCE_S and now_s - self._said_s >= _EVERY_S:
            self._said_s = now_s
            sys.stderr.write(f"\r{line(self._what, self._done, self._whole)}")
            sys.stderr.flush()

    def __enter__(self) -> "Progress":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._said_s != self._began_s:
            sys.stderr.write(_ERASED)
            sys.stderr.flush()


@contextmanager
def waiting(what: str, after_s: float = PATIENCE_S) -> Iterator[None]:
    """Say so while something takes its time of which nobody knows how far it is."""
    said = []

    def say() -> None:
        said.append(sys.stderr.write(f"{what} …"))
        sys.stderr.flush()

    timer = Timer(after_s, say)
    if sys.stderr.isatty():
        timer.start()
    try:
        yield
    finally:
        timer.cancel()
        if timer.ident is not None:
            timer.join()
        if said:
            sys.stderr.write(_ERASED)
            sys.stderr.flush()


def line(what: str, done: int, whole: int) -> str:
    """Such as `replaying [######..................] 25 of 100`."""
    filled = _WIDTH if whole <= 0 else min(_WIDTH, _WIDTH * done // whole)
    return f"{what} [{'#' * filled}{'.' * (_WIDTH - filled)}] {done} of {whole}"
