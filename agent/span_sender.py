"""Sends spans in batches from a thread of its own; a collector that is away costs spans, no more.

What waits is bounded, and what finds no room is dropped and counted. A batch that is not taken is
tried again a few times, then dropped and counted. Between attempts the sender waits, twice as long
each time and each time a little different, so that no storm meets a collector that comes back.
"""

import logging
import random
import threading
import time
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from agent.spans import Span

BATCH: Final = 512
COLLECT_S: Final = 1.0
"""How long a span waits for company."""

TRIES: Final = 5
FIRST_BACKOFF_S: Final = 1.0
LAST_BACKOFF_S: Final = 15.0
CLOSE_S: Final = 2.0
"""How long the end waits for a collector to take what is left."""

_ABANDON_S: Final = 0.5
_JITTER: Final = 0.2
_LOG: Final = logging.getLogger("sits.spans")


class SpanExporter(Protocol):
    """Something that takes spans to a collector; called from one thread, but for `close`."""

    def export(self, spans: Sequence[Span]) -> str:
        """Hand over `spans`; empty if the collector took them, else why it did not."""
        ...

    def close(self) -> None:
        """Give up what is under way and let go."""
        ...


class SpanSender:
    """Takes spans in any thread, sends them in one.

    `exported` counts what a collector took, `problem` says why it takes nothing now, empty when
    all is well.
    """

    def __init__(self, exporter: SpanExporter, max_queue: int) -> None:
        """Start the thread; `close` ends it and closes `exporter`."""
        self.exported = 0
        self.problem = ""
        self._exporter = exporter
        self._max_queue = max_queue
        self._queue: deque[Span] = deque()
        self._under_way: list[Span] = []
        self._dropped: Counter[str] = Counter(queue_full=0, not_taken=0, stopped=0)
        self._backoff_s = FIRST_BACKOFF_S
        self._changed = threading.Condition()
        self._give_up_s: float | None = None
        self._thread = threading.Thread(target=self._run, name="spans", daemon=True)
        self._thread.start()

    @property
    def dropped(self) -> Mapping[str, int]:
        """Spans dropped since the start, by reason."""
        with self._changed:
            return dict(self._dropped)

    def put(self, span: Span) -> None:
        """Send a span some time; never blocks."""
        with self._changed:
            if self._give_up_s is not None:
                self._dropped["stopped"] += 1
            elif len(self._queue) + len(self._under_way) >= self._max_queue:
                self._dropped["queue_full"] += 1
            else:
                self._queue.append(span)
                if len(self._queue) in {1, BATCH}:
                    self._changed.notify()

    def close(self) -> None:
        """Send what is left, as far as the collector takes it within `CLOSE_S`; then end."""
        with self._changed:
            self._give_up_s = time.monotonic() + CLOSE_S
            self._changed.notify()
        self._thread.join(CLOSE_S)
        self._exporter.close()
        self._thread.join(_ABANDON_S)
        with self._changed:
            self._dropped["stopped"] += len(self._queue) + len(self._under_way)
            self._queue.clear()
            self._under_way = []

    def _run(self) -> None:
        while self._next_batch():
            self._deliver()

    def _next_batch(self) -> bool:
        """Move the next spans under way; False when it is time to end."""
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._give_up_s is not None)
            self._changed.wait_for(
                lambda: len(self._queue) >= BATCH or self._give_up_s is not None, COLLECT_S
            )
            if self._is_over():
                return False
            size = min(BATCH, len(self._queue))
            self._under_way = [self._queue.popleft() for _ in range(size)]
            return size > 0

    def _deliver(self) -> None:
        for _ in range(TRIES):
            why = self._exporter.export(self._under_way)
            self._note(why)
            with self._changed:
                if not why:
                    self.exported += len(self._under_way)
                    self._under_way = []
                    return
                if self._give_up_s is not None:
                    # what is left counts as stopped
                    self._give_up_s = 0.0
                    return
                self._changed.wait_for(lambda: self._give_up_s is not None, self._pause_s())
                if self._is_over():
                    return
        with self._changed:
            self._dropped["not_taken"] += len(self._under_way)
            self._under_way = []

    def _note(self, why: str) -> None:
        if why and not self.problem and self._give_up_s is None:
            _LOG.warning("spans do not reach the collector: %s", why)
        elif not why and self.problem:
            _LOG.info("spans reach the collector again")
        self.problem = why
        if not why:
            self._backoff_s = FIRST_BACKOFF_S

    def _pause_s(self) -> float:
        pause_s = self._backoff_s * random.uniform(1 - _JITTER, 1 + _JITTER)
        self._backoff_s = min(LAST_BACKOFF_S, 2 * self._backoff_s)
        return pause_s

    def _is_over(self) -> bool:
        return self._give_up_s is not None and time.monotonic() >= self._give_up_s
