"""What the engine's own page shows during a run, the same way for every contender."""

from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from controller.engines.page import EngineNow, PageReader, Step

KEPT_S: Final = 1.0
LOOK_EVERY_S: Final = 0.02


@dataclass(slots=True)
class Seen:
    """Of the whole run: the smallest knob values, how often one changed, the longest queue.

    `looks` at the page, of which at `capped` somebody waited since no more may run than do.
    """

    min_batched_tokens: int = 0
    min_running: int = 0
    knob_changes: int = 0
    most_waiting: int = 0
    most_running: int = 0
    longest_deferral_ms: int = 0
    deferred: int = 0
    looks: int = 0
    capped: int = 0

    def take(self, now: EngineNow, before: EngineNow | None) -> None:
        """Add one look; `before` is the one before it."""
        self.longest_deferral_ms = max(self.longest_deferral_ms, now.longest_deferral_ms)
        self.most_waiting = max(self.most_waiting, now.waiting)
        self.most_running = max(self.most_running, now.running)
        self.looks += 1
        self.capped += now.waiting > 0 and now.running >= now.max_running
        if before is None:
            self.min_batched_tokens, self.min_running = now.max_batched_tokens, now.max_running
            return
        self.min_batched_tokens = min(self.min_batched_tokens, now.max_batched_tokens)
        self.min_running = min(self.min_running, now.max_running)
        self.knob_changes += (now.max_batched_tokens, now.max_running) != (
            before.max_batched_tokens,
            before.max_running,
        )
        self.deferred += now.deferred_total - before.deferred_total

    def as_dict(self) -> dict[str, Any]:
        """For the result's file."""
        return {name: getattr(self, name) for name in self.__slots__}


class PageWatch:
    """Reads the page whenever it is told to `look`."""

    def __init__(self, page: Path) -> None:
        self._reader = PageReader(page)
        self._before: EngineNow | None = None
        self._steps: deque[Step] = deque()
        self.seen = Seen()

    @property
    def steps(self) -> tuple[Step, ...]:
        """The steps of the last second, oldest first."""
        return tuple(self._steps)

    def look(self) -> None:
        """Take in what is new; a reading that fails is made up for by the next."""
        found = self._reader.read(self._steps[-1].index if self._steps else 0)
        if found is None:
            return
        now, steps = found
        self._steps.extend(steps)
        while self._steps and self._steps[0].end_ns < now.updated_ns - KEPT_S * 1e9:
            self._steps.popleft()
        self.seen.take(now, self._before)
        self._before = now

    def close(self) -> None:
        """Let go of the page."""
        self._reader.close()
