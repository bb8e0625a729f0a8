"""Streams that can't send: how many for too long, and what the writes to them met."""

from collections import deque
from dataclasses import dataclass
from typing import Final

from bpf.layout import Counters

KEPT: Final = 16
REMEMBERED_NS: Final = 5_000_000_000
"""A sender that backs off sends nothing for seconds: what it met before is remembered so long."""

REMEMBERED_EVERY_NS: Final = 100_000_000

LEAST_EVERY_NS: Final = 1_000_000_000
FORGOTTEN: Final = 60
"""After so many seconds a stream that can't send counts no more: its client is gone, or its end was
missed."""


@dataclass(frozen=True, slots=True)
class Unsent:
    """`stuck` streams have had bytes unsent for longer than a gap may be, at least so many.

    Of the last seconds: `stalled` writes left bytes unsent, `held` of them because of the client's
    window, and `again` segments were sent again.
    """

    stuck: int = 0
    stalled: int = 0
    held: int = 0
    again: int = 0


class UnsentWatch:
    """One engine's streams that can't send."""

    def __init__(self, limit_ns: float) -> None:
        """`limit_ns`: how long bytes may stay unsent."""
        self._limit_ns = limit_ns
        self._begun: deque[tuple[int, int]] = deque()
        self._past: deque[tuple[int, Counters]] = deque()
        self._least: deque[tuple[int, int]] = deque(maxlen=FORGOTTEN)

    def take(self, now_ns: int, counters: Counters) -> Unsent:
        """Add what is counted now; returns what it comes to."""
        past = self._past
        if not past or now_ns - past[-1][0] >= REMEMBERED_EVERY_NS:
            past.append((now_ns, counters))
        while len(past) > 1 and past[1][0] <= now_ns - REMEMBERED_NS:
            past.popleft()
        then = past[0][1]
        return Unsent(
            self._stuck(now_ns, counters),
            counters.writes_stalled - then.writes_stalled,
            counters.writes_held - then.writes_held,
            counters.retransmits - then.retransmits,
        )

    def _stuck(self, now_ns: int, counters: Counters) -> int:
        """Streams blocked all the time, less those that may have ended since."""
        blocked = max(0, counters.blocked_begun - counters.blocked_ended)
        least = self._least
        if not least or now_ns - least[-1][0] >= LEAST_EVERY_NS:
            least.append((now_ns, blocked))
        elif blocked < least[-1][1]:
            least[-1] = least[-1][0], blocked
        begun = self._begun
        if not begun or now_ns - begun[-1][0] >= self._limit_ns / KEPT:
            begun.append((now_ns, counters.blocked_begun))
        while len(begun) > 1 and begun[1][0] <= now_ns - self._limit_ns:
            begun.popleft()
        then_ns, begun_then = begun[0]
        if then_ns > now_ns - self._limit_ns:
            return 0
        old = len(least) == FORGOTTEN
        forgotten = min(count for _, count in least) if old else 0
        return max(0, begun_then - counters.blocked_ended - forgotten)
