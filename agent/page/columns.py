"""What the page draws over time: the last half hour of every engine, five seconds a column.

A column has counts of first tokens and of gaps by half octaves, how long each cause was at work,
and where the knobs stood at its end. Memory: a column is at most 2 kB, so an engine's are at most
0.7 MB, and a tenth of that where few buckets are used; `MAX_ENGINES` bounds them all.
"""

import threading
from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

from agent.history import Moment, went_back
from bpf.histogram import EMPTY, Histogram

STEP_S: Final = 5
KEPT: Final = 360
MAX_ENGINES: Final = 64
"""Engines beyond these are listed without columns."""

TTFT_BOUNDS_MS: Final = tuple(2 ** (half / 2) for half in range(33))
"""Upper bounds of the buckets, 1 ms to 66 s in half octaves; one more has what is above."""

GAP_BOUNDS_MS: Final = tuple(2 ** (half / 2 - 2) for half in range(33))
"""The same for gaps, 0.25 ms to 16 s."""

_STEP_NS: Final = STEP_S * 1_000_000_000

Counts = tuple[tuple[int, int], ...]
"""Bucket and count of every bucket that has any."""


@dataclass(frozen=True, slots=True)
class Column:
    """One step: `number` times `STEP_S` is when it began, on the monotonic clock.

    `risk` has the share of the step in which each cause put the SLO at risk.
    """

    number: int
    ttft: Counts
    gap: Counts
    risk: Mapping[str, float]
    ended: int
    good: int
    knobs: Mapping[str, float]
    running: int | None
    waiting: int | None

    def as_dict(self) -> dict[str, Any]:
        """For JSON, under the same names."""
        return {
            "number": self.number,
            "ttft": self.ttft,
            "gap": self.gap,
            "risk": self.risk,
            "ended": self.ended,
            "good": self.good,
            "knobs": self.knobs,
            "running": self.running,
            "waiting": self.waiting,
        }


class Columns:
    """Columns of every engine. Every method may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._columns: dict[str, deque[Column]] = {}
        self._began: dict[str, Moment] = {}

    def take(self, engine: str, moment: Moment, status: Mapping[str, Any] | None) -> None:
        """Take a look at an engine, about once a second; `status` is the controller's word on it.

        The first look at or after the end of a step completes its column.
        """
        with self._lock:
            began = self._began.get(engine)
            if began is None and len(self._began) >= MAX_ENGINES:
                return
            if began is None or went_back(began.counters, moment.counters):
                self._began[engine] = moment
            elif began.at_ns // _STEP_NS < moment.at_ns // _STEP_NS:
                columns = self._columns.setdefault(engine, deque(maxlen=KEPT))
                columns.append(_column(began, moment, status))
                self._began[engine] = moment

    def keep(self, engines: Collection[str]) -> None:
        """Forget all other engines."""
        with self._lock:
            for kept in (self._columns, self._began):
                for name in kept.keys() - set(engines):
                    del kept[name]

    def after(self, engine: str, number: int) -> list[Column]:
        """An engine's columns with a higher number, oldest first."""
        with self._lock:
            return [each for each in self._columns.get(engine, ()) if each.number > number]


def _column(began: Moment, ended: Moment, status: Mapping[str, Any] | None) -> Column:
    length_ns = ended.at_ns - began.at_ns
    knobs: dict[str, float] = {}
    now = None
    if status is not None:
        knobs = {name: fields["value"] for name, fields in status["knobs"].items()}
        if status["cpu_weight"] is not None:
            knobs["cpu_weight"] = status["cpu_weight"]["value"]
        now = status["now"]
    return Column(
        number=ended.at_ns // _STEP_NS - 1,
        ttft=counts(ended.ttft.since(began.ttft), TTFT_BOUNDS_MS),
        gap=counts(ended.gap.since(began.gap), GAP_BOUNDS_MS),
        risk={
            cause: round(min(1.0, ns / length_ns), 3)
            for cause, total in ended.cause_ns.items()
            if (ns := total - began.cause_ns.get(cause, 0)) > 0
        },
        ended=max(0, ended.ended - began.ended),
        good=max(0, ended.good - began.good),
        knobs=knobs,
        running=now["running"] if now is not None else None,
        waiting=now["waiting"] if now is not None else None,
    )


def counts(histogram: Histogram, bounds_ms: tuple[float, ...]) -> Counts:
    """A histogram's counts by coarser buckets; of one that shrank, nothing."""
    if histogram == EMPTY or min(histogram.slots) < 0:
        return ()
    totals = [*histogram.cumulative([round(bound * 1e6) for bound in bounds_ms]), histogram.count]
    found = zip(totals, [0, *totals], strict=False)
    return tuple((at, now - before) for at, (now, before) in enumerate(found) if now > before)
