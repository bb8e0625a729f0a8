"""How many of the streams that ended lately were good, counted by the second.

Not stream by stream: at thousands a second a minute of them is megabytes, and to add them up holds
for milliseconds what all others wait for.
"""

from collections import deque
from itertools import takewhile
from typing import Final

KEPT_S: Final = 600


class Lately:
    """One engine's streams; `now_s` is on the monotonic clock."""

    def __init__(self) -> None:
        self._seconds: deque[tuple[int, int, int]] = deque(maxlen=KEPT_S)
        """Second, good streams, all streams; oldest first. Seconds without any are not there."""

    def take(self, now_s: float, good: bool) -> None:
        """Count a stream that ended."""
        second, before, total = int(now_s), 0, 0
        if self._seconds and self._seconds[-1][0] == second:
            _, before, total = self._seconds.pop()
        self._seconds.append((second, before + good, total + 1))

    def good_share(self, now_s: float, seconds: float) -> float | None:
        """Of those in the last `seconds`, whole seconds of the clock; None without any."""
        since = now_s - seconds
        lately = list(takewhile(lambda each: each[0] >= since, reversed(self._seconds)))
        total = sum(count for _, _, count in lately)
        return sum(good for _, good, _ in lately) / total if total else None
