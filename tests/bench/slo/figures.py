"""What a run is worth: pure functions of the client's records."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from demo.client import Record
from demo.stats import Slo, Spread, is_good, spread

MOSTLY: Final = 0.01
"""Share of a request's gaps that may be over for the second, milder figure."""

REFUSALS: Final = (429, 503)


@dataclass(frozen=True, slots=True)
class Run:
    """One run as kept: the window's records, those of the warm-up, and what else was seen."""

    records: Sequence[Record]
    warm_up: Sequence[Record]
    window_s: float
    slo: Slo
    seen: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one or several runs together.

    `goodput_rps` are requests a second whose first chunk and every gap were in time;
    `goodput_mostly_rps` lets 1% of a request's gaps be late. `refused` are answers of 429 or 503,
    `failed` everything else that went wrong. `unloaded_ttft_ms` and `unloaded_gap_ms` are
    the warm-up's medians.
    """

    goodput_rps: float
    attainment: float
    goodput_mostly_rps: float
    attainment_mostly: float
    ttft_attainment: float
    gap_attainment: float
    ttft_ms: Spread
    gap_ms: Spread
    tokens_per_s: float
    requests: int
    failed: int
    refused: int
    longest_wait_ms: float | None
    unloaded_ttft_ms: float | None
    unloaded_gap_ms: float | None
    offered_rps: float
    client_late_ms: float | None

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def mostly_good(record: Record, slo: Slo) -> bool:
    """Whether a request's first chunk came in time, and all but 1% of the next ones."""
    if record.error or record.ttft_ms is None or record.ttft_ms > slo.ttft_ms:
        return False
    over = sum(gap > slo.gap_ms for gap in record.gaps_ms)
    return over <= MOSTLY * len(record.gaps_ms)


def figures(runs: Sequence[Run]) -> Figures:
    """The figures of these runs together: sums over all their windows, percentiles over all."""
    pairs = [(record, run.slo) for run in runs for record in run.records]
    records = [record for record, _ in pairs]
    window_s = sum(run.window_s for run in runs)
    good = sum(is_good(record, slo) for record, slo in pairs)
    mostly = sum(mostly_good(record, slo) for record, slo in pairs)
    in_time = sum(r.ttft_ms is not None and r.ttft_ms <= slo.ttft_ms for r, slo in pairs)
    smooth = sum(not r.error and all(g <= slo.gap_ms for g in r.gaps_ms) for r, slo in pairs)
    count = len(records)
    refused = sum(record.status in REFUSALS for record in records)
    ttfts = [record.ttft_ms for record in records if record.ttft_ms is not None]
    return Figures(
        goodput_rps=good / window_s,
        attainment=good / count if count else 0.0,
        goodput_mostly_rps=mostly / window_s,
        attainment_mostly=mostly / count if count else 0.0,
        ttft_attainment=in_time / count if count else 0.0,
        gap_attainment=smooth / count if count else 0.0,
        ttft_ms=spread(ttfts),
        gap_ms=spread(gap for record in records for gap in record.gaps_ms),
        tokens_per_s=_tokens_per_s(runs),
        requests=count,
        failed=sum(bool(record.error) for record in records) - refused,
        refused=refused,
        longest_wait_ms=max(ttfts, default=None),
        unloaded_ttft_ms=spread(
            r.ttft_ms for run in runs for r in run.warm_up if r.ttft_ms is not None
        ).p50,
        unloaded_gap_ms=spread(gap for run in runs for r in run.warm_up for gap in r.gaps_ms).p50,
        offered_rps=count / window_s,
        client_late_ms=max(
            ((record.sent_ns - record.planned_ns) / 1e6 for record in records), default=None
        ),
    )


def _tokens_per_s(runs: Iterable[Run]) -> float:
    """Generated tokens over the time from the first request to the last answer's end."""
    tokens = took_ns = 0
    for run in runs:
        if run.records:
            tokens += sum(record.chunks for record in run.records)
            begun_ns = min(record.sent_ns for record in run.records)
            took_ns += max(record.ended_ns for record in run.records) - begun_ns
    return tokens * 1e9 / took_ns if took_ns else 0.0


def holds_from_s(
    records: Iterable[Record], slo: Slo, from_ns: int, until_ns: int, target: float
) -> float | None:
    """Seconds from `from_ns` to when the SLO holds: the next `SPAN_NS` of requests reach `target`.

    Requests are taken by when they were sent, up to `until_ns`. None if it never holds.
    """
    sent = sorted(
        (each.sent_ns, is_good(each, slo)) for each in records if from_ns <= each.sent_ns < until_ns
    )
    for index, (begin_ns, _) in enumerate(sent):
        if begin_ns + SPAN_NS > until_ns:
            break
        span = [good for at_ns, good in sent[index:] if at_ns < begin_ns + SPAN_NS]
        if sum(span) >= target * len(span):
            return (begin_ns - from_ns) / 1e9
    return None


SPAN_NS: Final = 2_000_000_000
"""Some dozens of requests: by chance they are not all good."""
