"""Which requests to defer, and how much to give those that waited long: variants, simulated.

`python -m tests.bench.relegation`: the reference scheduler under the gap law's budget, its steps
timed by a formula, on the excerpts of the two Azure traces at several speeds. One table and
build/relegation.json. Everything here is simulated; no engine runs.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, cast

from controller.plugins.relegation import Relegation, Rules
from controller.plugins.token_priority import prefill_sensitivity, written_priority
from controller.reference.scheduler import Limits, Scheduler
from controller.reference.scheduler import Sequence as Scheduled
from controller.simulate.virtual_engine import EXAMPLE
from controller.simulate.workload import Arrival, Scale, read_trace

TRACES: Final = Path(__file__).parent / "traces"
OUT: Final = Path(__file__).parents[2] / "build" / "relegation.json"
LOADS: Final = (("code", 1), ("code", 2), ("code", 4), ("conv", 1), ("conv", 2), ("conv", 3))
"""Trace and how many times as fast; the engine of `EXAMPLE` can serve the first of each."""

TTFT_MS: Final = 2000
GAP_MS: Final = 50
DEADLINE_MS: Final = 1900
MARGIN: Final = 0.9
LEAST_TOKENS: Final = 64
MOST_TOKENS: Final = 8192
MAX_RUNNING: Final = 128
KV_TOKENS: Final = 1 << 40
"""No limit: the order is judged here, not the cache."""


@dataclass(frozen=True, slots=True)
class Variant:
    """A way to order the queue; `deadline_ms` 0 is first come, first served."""

    name: str
    queue: Callable[[], Relegation[int]]
    deadline_ms: int = DEADLINE_MS
    bound_ms: int = 0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one load under one variant.

    `good` is the share of requests with their first token within `TTFT_MS` and at most 1% of their
    gaps over `GAP_MS`, `good_long` the same of the quarter with the longest prompts. `ttft_s` are
    the 50th, 90th and 99th percentiles, `longest_wait_s` is from arrival to admission.
    """

    good: float
    good_long: float
    ttft_s: tuple[float, float, float]
    longest_wait_s: float


@dataclass(slots=True)
class _Fate:
    arrival: Arrival
    begun_s: float = -1.0
    first_s: float = -1.0
    last_s: float = 0.0
    gaps_over: int = 0

    @property
    def good(self) -> bool:
        late = self.first_s - self.arrival.arrival_s > TTFT_MS / 1e3
        return not late and self.gaps_over <= self.arrival.answer_tokens // 100


class DropLate:
    """Defers the request that would itself be late, and leaves it so."""

    def __init__(self) -> None:
        self.deferred = 0
        self._on_time: dict[int, tuple[int, int]] = {}
        self._late: dict[int, tuple[int, int]] = {}

    def __len__(self) -> int:
        return len(self._on_time) + len(self._late)

    def add(self, key: int, arrival_ns: int, tokens: int) -> None:
        """A request waits."""
        self._on_time[key] = (arrival_ns, tokens)

    def update(self, now_ns: int, tokens_ahead: int, rules: Rules) -> None:
        """Predict each in turn."""
        ns_per_token = 1e9 / rules.known_rate
        for key, (arrival_ns, tokens) in list(self._on_time.items()):
            if now_ns + (tokens_ahead + tokens) * ns_per_token > arrival_ns + rules.deadline_ns:
                self._late[key] = self._on_time.pop(key)
                self._late = dict(sorted(self._late.items()))
            else:
                tokens_ahead += tokens

    def first(self, *, yielding: bool) -> int | None:
        """Whose turn it is."""
        return next(iter(self._on_time or (self._late if yielding else ())), None)

    def is_aged(self, arrival_ns: int, now_ns: int) -> bool:
        """There is no bound here."""
        return False

    def take(self, key: int) -> bool:
        """A request is admitted."""
        return self._on_time.pop(key, None) is None and bool(self._late.pop(key))


class Written:
    """By the priority of seed row A4 as it is written."""

    def __init__(self) -> None:
        self._arrivals_ns: dict[int, int] = {}
        self._now_ns = 0

    def __len__(self) -> int:
        return len(self._arrivals_ns)

    def add(self, key: int, arrival_ns: int, tokens: int) -> None:
        """A request waits."""
        self._arrivals_ns[key] = arrival_ns

    def update(self, now_ns: int, tokens_ahead: int, rules: Rules) -> None:
        """The time."""
        self._now_ns = now_ns

    def first(self, *, yielding: bool) -> int | None:
        """Whose turn it is."""

        def priority(key: int) -> float:
            waited_ms = (self._now_ns - self._arrivals_ns[key]) / 1e6
            return written_priority(prefill_sensitivity(0), waited_ms)

        return max(reversed(self._arrivals_ns), key=priority, default=None)

    def take(self, key: int) -> bool:
        """A request is admitted."""
        del self._arrivals_ns[key]
        return False


def other(queue: Callable[[], DropLate | Written]) -> Callable[[], Relegation[int]]:
    """A queue with as much of `Relegation` as the scheduler needs here."""
    return lambda: cast(Relegation[int], queue())


VARIANTS: Final = (
    Variant("first come, first served", Relegation, deadline_ms=0),
    Variant("priority of A4 as written", other(Written)),
    Variant("drop the late one", other(DropLate)),
    Variant("drop the longest (Moore)", Relegation),
    *(
        Variant(
            f"the same, {share:.0%} at {bound_s} s",
            partial(Relegation[int], share),
            bound_ms=bound_s * 1000,
        )
        for bound_s in (30, 60)
        for share in (0.1, 0.25, 0.5)
    ),
)


def run(arrivals: Sequence[Arrival], variant: Variant) -> Outcome:
    """Serve `arrivals` to the last token."""
    scheduler = Scheduler(KV_TOKENS, variant.queue())
    fates = [_Fate(arrival) for arrival in arrivals]
    now_s, come, kv = 0.0, 0, 0
    while come < len(fates) or scheduler.waiting or scheduler.running:
        decoding = scheduler.running
        limits = Limits(
            MAX_RUNNING,
            decoding + _budget(decoding, kv),
            MOST_TOKENS,
            1 << 40,
            variant.deadline_ms,
            max_deferral_ms=variant.bound_ms,
        )
        while come < len(fates) and fates[come].arrival.arrival_s <= now_s:
            each = fates[come].arrival
            arrival_ns = int(each.arrival_s * 1e9)
            scheduler.add(
                Scheduled(come, each.prompt_tokens, each.answer_tokens, arrival_ns), limits
            )
            come += 1
        plan = scheduler.plan(limits, int(now_s * 1e9))
        if plan.empty:
            now_s = fates[come].arrival.arrival_s
            continue
        for part in plan.prefills:
            if part.first == 0:
                fates[part.sequence.key].begun_s = now_s
        kv = sum(each.prompt_tokens + each.generated for each in plan.decodes)
        kv += sum(each.first + each.count for each in plan.prefills)
        now_s += EXAMPLE.times.mean_ms(plan.prefill_tokens, len(plan.decodes), kv) / 1e3
        for sequence in plan.sampled():
            _deliver(fates[sequence.key], now_s)
        scheduler.advance(plan, (), int(now_s * 1e9))
    return _outcome(fates)


def _budget(decoding: int, kv_tokens: int) -> int:
    """Prompt tokens with which a step keeps the gap SLO; all there may be without a stream."""
    if not decoding:
        return MOST_TOKENS
    left_ms = MARGIN * GAP_MS - EXAMPLE.times.mean_ms(0, decoding, kv_tokens)
    return max(LEAST_TOKENS, int(left_ms / EXAMPLE.times.prefill_ms))


def _deliver(fate: _Fate, now_s: float) -> None:
    if fate.first_s < 0:
        fate.first_s = now_s
    elif now_s - fate.last_s > GAP_MS / 1e3:
        fate.gaps_over += 1
    fate.last_s = now_s


def _outcome(fates: Sequence[_Fate]) -> Outcome:
    by_length = sorted(fates, key=lambda fate: fate.arrival.prompt_tokens)
    longest = by_length[3 * len(fates) // 4 :]
    ttfts = sorted(fate.first_s - fate.arrival.arrival_s for fate in fates)
    p50, p90, p99 = (ttfts[len(ttfts) * percent // 100] for percent in (50, 90, 99))
    return Outcome(
        sum(fate.good for fate in fates) / len(fates),
        sum(fate.good for fate in longest) / len(longest),
        (p50, p90, p99),
        max(fate.begun_s - fate.arrival.arrival_s for fate in fates),
    )


def main() -> None:
    """Every variant on every load."""
    found: dict[str, Mapping[str, Any]] = {}
    for trace, speed in LOADS:
        arrivals = Scale(speed=speed).apply(read_trace(TRACES / f"azure_{trace}.csv", 4000))
        print(f"\n{trace} at {speed} times its speed, {len(arrivals)} requests; simulated")
        print(f"{'':34}  good  of long  TTFT P50/P90/P99 s  longest wait s")
        for variant in VARIANTS:
            got = run(arrivals, variant)
            ttfts = "/".join(f"{each:.1f}" for each in got.ttft_s)
            print(
                f"{variant.name:34} {got.good:.3f}   {got.good_long:.3f}  {ttfts:>18}"
                f"  {got.longest_wait_s:14.1f}",
                flush=True,
            )
            found[f"{trace} x{speed}, {variant.name}"] = asdict(got)
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_text(json.dumps({"label": "simulated", "runs": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
