"""One run: arrivals, a virtual engine and a control on one virtual clock; and what came of it."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from controller.policy_model import Slo
from controller.simulate.controls import Control, Seen
from controller.simulate.virtual_engine import EngineSpec, Served, VirtualEngine
from controller.simulate.workload import Arrival

ORIGIN_NS: Final = 1_000_000_000_000
"""When a run begins, by its clock: the contract's 0 means never."""

NEVER_NS: Final = 1 << 63

EDGE_SPACING_NS: Final = 3_000_000
"""As in the loop: edges closer together than this share one tick."""

DRAIN_S: Final = 600.0
"""A run ends this long after the last arrival, whatever is still waiting."""


@dataclass(frozen=True, slots=True)
class Spread:
    """Median and 99th percentile in ms; None where there was nothing."""

    p50: float | None
    p99: float | None


@dataclass(frozen=True, slots=True)
class Figures:
    """What came of one run.

    A request is good if it was served whole, its first token within the TTFT SLO and no gap over
    the gap SLO. `goodput_rps` is good requests a second of the time in which requests arrived,
    `tokens_per_s` is over the whole run. `changes` counts knob writes after the first second.
    """

    requests: int
    refused: int
    unfinished: int
    good: int
    attainment: float
    goodput_rps: float
    ttft_ms: Spread
    gap_ms: Spread
    max_ttft_ms: float | None
    tokens_per_s: float
    steps: int
    mean_step_ms: float
    changes: int
    changes_per_min: float
    ticks: int
    virtual_s: float

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Change:
    """The knobs from `at_s` on."""

    at_s: float
    values: dict[str, float]


@dataclass(frozen=True, slots=True)
class Run:
    """All that is known of a run."""

    figures: Figures
    served: Sequence[Served]
    changes: Sequence[Change]


def simulate(
    arrivals: Sequence[Arrival],
    spec: EngineSpec,
    slo: Slo,
    control: Control,
    seed: int = 0,
    drain_s: float = DRAIN_S,
) -> Run:
    """Serve `arrivals` with the engine of `spec` under `control`; `seed` is of the noise."""
    engine = VirtualEngine(spec, slo, seed)
    changes: list[Change] = []
    steps_seen = gaps_seen = ticks = 0
    at = 0
    now_ns = last_tick_ns = tick_ns = ORIGIN_NS
    end_ns = ORIGIN_NS + int((arrivals[-1].arrival_s + drain_s) * 1e9)
    times = [ORIGIN_NS + int(each.arrival_s * 1e9) for each in arrivals]
    while at < len(times) or engine.ends_ns is not None:
        arrival_ns = times[at] if at < len(times) else NEVER_NS
        ends_ns = engine.ends_ns if engine.ends_ns is not None else NEVER_NS
        if min(arrival_ns, ends_ns, tick_ns) > end_ns:
            break
        if ends_ns <= arrival_ns and ends_ns <= tick_ns:
            now_ns = ends_ns
            engine.end_step()
            if engine.crossed:
                engine.crossed = False
                tick_ns = min(tick_ns, max(now_ns, last_tick_ns + EDGE_SPACING_NS))
        elif arrival_ns <= tick_ns:
            now_ns = arrival_ns
            engine.submit(now_ns, arrivals[at].prompt_tokens, arrivals[at].answer_tokens)
            at += 1
        else:
            now_ns = last_tick_ns = tick_ns
            seen = Seen(
                now_ns,
                engine.counters(),
                engine.now(now_ns),
                engine.steps[steps_seen:],
                engine.gaps_ns[gaps_seen:],
            )
            steps_seen, gaps_seen = len(engine.steps), len(engine.gaps_ns)
            values = control.tick(seen)
            if values is not None:
                engine.set(values)
                changes.append(Change((now_ns - ORIGIN_NS) / 1e9, dict(values)))
            ticks += 1
            tick_ns = now_ns + control.period_ns()
    return Run(_figures(engine, slo, arrivals, changes, ticks, now_ns), engine.served, changes)


def is_good(served: Served, slo: Slo) -> bool:
    """Whether a request was served whole and in time."""
    return (
        served.tokens == served.answer_tokens
        and served.first_ns - served.arrival_ns <= slo.ttft_ms * 1e6
        and served.longest_gap_ns <= slo.gap_ms * 1e6
    )


def spread(values: Sequence[float]) -> Spread:
    """Of values in ns; by nearest rank."""
    ordered = sorted(values)

    def at(share: float) -> float | None:
        return ordered[max(1, math.ceil(share * len(ordered))) - 1] / 1e6 if ordered else None

    return Spread(at(0.5), at(0.99))


def _figures(
    engine: VirtualEngine,
    slo: Slo,
    arrivals: Sequence[Arrival],
    changes: Sequence[Change],
    ticks: int,
    now_ns: int,
) -> Figures:
    served = engine.served
    good = sum(is_good(each, slo) for each in served)
    ttfts_ns = [each.first_ns - each.arrival_ns for each in served if each.first_ns]
    virtual_s = max((now_ns - ORIGIN_NS) / 1e9, 1e-9)
    arriving_s = max(arrivals[-1].arrival_s - arrivals[0].arrival_s, 1.0)
    counted = sum(change.at_s >= 1 for change in changes)
    return Figures(
        requests=len(arrivals),
        refused=sum(each.refused for each in served),
        unfinished=len(arrivals)
        - sum(each.refused or each.tokens == each.answer_tokens for each in served),
        good=good,
        attainment=good / len(arrivals),
        goodput_rps=good / arriving_s,
        ttft_ms=spread(ttfts_ns),
        gap_ms=spread(engine.gaps_ns),
        max_ttft_ms=max(ttfts_ns) / 1e6 if ttfts_ns else None,
        tokens_per_s=sum(each.tokens for each in served) / virtual_s,
        steps=len(engine.steps),
        mean_step_ms=sum(step.step_ns for step in engine.steps) / max(1, len(engine.steps)) / 1e6,
        changes=counted,
        changes_per_min=counted / virtual_s * 60,
        ticks=ticks,
        virtual_s=virtual_s,
    )
