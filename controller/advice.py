"""Advice to whoever adds engines: how many this load needs, and when to warm one up. Pure.

Two formulas for the number stand side by side: the text's, from the latency there is, and one from
what an engine is known to hold. Nothing here acts; an autoscaler reads the figures as metrics.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

EXPONENT: Final = 1.5
"""Of the latency's ratio to its SLO (seed A14)."""

UTILISATION: Final = 0.8
"""Share of its capacity that an engine is to be loaded with, so that queues stay short."""

ROOM: Final = 0.1
"""One engine fewer is advised only if it would still do for this much more load."""

CALM_S: Final = 120.0
"""And only if that held for so long."""

QUEUE_HIGH: Final = 1.0
"""As many requests wait as run."""

LEAST_RUNNING: Final = 4
"""A queue is measured against at least so many."""

LATE_HIGH: Final = 1.0
"""P95 of the TTFT, as a share of its SLO."""

HITS_DROP_HIGH: Final = 0.2
"""The share by which KV hits are below their long mean."""

BACK: Final = 0.8
"""A trigger that fired stays until its figure is below this share of its threshold."""

HITS_MEMORY_S: Final = 600.0
"""Time constant of that long mean."""


def latency_factor(l99_ms: float, slo_ms: float) -> float:
    """max(1, (L99 / SLO)^1.5), seed A14.

    The text says that 20% more latency gives 34% more engines; by its formula it is 31%.
    """
    return max(1.0, math.pow(l99_ms / slo_ms, EXPONENT))


def band(l99_ms: float, slo_ms: float) -> tuple[float, float]:
    """The least and the largest factor of the text's table for a latency (seed A14).

    Below 150 ms 0.8, from 150 to 200 ms 1.0, from 200 ms on 1.3 to 2.1, all with an SLO of 200 ms;
    here the bounds are scaled to `slo_ms`. The table and the formula disagree: the formula never
    gives less than 1, gives 1.0 at the SLO where the table begins with 1.3, and has no upper end.
    """
    if l99_ms < 0.75 * slo_ms:
        return 0.8, 0.8
    return (1.0, 1.0) if l99_ms < slo_ms else (1.3, 2.1)


def banded_factor(l99_ms: float, slo_ms: float) -> float:
    """The formula's factor, kept within the band of the table."""
    least, most = band(l99_ms, slo_ms)
    return min(max(latency_factor(l99_ms, slo_ms), least), most)


def text_instances(rps: float, l99_ms: float, slo_ms: float, base_rps: float) -> int | None:
    """max(1, round(rps · max(1, (L99/SLO)^1.5) / base_tps)), seed A14; None without a base.

    `base_tps` is named after tokens and described as queries a second; the formula is right only
    for the latter: requests a second that one engine serves. The text measures the latency where
    overload has made it long already, so the number chases a queue, not a load.
    """
    if not 0 < base_rps < math.inf:
        return None
    need = rps * latency_factor(l99_ms, slo_ms) / base_rps
    return max(1, round(need)) if math.isfinite(need) else None


def load_ratio(planned_rps: float, capacity_rps: float) -> float | None:
    """How many such engines the load takes, each at `UTILISATION`; not rounded, None if unknown.

    `planned_rps` is a quantile of the load to come and no mean; `capacity_rps` is what an engine
    holds within its SLO (`laws.capacity_rps`).
    """
    if not 0 < capacity_rps < math.inf:
        return None
    ratio = planned_rps / (UTILISATION * capacity_rps)
    return ratio if math.isfinite(ratio) else None


@dataclass(frozen=True, slots=True)
class Held:
    """A number of engines that is advised; `lower_s` is since when fewer would do."""

    instances: int
    lower_s: float | None = None


def settle(held: Held | None, wanted: int, with_room: int, now_s: float) -> Held:
    """The number to advise now that a formula says `wanted`, and `with_room` for `ROOM` more load.

    More is advised at once. Fewer only when they would do for `CALM_S` even for `ROOM` more load:
    then neither noise about a threshold nor the load that the engine given up leaves to the others
    brings it back.
    """
    if held is None or wanted >= held.instances:
        return Held(wanted)
    if with_room >= held.instances:
        return Held(held.instances)
    if held.lower_s is None or now_s < held.lower_s:
        return Held(held.instances, now_s)
    return Held(with_room) if now_s - held.lower_s >= CALM_S else held


def fires(on: bool, figure: float, high: float) -> bool:
    """Whether a trigger is on: at `high` it fires, below `BACK` of it it goes off."""
    return figure >= (BACK * high if on else high)


def warm_replicas(triggers: Mapping[str, bool]) -> int:
    """Engines to start ahead of need: 1 if all triggers that can be seen are on, else 0.

    The text's chain (seed B19): queue depth, then P95, then a drop of the KV hit rate, then a warm
    replica starts. One sign alone is a burst, a slow request or a new topic. Without queue and P95
    nothing is advised; an engine that does not show its hits is judged by those two.
    """
    return int({"queue", "p95"} <= triggers.keys() and all(triggers.values()))


@dataclass(frozen=True, slots=True)
class Observed:
    """What is known of one engine at `now_s`; None for what is not.

    `rps` is the mean of the last minute in requests a second, `planned_rps` the quantile planned
    for. Latencies are of the first token. `kv_hit_rate` is 0…1.
    """

    now_s: float
    slo_ttft_ms: float
    rps: float
    planned_rps: float
    capacity_rps: float | None = None
    ttft_p95_ms: float | None = None
    ttft_p99_ms: float | None = None
    waiting: int | None = None
    running: int | None = None
    kv_hit_rate: float | None = None


_NO_TRIGGERS: Final[Mapping[str, bool]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Advice:
    """What is advised for one engine; None and missing triggers are what can't be known."""

    text: Held | None = None
    capacity: Held | None = None
    load_ratio: float | None = None
    triggers: Mapping[str, bool] = field(default_factory=lambda: _NO_TRIGGERS)
    mean_hit_rate: float | None = None
    at_s: float | None = None

    @property
    def instances(self) -> dict[str, int]:
        """The advised number by formula, where it is known."""
        formulas = {"text": self.text, "capacity": self.capacity}
        return {name: held.instances for name, held in formulas.items() if held is not None}

    @property
    def warm_replicas(self) -> int | None:
        """See `warm_replicas`; None without a single trigger."""
        return warm_replicas(self.triggers) if self.triggers else None


def advise(before: Advice, seen: Observed) -> Advice:
    """The advice after `seen`."""
    ratio = load_ratio(seen.planned_rps, seen.capacity_rps or 0.0)
    hits = _mean_hits(before, seen)
    return Advice(
        text=_by_text(before.text, seen),
        capacity=None
        if ratio is None
        else settle(before.capacity, _whole(ratio), _whole(ratio * (1 + ROOM)), seen.now_s),
        load_ratio=ratio,
        triggers=_triggers(before.triggers, seen, hits),
        mean_hit_rate=hits,
        at_s=seen.now_s,
    )


def _whole(need: float) -> int:
    return max(1, math.ceil(need))


def _by_text(held: Held | None, seen: Observed) -> Held | None:
    if seen.capacity_rps is None:
        return None
    # no first token at all: nothing speaks for more than the load does
    l99_ms = seen.ttft_p99_ms or 0.0
    wanted, with_room = (
        text_instances(rps, l99_ms, seen.slo_ttft_ms, seen.capacity_rps)
        for rps in (seen.rps, seen.rps * (1 + ROOM))
    )
    if wanted is None or with_room is None:
        return None
    return settle(held, wanted, with_room, seen.now_s)


def _triggers(
    before: Mapping[str, bool], seen: Observed, mean_hits: float | None
) -> dict[str, bool]:
    figures: dict[str, tuple[float, float]] = {}
    if seen.waiting is not None and seen.running is not None:
        figures["queue"] = seen.waiting / max(seen.running, LEAST_RUNNING), QUEUE_HIGH
    if seen.ttft_p95_ms is not None:
        figures["p95"] = seen.ttft_p95_ms / seen.slo_ttft_ms, LATE_HIGH
    elif seen.waiting == 0:
        figures["p95"] = 0.0, LATE_HIGH
    if seen.kv_hit_rate is not None and mean_hits:
        figures["kv_hits"] = 1 - seen.kv_hit_rate / mean_hits, HITS_DROP_HIGH
    return {
        name: fires(before.get(name, False), figure, high)
        for name, (figure, high) in figures.items()
    }


def _mean_hits(before: Advice, seen: Observed) -> float | None:
    if seen.kv_hit_rate is None:
        return before.mean_hit_rate
    if before.mean_hit_rate is None or before.at_s is None:
        return seen.kv_hit_rate
    new = 1 - math.exp(-max(0.0, seen.now_s - before.at_s) / HITS_MEMORY_S)
    return before.mean_hit_rate + new * (seen.kv_hit_rate - before.mean_hit_rate)
