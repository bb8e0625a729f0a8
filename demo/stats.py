"""What the figures of a phase are, from the client's records and the kernel's: pure functions."""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Spread:
    """Median, 99th percentile and largest of some values; None where there were none."""

    p50: float | None
    p99: float | None
    max: float | None


@dataclass(frozen=True, slots=True)
class Slo:
    """What each stream is owed, in ms."""

    ttft_ms: float
    gap_ms: float


class Answered(Protocol):
    """A request as the client saw it end."""

    @property
    def port(self) -> int:
        """The client's TCP port."""

    @property
    def sent_ns(self) -> int:
        """When its first byte was sent."""

    @property
    def ttft_ms(self) -> float | None:
        """Sent to first data chunk read; None without one."""

    @property
    def gaps_ms(self) -> Sequence[float]:
        """Between data chunks."""

    @property
    def chunks(self) -> int:
        """Data chunks."""

    @property
    def error(self) -> str:
        """Why it failed; empty if it did not."""


@dataclass(frozen=True, slots=True)
class PhaseFigures:
    """One phase, by the client alone. `goodput_rps` is good requests a second of the window."""

    slo_attainment: float
    ttft_ms: Spread
    gap_ms: Spread
    goodput_rps: float
    requests: int
    failed: int


@dataclass(frozen=True, slots=True)
class Comparison:
    """The kernel's streams against the client's requests.

    `mismatched` are streams whose chunk counts differ, or that only one side saw. Errors are
    absolute differences, of each stream's TTFT and of each stream's longest gap.
    """

    streams: int
    mismatched: int
    ttft_error_ms: tuple[float, ...]
    gap_error_ms: tuple[float, ...]

    def __add__(self, other: "Comparison") -> "Comparison":
        """Both together."""
        return Comparison(
            self.streams + other.streams,
            self.mismatched + other.mismatched,
            self.ttft_error_ms + other.ttft_error_ms,
            self.gap_error_ms + other.gap_error_ms,
        )


def percentile(values: Iterable[float], share: float) -> float | None:
    """The smallest value that at least `share` of `values` do not exceed (nearest rank)."""
    ordered = sorted(values)
    if not ordered:
        return None
    return ordered[max(1, math.ceil(share * len(ordered))) - 1]


def spread(values: Iterable[float]) -> Spread:
    """The spread of `values`."""
    ordered = sorted(values)
    return Spread(
        percentile(ordered, 0.5), percentile(ordered, 0.99), ordered[-1] if ordered else None
    )


def is_good(record: Answered, slo: Slo) -> bool:
    """Whether a request was answered whole, its first chunk and every next one in time."""
    return (
        not record.error
        and record.ttft_ms is not None
        and record.ttft_ms <= slo.ttft_ms
        and all(gap <= slo.gap_ms for gap in record.gaps_ms)
    )


def phase_figures(records: Sequence[Answered], slo: Slo, window_s: float) -> PhaseFigures:
    """The figures of a phase whose requests came within `window_s`; a failed one is not good."""
    good = sum(is_good(each, slo) for each in records)
    return PhaseFigures(
        slo_attainment=good / len(records) if records else 0.0,
        ttft_ms=spread(each.ttft_ms for each in records if each.ttft_ms is not None),
        gap_ms=spread(gap for each in records for gap in each.gaps_ms),
        goodput_rps=good / window_s,
        requests=len(records),
        failed=sum(bool(each.error) for each in records),
    )


def compare(records: Iterable[Answered], streams: Iterable[Mapping[str, Any]]) -> Comparison:
    """The client's records against the kernel's streams of the same time.

    `streams` are as the admin API shows them, in order of `seq`. Paired by the client's port and,
    where a port served several, by their order on it.
    """
    ours: defaultdict[int, list[Answered]] = defaultdict(list)
    for each in sorted(records, key=lambda record: record.sent_ns):
        if each.port:
            ours[each.port].append(each)
    theirs: defaultdict[int, list[Mapping[str, Any]]] = defaultdict(list)
    for stream in streams:
        theirs[stream["remote_port"]].append(stream)
    seen = mismatched = 0
    ttft_errors: list[float] = []
    gap_errors: list[float] = []
    for port in ours.keys() | theirs.keys():
        mine, kernel = ours[port], theirs[port]
        seen += max(len(mine), len(kernel))
        mismatched += abs(len(mine) - len(kernel))
        for record, stream in zip(mine, kernel, strict=False):
            mismatched += record.chunks != stream["chunks"]
            if record.ttft_ms is not None and stream["ttft_ms"] is not None:
                ttft_errors.append(abs(record.ttft_ms - stream["ttft_ms"]))
            if record.gaps_ms and stream["gap_max_ms"] is not None:
                gap_errors.append(abs(max(record.gaps_ms) - stream["gap_max_ms"]))
    return Comparison(seen, mismatched, tuple(ttft_errors), tuple(gap_errors))
