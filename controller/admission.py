"""Who waits: relegation of requests that will miss their TTFT, for the sake of those that can't.

When prompts arrive faster than they can be computed, first come first served makes every request
late; served are those that can still be on time, the rest as soon as there is slack, and none is
passed over beyond a bound (design sections 6.3 and 6.4). The engine orders its queue; what it needs
to know for that are leased knobs. The rate at which it computes prompts is not one of them: it
measures that best itself, and to follow it from here would be a write in every other tick.
"""

import math
from collections.abc import Mapping
from typing import Final

from controller.engines.contract import Knob
from controller.engines.page import EngineNow
from controller.policy_model import Slo
from controller.signals import Signals

DEADLINE: Final = "ttft_deadline_ms"
DEFERRAL: Final = "max_deferral_ms"

DEADLINE_SHARE: Final = 0.95
"""Of the TTFT target, so that a request is given up before it is late: the way to the user and the
step in which the first token is computed take the rest."""

PRESSED: Final = 0.25
"""A queue that takes this share of the TTFT target may soon make requests late."""

CALM_NS: Final = 10_000_000_000
"""Relegation is given back when no queue was pressed for so long."""

QUEUE_BAND: Final = 0.15
"""A cut of the queue's cap smaller than this share is not worth a write."""

QUEUE_GROWTH: Final = 0.5
"""Nor a raise smaller than this: what is remembered of a load fades over minutes, and the cap rises
with it."""

QUEUED: Final = "max_queued"
LEAST_QUEUED: Final = 4
"""However little the engine can do, some may wait."""


def can_relegate(knobs: Mapping[str, Knob], max_deferral_ms: int) -> bool:
    """Whether the engine can order its queue by deadline and the policy lets it."""
    return DEADLINE in knobs and max_deferral_ms > 0


def is_pressed(signals: Signals, engine: EngineNow, slo: Slo, rate_tokens_per_s: float) -> bool:
    """Whether the queue may soon make requests late: by its age, or by the time it will take."""
    if not engine.waiting:
        return False
    limit_ns = PRESSED * slo.ttft_ms * 1e6
    takes_ns = engine.waiting_tokens / rate_tokens_per_s * 1e9 if rate_tokens_per_s > 0 else 0.0
    return signals.queue_age_ns >= limit_ns or takes_ns >= limit_ns


def relegation_point(knobs: Mapping[str, Knob], slo: Slo, max_deferral_ms: int) -> dict[str, float]:
    """The knobs of relegation."""
    wanted = {DEADLINE: DEADLINE_SHARE * slo.ttft_ms, DEFERRAL: float(max_deferral_ms)}
    return {
        name: float(math.floor(min(max(value, knobs[name].minimum), knobs[name].maximum)))
        for name, value in wanted.items()
        if name in knobs
    }


def queue_point(
    knobs: Mapping[str, Knob], held: Mapping[str, float], most_queued: float
) -> dict[str, float]:
    """The knob that says how many may wait, at its start where `most_queued` is no less."""
    knob = knobs.get(QUEUED)
    if knob is None or math.isnan(most_queued):
        return {}
    if most_queued >= knob.start:
        return {QUEUED: knob.start}
    before = held.get(QUEUED, knob.start)
    wanted = float(math.floor(max(most_queued, knob.minimum, min(LEAST_QUEUED, knob.start))))
    band = QUEUE_GROWTH if wanted > before else QUEUE_BAND
    return {QUEUED: before if abs(wanted - before) <= band * before else wanted}
