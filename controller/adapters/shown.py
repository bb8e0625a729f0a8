"""What the page shows of an engine, made of what its driver tells."""

from collections import deque
from dataclasses import replace
from typing import Final

from controller.adapters.driver import Figures
from controller.engines.page import EngineNow

MOST_SAMPLES: Final = 4096
"""Of arrivals; beyond that the older half keeps every other one."""

_TOTALS: Final = tuple(
    name for name in Figures.__slots__ if name.endswith("_total") and name != "kv_total"
)


class Shown:
    """Figures as the page has them."""

    def __init__(self) -> None:
        self._queue_age = QueueAge()

    def take(self, before: EngineNow, figures: Figures, now_ns: int) -> EngineNow:
        """`before` with what is known now.

        What only grows is not let shrink: an engine may read two counters at two moments.
        """
        known: dict[str, int] = {
            name: value
            for name in Figures.__slots__
            if name != "ended" and (value := getattr(figures, name)) is not None
        }
        for name in _TOTALS:
            known[name] = max(known.get(name, 0), getattr(before, name))
        if "oldest_arrival_ns" not in known:
            known["oldest_arrival_ns"] = self._queue_age.oldest_arrival_ns(
                now_ns, known["requests_total"], known.get("waiting", 0)
            )
        return replace(before, updated_ns=now_ns, **known)


class QueueAge:
    """Infers the arrival of the longest waiting request of a first-come-first-served queue.

    With A(t) requests accepted until t and w of them waiting, the longest waiting one is number
    A − w + 1; it arrived when A reached that number. Exact to the time between two samples.
    """

    def __init__(self) -> None:
        self._arrived: deque[tuple[int, int]] = deque()

    def oldest_arrival_ns(self, now_ns: int, requests_total: int, waiting: int) -> int:
        """Take a sample, and give the arrival time (the clock of `now_ns`); 0 when none waits."""
        if not self._arrived or requests_total > self._arrived[-1][1]:
            self._arrived.append((now_ns, requests_total))
        number = requests_total - waiting + 1
        while len(self._arrived) > 1 and self._arrived[0][1] < number:
            self._arrived.popleft()
        if len(self._arrived) > MOST_SAMPLES:
            older = [self._arrived.popleft() for _ in range(MOST_SAMPLES // 2)]
            self._arrived.extendleft(reversed(older[::2]))
        return self._arrived[0][0] if waiting > 0 else 0
