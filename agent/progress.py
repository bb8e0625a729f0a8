"""How far a long command is: a line on a terminal's stderr, and nothing anywhere else."""

import sys
import time
from types import TracebackType
from typing import Final

PATIENCE_S: Final = 2.0
"""What is done sooner shows nothing."""

_WIDTH: Final = 24
_EVERY_S: Final = 0.1


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
            sys.stderr.write("\r\033[K")
            sys.stderr.flush()


def line(what: str, done: int, whole: int) -> str:
    """Such as `replaying [######..................] 25 of 100`."""
    filled = _WIDTH if whole <= 0 else min(_WIDTH, _WIDTH * done // whole)
    return f"{what} [{'#' * filled}{'.' * (_WIDTH - filled)}] {done} of {whole}"
