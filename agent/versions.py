"""Streams told apart by a header of their requests, such as two releases behind one engine's name.

Whoever can reach the engine chooses what the header says, so an engine has a bounded set of values;
one that nobody has sent for an hour makes room for another.
"""

import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from agent.request_head import header_values
from agent.streams import Ended
from bpf.histogram import SLOTS, Histogram, slot_of

MOST: Final = 8
"""Values of one engine that are told apart."""

IDLE_S: Final = 3600.0

ABSENT: Final = "(none)"
UNSEEN: Final = "(unseen)"
OTHER: Final = "(other)"
"""No value can look like these: there was no such header; it may have been where nobody looked,
beyond the first bytes of the head or under TLS; there were other values than can be told apart."""

_NAMELESS: Final = frozenset({ABSENT, UNSEEN, OTHER})
_VALUE: Final = re.compile(rb"[A-Za-z0-9][A-Za-z0-9._+-]{0,39}")


@dataclass(frozen=True, slots=True)
class VersionFigures:
    """What the streams of one version met. `longest_gap` has one value for each stream."""

    streams: int
    good: int
    errors: int
    gaps: int
    gaps_over: int
    gap_sum_ns: int
    ttft: Histogram
    longest_gap: Histogram


@dataclass(slots=True)
class _Count:
    seen_s: float
    streams: int = 0
    good: int = 0
    errors: int = 0
    gaps: int = 0
    gaps_over: int = 0
    gap_sum_ns: int = 0
    ttft: Counter[int] = field(default_factory=Counter)
    ttft_sum_ns: int = 0
    longest: Counter[int] = field(default_factory=Counter)
    longest_sum_ns: int = 0

    def add(self, ended: Ended) -> None:
        stream = ended.stream
        gaps = max(0, stream.chunks - 1) if stream.first_ns else 0
        self.streams += 1
        self.good += ended.good
        self.errors += stream.status >= 400 or ended.reason == "server_closed"
        self.gaps += gaps
        self.gaps_over += stream.gaps_over
        self.gap_sum_ns += stream.gap_sum_ns
        if stream.ttft_ns is not None:
            self.ttft[slot_of(stream.ttft_ns)] += 1
            self.ttft_sum_ns += stream.ttft_ns
        if gaps:
            self.longest[slot_of(stream.gap_max_ns)] += 1
            self.longest_sum_ns += stream.gap_max_ns

    def figures(self) -> VersionFigures:
        return VersionFigures(
            streams=self.streams,
            good=self.good,
            errors=self.errors,
            gaps=self.gaps,
            gaps_over=self.gaps_over,
            gap_sum_ns=self.gap_sum_ns,
            ttft=_histogram(self.ttft, self.ttft_sum_ns),
            longest_gap=_histogram(self.longest, self.longest_sum_ns),
        )


class Versions:
    """The versions there are, and their counts. Every method may be called from any thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` is monotonic, in seconds."""
        self._clock = clock
        self._lock = threading.Lock()
        self._headers: Mapping[str, str] = {}
        self._counts: dict[str, dict[str, _Count]] = {}

    def ask(self, headers: Mapping[str, str | None]) -> None:
        """Tell versions apart by these headers, by engine; None for an engine that has none.

        What was counted by another header is forgotten.
        """
        asked = {engine: header for engine, header in headers.items() if header is not None}
        with self._lock:
            kept = {engine for engine in asked if asked[engine] == self._headers.get(engine)}
            self._counts = {e: counts for e, counts in self._counts.items() if e in kept}
            self._headers = asked

    def of(self, engine: str, head: bytes) -> str | None:
        """The version of a request, by the first bytes of its head; None if nobody asks."""
        header = self._headers.get(engine)
        if header is None:
            return None
        values, whole = header_values(head, header)
        if not values:
            return ABSENT if whole else UNSEEN
        # two are as good as none: nobody can say which is meant
        if len(values) > 1 or not _VALUE.fullmatch(values[0]):
            return OTHER
        with self._lock:
            return self._admit(engine, values[0].decode())

    def count(self, ended: Ended) -> None:
        """Count a stream that ended."""
        if ended.engine not in self._headers:
            return
        version = UNSEEN if ended.version is None else ended.version
        with self._lock:
            counts = self._counts.setdefault(ended.engine, {})
            if version not in counts and version not in _NAMELESS:
                version = OTHER  # it had to make room while the stream was under way
            counts.setdefault(version, _Count(self._clock())).add(ended)

    def figures(self, engine: str) -> Mapping[str, VersionFigures]:
        """An engine's versions."""
        with self._lock:
            counts = self._counts.get(engine, {})
            return {version: count.figures() for version, count in counts.items()}

    def _admit(self, engine: str, value: str) -> str:
        now_s = self._clock()
        counts = self._counts.setdefault(engine, {})
        if value not in counts:
            named = [version for version in counts if version not in _NAMELESS]
            if len(named) >= MOST:
                oldest = min(named, key=lambda version: counts[version].seen_s)
                if now_s - counts[oldest].seen_s < IDLE_S:
                    return OTHER
                del counts[oldest]
            counts[value] = _Count(now_s)
        counts[value].seen_s = now_s
        return value


def _histogram(slots: Counter[int], sum_ns: int) -> Histogram:
    return Histogram(tuple(slots[slot] for slot in range(SLOTS)), sum_ns)
