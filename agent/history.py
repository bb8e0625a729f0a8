"""The last minutes of an engine, once a second: what windows of status and explain are cut from."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from operator import lt
from typing import Final

from bpf.histogram import EMPTY, Histogram
from bpf.layout import Counters

KEPT: Final = 600
HISTOGRAMS_KEPT: Final = 120
"""Histograms are large; windows longer than this have figures without quantiles."""


@dataclass(frozen=True, slots=True)
class Moment:
    """What had been counted by `at_ns`. Everything in it only grows, but for `peaks`.

    `lost` is what the controller counts of the engine's cgroups; `peaks` are the largest figures
    since the moment before. `ended` streams ended, `good` of them within their SLO.
    """

    at_ns: int
    counters: Counters
    cause_ns: Mapping[str, int] = field(default_factory=dict)
    ttft: Histogram = EMPTY
    gap: Histogram = EMPTY
    wait: Histogram = EMPTY
    lost: Mapping[str, int] = field(default_factory=dict)
    peaks: Mapping[str, float] = field(default_factory=dict)
    ended: int = 0
    good: int = 0


@dataclass(frozen=True, slots=True)
class Window:
    """What happened between two moments."""

    seconds: float
    counters: Counters
    cause_ns: Mapping[str, int]
    ttft: Histogram
    gap: Histogram
    wait: Histogram
    lost: Mapping[str, int] = field(default_factory=dict)
    peaks: Mapping[str, float] = field(default_factory=dict)


class History:
    """Moments of one engine, oldest first."""

    def __init__(self) -> None:
        self._moments: deque[Moment] = deque(maxlen=KEPT)

    def add(self, moment: Moment) -> None:
        """Add the newest moment. One that counted less is of an engine that started anew."""
        if self._moments and went_back(self._moments[-1].counters, moment.counters):
            self._moments.clear()
        self._moments.append(moment)
        if len(self._moments) > HISTOGRAMS_KEPT:
            old = self._moments[-HISTOGRAMS_KEPT - 1]
            if old.ttft is not EMPTY:
                self._moments[-HISTOGRAMS_KEPT - 1] = replace(
                    old, ttft=EMPTY, gap=EMPTY, wait=EMPTY
                )

    @property
    def last(self) -> Moment | None:
        """The newest moment; None without any."""
        return self._moments[-1] if self._moments else None

    def moment(self, at_ns: int) -> Moment | None:
        """The last moment by `at_ns`, or the first there is; None without any."""
        first = self._moments[0] if self._moments else None
        return next((m for m in reversed(self._moments) if m.at_ns <= at_ns), first)

    def window(self, seconds: float) -> Window | None:
        """The last `seconds`, or as much of them as is known; None with less than two moments."""
        if len(self._moments) < 2:
            return None
        last = self._moments[-1]
        start_ns = last.at_ns - int(seconds * 1e9)
        first = next((m for m in reversed(self._moments) if m.at_ns <= start_ns), self._moments[0])
        with_histograms = next(m for m in self._moments if m.ttft is not EMPTY or m is last)
        base = first if first.ttft is not EMPTY else with_histograms
        return Window(
            seconds=(last.at_ns - first.at_ns) / 1e9,
            counters=last.counters.since(first.counters),
            cause_ns=_added(last.cause_ns, first.cause_ns),
            ttft=last.ttft.since(base.ttft),
            gap=last.gap.since(base.gap),
            wait=last.wait.since(base.wait),
            lost=_added(last.lost, first.lost),
            peaks=self._peaks(first.at_ns),
        )

    def _peaks(self, since_ns: int) -> dict[str, float]:
        peaks: dict[str, float] = {}
        for moment in reversed(self._moments):
            if moment.at_ns <= since_ns:
                break
            for name, value in moment.peaks.items():
                peaks[name] = max(value, peaks.get(name, value))
        return peaks


def _added(now: Mapping[str, int], before: Mapping[str, int]) -> dict[str, int]:
    return {name: value - before.get(name, 0) for name, value in now.items()}


def went_back(before: Counters, after: Counters) -> bool:
    """Whether something counted less afterwards: it is not the same target any more."""
    return any(map(lt, after, before))
