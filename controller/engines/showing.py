"""What an engine shows of itself, on its page or over its socket, as far as that may be true."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from controller.engines.contract import Hello
from controller.engines.nonsense import nonsense
from controller.engines.page import Allocator, EngineNow, PageError, PageReader, Step


class Showing:
    """`now` is the last that may be true; `nonsense` is why the very last may not, or empty."""

    def __init__(self) -> None:
        self.now: EngineNow | None = None
        self.nonsense = ""
        self._page: PageReader | None = None
        self._path: str | None = None
        self._most_running = math.inf
        self._last_step = 0

    @property
    def has_page(self) -> bool:
        """Whether there is a page to read; else the engine is to be asked."""
        return self._page is not None

    def begin(self, hello: Hello, *, restarted: bool) -> str:
        """From now on it is this engine's; returns why its page can't be used, if it can't."""
        if restarted:
            self._last_step = 0
        knob = hello.knobs.get("max_running")
        self._most_running = knob.maximum if knob is not None else math.inf
        self._path = hello.page
        return self._open()

    def look_anew(self) -> str:
        """Take for new what is shown next, on the page that is there now; returns as `begin`."""
        self.now = None
        return self._open() if self._page is not None else ""

    def end(self) -> None:
        """The engine is gone."""
        self._close()
        self.now, self.nonsense = None, ""

    def read(self) -> Sequence[Step]:
        """Look at the page; returns the steps that ended since the last look."""
        got = self._page.read(self._last_step) if self._page is not None else None
        if got is None:
            return ()
        now, steps = got
        self._last_step = now.steps
        self._take(now)
        return steps

    def allocator(self) -> Allocator | None:
        """How the engine's allocator stands, where its page says it."""
        return self._page.allocator() if self._page is not None else None

    def hear(self, stats: object) -> None:
        """Take the `now` of an answer to `stats`."""
        if not isinstance(stats, dict):
            self.nonsense = f"stats are {stats!r:.40}"
            return
        known: dict[str, Any] = {name: stats[name] for name in EngineNow.__slots__ if name in stats}
        for name, value in known.items():
            if type(value) is not int or value < 0:
                self.nonsense = f"{name} is {value!r:.40}"
                return
        self._take(EngineNow(**known))

    def _take(self, now: EngineNow) -> None:
        self.nonsense = nonsense(now, self.now, self._most_running)
        if not self.nonsense:
            self.now = now

    def _open(self) -> str:
        self._close()
        if self._path is None:
            return ""
        try:
            self._page = _open_page(Path(self._path))
        except (OSError, PageError) as error:
            return str(error)
        return ""

    def _close(self) -> None:
        if self._page is not None:
            self._page.close()
            self._page = None


def _open_page(path: Path) -> PageReader:
    """As `PageReader`; what is no file is not even opened, since a pipe would wait for a writer."""
    if not path.is_file():
        raise PageError(f"could not read stats page {str(path)!r}: there is no such file")
    return PageReader(path)
