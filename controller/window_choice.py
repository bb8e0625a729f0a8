"""Whether an engine's batch window is to be changed: the law of `controller.window`, and its price.

Where a change is a reload, it is not made to be a little better, only where the window in force
fails and another does not, and so seldom that reloads take little of the time.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from controller.engines.contract import RELOAD, Knob
from controller.guards import CUT_BAND, DEAD_BAND, rest_ns
from controller.laws import MARGIN, noise_margin
from controller.step_model import TRUST_STEPS, StepModel
from controller.window import (
    BatchTime,
    allowed_window_ms,
    batch_window,
    needed_window_ms,
)

WINDOW: Final = "batch_window_ms"

FAILING: Final = 0.95
"""Share of the SLO that the first request of a batch may take before the window in force fails; the
law plans for less, so that what it sets does not fail at once."""

FIRM_NS: Final = 3_000_000_000
"""The window in force has to fail for so long."""

KNOWN_ERROR: Final = 0.5
"""Mean relative error of a model up to which it says something of a batch."""

EVERY_NS: Final = 1_000_000_000
"""How often a window that costs nothing to change follows the load."""


@dataclass(frozen=True, slots=True)
class WindowMemory:
    """When the window was last changed by us, and since when the one in force fails."""

    changed_ns: int | None = None
    failing_ns: int | None = None


@dataclass(frozen=True, slots=True)
class Demand:
    """What the window is for: items a second to plan for, the latency owed, who waits.

    `largest_batch` is infinity where it is not known. `change_ns` is what the last change took.
    """

    now_ns: int
    arrival_rps: float
    latency_slo_ms: float
    largest_batch: float
    pressed: bool
    change_ns: int


def choose_window(
    knob: Knob, held: Mapping[str, float], memory: WindowMemory, model: StepModel, demand: Demand
) -> tuple[WindowMemory, float | None]:
    """The window to set in ms, None to leave it; `held` are the knobs that we hold.

    Nothing is changed while the time of a batch is not known, or nothing arrives.
    """
    if not is_known(model) or demand.arrival_rps <= 0:
        return WindowMemory(memory.changed_ns), None
    batch, current = batch_time(model), held.get(knob.name, knob.start)
    law = batch_window(
        batch,
        demand.arrival_rps,
        demand.latency_slo_ms,
        noise_margin(MARGIN, model.error),
        demand.largest_batch,
    )
    wanted = min(max(float(law.ms), math.ceil(knob.minimum)), knob.maximum)
    band = DEAD_BAND if wanted > current else CUT_BAND
    needless = wanted > current >= needed_window_ms(batch, demand.arrival_rps)
    if needless or abs(wanted - current) <= max(1.0, band * current):
        return WindowMemory(memory.changed_ns), None
    if knob.cost == RELOAD:
        if not _fails(batch, current, wanted, demand):
            return WindowMemory(memory.changed_ns), None
        since_ns = demand.now_ns if memory.failing_ns is None else memory.failing_ns
        memory = WindowMemory(memory.changed_ns, since_ns)
        if demand.now_ns - since_ns < FIRM_NS:
            return memory, None
    rest = rest_ns(demand.change_ns) if knob.cost == RELOAD else EVERY_NS
    if memory.changed_ns is not None and demand.now_ns - memory.changed_ns < rest:
        return memory, None
    return WindowMemory(demand.now_ns), wanted


def batch_time(model: StepModel) -> BatchTime:
    """An engine that batches by window counts each item as a prompt token."""
    return BatchTime(model.base_ms, model.prefill_ms)


def is_known(model: StepModel) -> bool:
    """Whether the model says enough of a batch for its window.

    That is less than it takes to fill a step up to the gap SLO: a batch's time is a part of what a
    request waits, and the plan leaves room for the model's error.
    """
    return model.steps >= TRUST_STEPS and model.error <= KNOWN_ERROR and model.prefill_ms > 0


def _fails(batch: BatchTime, current: float, wanted: float, demand: Demand) -> bool:
    """Whether users are late by the window in force and would be less so by the other."""
    rate, slo_ms = demand.arrival_rps, demand.latency_slo_ms
    if wanted < current:
        fills_ms = (demand.largest_batch - 1) * 1e3 / rate
        return min(current, fills_ms) > allowed_window_ms(batch, rate, slo_ms, FAILING)
    return demand.pressed
