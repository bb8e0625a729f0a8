"""What came of each decision: the engine's streams in the seconds after it, beside those before.

A decision is not the only thing that happens in ten seconds: load comes and goes. So each outcome
says how many requests arrived before and after, and whether that differs so much that the score
says little.
"""

from collections import Counter as Tally
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from agent.history import Moment, went_back

AFTER_NS: Final = 5_000_000_000
"""What is looked at on each side of a decision. Long enough for some hundred chunks and for streams
that wait for their first one; short enough that the next decisions are not all in it."""

LEAST_BEFORE_NS: Final = 1_000_000_000
"""Less than this before a decision tells nothing to compare with."""

DIFFERENCE: Final = 0.01
"""Change of the violation share below which things are called the same."""

LOAD_FACTOR: Final = 1.5
"""Requests a second that grew or shrank by more than this explain a change by themselves."""

MAX_OPEN: Final = 1_000
"""Decisions whose outcome is awaited; the oldest of more get none."""


@dataclass(frozen=True, slots=True)
class Span:
    """What an engine's streams met in `seconds`; `under_way` streams had not ended at its end."""

    seconds: float
    requests: int
    chunks: int
    gaps: int
    gaps_over: int
    started: int
    ttft_over: int
    ended: int
    good: int
    under_way: int

    @property
    def violation_share(self) -> float | None:
        """Share of the gaps over their SLO plus share of the streams started over theirs, 0…2.

        1 where streams were under way and no chunk came at all: they met neither. None where
        nothing says anything.
        """
        if not self.chunks and not self.started:
            return 1.0 if self.under_way else None
        gaps = self.gaps_over / self.gaps if self.gaps else 0.0
        return gaps + (self.ttft_over / self.started if self.started else 0.0)

    def as_dict(self) -> dict[str, Any]:
        """For JSON, with its rates."""
        return {
            "seconds": round(self.seconds, 3),
            "requests": self.requests,
            "requests_per_s": self.requests / self.seconds,
            "chunks": self.chunks,
            "gaps": self.gaps,
            "gaps_over": self.gaps_over,
            "started": self.started,
            "ttft_over": self.ttft_over,
            "ended": self.ended,
            "good": self.good,
            "goodput_per_s": self.good / self.seconds,
            "violation_share": self.violation_share,
        }


def span_between(first: Moment, last: Moment) -> Span | None:
    """What happened between two moments; None if the engine began anew between them."""
    if last.at_ns <= first.at_ns or went_back(first.counters, last.counters):
        return None
    counters, totals = last.counters.since(first.counters), last.counters
    return Span(
        seconds=(last.at_ns - first.at_ns) / 1e9,
        requests=counters.requests,
        chunks=counters.chunks,
        gaps=counters.gaps,
        gaps_over=counters.gaps_over,
        started=counters.first_chunks,
        ttft_over=counters.ttft_over,
        ended=last.ended - first.ended,
        good=last.good - first.good,
        under_way=max(0, totals.requests - totals.ends_complete - totals.ends_early),
    )


def outcome_of(before: Span | None, after: Span, others: int) -> dict[str, Any]:
    """An outcome for the journal.

    `score` is the violation share after less that before: above zero is worse. None where either
    is not known. `others` are the engine's further decisions within the seconds after.
    """
    then = before.violation_share if before is not None else None
    now = after.violation_share
    score = now - then if now is not None and then is not None else None
    return {
        "verdict": _verdict(score),
        "score": score,
        "load_changed": before is not None and _load_changed(before, after),
        "other_decisions": others,
        "before": before.as_dict() if before is not None else None,
        "after": after.as_dict(),
    }


@dataclass(frozen=True, slots=True)
class _Open:
    tag: int
    engine: str
    decided: Moment
    before: Span | None
    nth: int


class Outcomes:
    """Decisions whose outcome is not known yet."""

    def __init__(self, put: Callable[[int, Mapping[str, Any]], None]) -> None:
        """`put` takes an outcome and the tag of its decision."""
        self._put = put
        self._open: deque[_Open] = deque(maxlen=MAX_OPEN)
        self._decisions: Tally[str] = Tally()

    def decided(self, tag: int, engine: str, now: Moment, earlier: Moment | None) -> None:
        """A decision was made; `earlier` is how things stood `AFTER_NS` before, if known."""
        self._decisions[engine] += 1
        known = earlier is not None and now.at_ns - earlier.at_ns >= LEAST_BEFORE_NS
        before = span_between(earlier, now) if earlier is not None and known else None
        self._open.append(_Open(tag, engine, now, before, self._decisions[engine]))

    def settle(self, now_ns: int, moment: Callable[[str], Moment]) -> None:
        """Write the outcomes that are due; `moment` says how an engine stands now."""
        while self._open and now_ns - self._open[0].decided.at_ns >= AFTER_NS:
            due = self._open.popleft()
            after = span_between(due.decided, moment(due.engine))
            if after is not None:
                others = self._decisions[due.engine] - due.nth
                self._put(due.tag, outcome_of(due.before, after, others))

    def forget(self) -> None:
        """What was decided is undone: what follows says nothing of it."""
        self._open.clear()


def _verdict(score: float | None) -> str:
    if score is None:
        return "unknown"
    if abs(score) < DIFFERENCE:
        return "same"
    return "worse" if score > 0 else "better"


def _load_changed(before: Span, after: Span) -> bool:
    then, now = before.requests / before.seconds, after.requests / after.seconds
    return now > LOAD_FACTOR * then or then > LOAD_FACTOR * now
