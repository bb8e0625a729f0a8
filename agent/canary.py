"""Two policies in turns, slice by slice, and what the streams that began in each slice met.

The order within each pair of slices is drawn, so that no rhythm of the load falls in with it. The
first part of a slice does not count: what the policy before it left behind is still going on.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from bpf.histogram import EMPTY, SLOTS, Histogram, slot_of
from bpf.layout import EndReason, Event, EventKind, Stream
from controller.canary import Kind, Verdict, judge, together
from controller.pairs import Pair, Tally
from controller.policy_model import Slo

PAIRS: Final = 9
"""As few as show an unevenness of all of them with 99.8%; see `controller.measures`."""

LONGEST_SLICE_S: Final = 30.0
SETTLE_SHARE: Final = 0.3
"""Of a slice that does not count."""

EXTENSION: Final = 3
"""A trial without enough traffic goes on to so many times its length."""

MAX_WAITING: Final = 100_000


@dataclass(frozen=True, slots=True)
class Plan:
    """How long a trial takes: so many pairs of slices, and no more than `most_pairs`."""

    pairs: int
    most_pairs: int
    slice_ns: int
    settle_ns: int

    @property
    def planned_s(self) -> float:
        """The length of the trial."""
        return 2 * self.pairs * self.slice_ns / 1e9

    @property
    def longest_s(self) -> float:
        """The length of one that had too little traffic."""
        return 2 * self.most_pairs * self.slice_ns / 1e9


def plan_of(seconds: float) -> Plan:
    """The plan of a trial of so long: of 180 s, nine pairs of slices of 10 s."""
    slice_s = min(seconds / (2 * PAIRS), LONGEST_SLICE_S)
    pairs = max(PAIRS, round(seconds / (2 * slice_s)))
    slice_ns = round(slice_s * 1e9)
    return Plan(pairs, EXTENSION * pairs, slice_ns, round(SETTLE_SHARE * slice_ns))


@dataclass(slots=True)
class _Count:
    """What is counted of one engine in one slice."""

    streams: int = 0
    bad: int = 0
    errors: int = 0
    ttft: Counter[int] = field(default_factory=Counter)
    ttft_sum_ns: int = 0
    gap_before: Histogram = EMPTY
    gap: Histogram = EMPTY

    def first_chunk(self, ttft_ns: int) -> None:
        self.ttft[slot_of(ttft_ns)] += 1
        self.ttft_sum_ns += ttft_ns

    def tally(self, overdue_ns: Iterable[int]) -> Tally:
        """With the requests that have waited too long already: so long at least, and counting."""
        slots, sum_ns, overdue = self.ttft.copy(), self.ttft_sum_ns, 0
        for waited_ns in overdue_ns:
            slots[slot_of(waited_ns)] += 1
            sum_ns += waited_ns
            overdue += 1
        ttft = Histogram(tuple(slots[slot] for slot in range(SLOTS)), sum_ns)
        return Tally(self.streams + overdue, self.bad + overdue, self.errors, ttft, self.gap)


@dataclass(slots=True)
class _Slice:
    """A slice of time under one policy; it counts from `counted_ns` to `end_ns`."""

    is_new: bool
    counted_ns: int
    end_ns: int
    counts: dict[str, _Count]
    counting: bool = False


class Canary:
    """The turns and the counts of one trial.

    `pairs` are those of each engine that is tried, and `verdict` how they stand, as of the last
    pair; both may be read from any thread.
    """

    def __init__(
        self,
        plan: Plan,
        tried: Collection[str],
        slos: Mapping[str, Slo],
        gaps: Callable[[str], Histogram],
        draw: Callable[[], bool],
        now_ns: int,
    ) -> None:
        """`slos` are the old policy's, of all engines, of which `tried` get the new one in turns.

        `gaps` is an engine's histogram of gaps so far; `draw` tosses a coin.
        """
        self.pairs: Mapping[str, Sequence[Pair]] = dict.fromkeys(tried, ())
        self.verdict = Verdict(Kind.WAITING, f"0 of {plan.pairs} pairs of slices")
        self._plan = plan
        self._tried = tuple(tried)
        self._slos = slos
        self._gaps = gaps
        self._draw = draw
        self._slices: list[_Slice] = []
        self._waiting: dict[tuple[int, int], tuple[str, int]] = {}
        self._begin(now_ns)

    @property
    def is_new(self) -> bool:
        """Whether it is the new policy's turn."""
        return self._slices[-1].is_new

    def tick(self, now_ns: int) -> Verdict | None:
        """Go on to what is due; the verdict when the trial is over."""
        now = self._slices[-1]
        if now_ns >= now.end_ns:
            self._end(now_ns)
            self._begin(now_ns)
        elif not now.counting and now_ns >= now.counted_ns:
            now.counting = True
            for name, count in now.counts.items():
                count.gap_before = self._gaps(name)
            # only now: streams of the last slice have had time to show how they go on
            if len(self._slices) % 2 and len(self._slices) > 1:
                self._judge(now_ns)
                return None if self.verdict.kind is Kind.WAITING else self.verdict
        return None

    def take(self, engine: str, event: Event) -> None:
        """Take an event of a stream."""
        stream = event.stream
        key = stream.connection, stream.number
        count = self._count(engine, stream.request_ns)
        if count is None:
            return
        if event.kind is EventKind.START:
            if len(self._waiting) < MAX_WAITING:
                self._waiting[key] = engine, stream.request_ns
            return
        self._waiting.pop(key, None)
        if event.kind is EventKind.FIRST:
            count.first_chunk(stream.ttft_ns or 0)
            return
        bad = is_bad(stream, event.reason, self._slos[engine])
        if bad is not None:
            count.streams += 1
            count.bad += bad
            count.errors += is_error(stream, event.reason)

    def _pairs(self, now_ns: int) -> Mapping[str, Sequence[Pair]]:
        """The complete pairs of each engine that is tried."""
        ended = self._slices[: (len(self._slices) - 1) // 2 * 2]
        overdue = self._overdue(now_ns)
        tallies = [
            {name: count.tally(overdue.get((at, name), ())) for name, count in each.counts.items()}
            for at, each in enumerate(ended)
        ]
        pairs: dict[str, list[Pair]] = {name: [] for name in self._tried}
        for at in range(0, len(ended), 2):
            new_at, old_at = (at, at + 1) if ended[at].is_new else (at + 1, at)
            old, new = tallies[old_at], tallies[new_at]
            for name, made in pairs.items():
                made.append(Pair(old[name], new[name], self._others(old), self._others(new)))
        return pairs

    def _judge(self, now_ns: int) -> None:
        self.pairs = self._pairs(now_ns)
        plan = self._plan
        self.verdict = together(
            [judge(pairs, plan.pairs, plan.most_pairs) for pairs in self.pairs.values()]
        )

    def _others(self, tallies: Mapping[str, Tally]) -> Tally:
        whole = Tally()
        for name, tally in tallies.items():
            if name not in self._tried:
                whole = whole.plus(tally)
        return whole

    def _begin(self, now_ns: int) -> None:
        first_of_pair = len(self._slices) % 2 == 0
        self._slices.append(
            _Slice(
                is_new=self._draw() if first_of_pair else not self.is_new,
                counted_ns=now_ns + self._plan.settle_ns,
                end_ns=now_ns + self._plan.slice_ns,
                counts={name: _Count() for name in self._slos},
            )
        )

    def _end(self, now_ns: int) -> None:
        ended = self._slices[-1]
        ended.end_ns = now_ns
        for name, count in ended.counts.items():
            if ended.counting:
                count.gap = _since(self._gaps(name), count.gap_before)

    def _count(self, engine: str, request_ns: int) -> _Count | None:
        """Where a request that came then is counted, None if it is not."""
        at = bisect_right(self._slices, request_ns, key=lambda each: each.counted_ns) - 1
        if at < 0 or request_ns >= self._slices[at].end_ns:
            return None
        return self._slices[at].counts.get(engine)

    def _overdue(self, now_ns: int) -> Mapping[tuple[int, str], list[int]]:
        """How long the requests without a chunk have waited, where that is too long already."""
        found: dict[tuple[int, str], list[int]] = {}
        for engine, request_ns in self._waiting.values():
            waited_ns = now_ns - request_ns
            if waited_ns > self._slos[engine].ttft_ms * 1e6:
                at = bisect_right(self._slices, request_ns, key=lambda each: each.counted_ns) - 1
                found.setdefault((at, engine), []).append(waited_ns)
        return found


def is_bad(stream: Stream, reason: EndReason | None, slo: Slo) -> bool | None:
    """Whether a stream missed `slo` or failed; None where its client ended it before one knew.

    Unlike `is_good` it does not go by the kernel's counts, which know only the SLO in force.
    """
    late = (stream.ttft_ns or 0) > slo.ttft_ms * 1e6 or stream.gap_max_ns > slo.gap_ms * 1e6
    if late or is_error(stream, reason):
        return True
    if reason is not EndReason.COMPLETE:
        return None
    return stream.ttft_ns is None and bool(stream.flags & stream.flags.EVENTS)


def is_error(stream: Stream, reason: EndReason | None) -> bool:
    """Whether the engine failed."""
    return stream.status >= 400 or reason is EndReason.SERVER_CLOSED


def _since(now: Histogram, before: Histogram) -> Histogram:
    """What was counted; none where the engine started anew meanwhile."""
    grown = now.since(before)
    return grown if min(grown.slots) >= 0 else EMPTY
