"""The engine's batching: prefill budget and running cap, from the step model under the guards."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from controller.actions import Proposal, ReleaseKnobs, SetKnobs
from controller.attribution import OUTSIDE, Cause
from controller.engines.contract import Knob
from controller.engines.page import EngineNow
from controller.guards import DWELL_STEPS, Range, toward
from controller.laws import MARGIN, prefill_budget, rate_floor, running_cap
from controller.policy_model import KnobFloors, Slo
from controller.signals import Signals
from controller.step_model import StepModel

BUDGET: Final = "max_batched_tokens"
RUNNING: Final = "max_running"

SPARE: Final = 2
"""A running cap this many times what is there binds nothing, and moves with every request."""

BLIND_CUT: Final = 0.7
"""Without a trusted model a batch that is too large is cut by this, as AIMD would."""


@dataclass(frozen=True, slots=True)
class BatchMemory:
    """The operating point we hold; empty without a lease."""

    point: Mapping[str, float] = field(default_factory=dict)
    changed_at_step: int = 0


@dataclass(frozen=True, slots=True)
class BatchView:
    """What the engine offers and what it owes."""

    knobs: Mapping[str, Knob]
    slo: Slo
    floors: KnobFloors
    graph_sizes: tuple[int, ...] = ()


def decide_batch(
    view: BatchView,
    memory: BatchMemory,
    signals: Signals,
    model: StepModel,
    cause: Cause,
) -> tuple[BatchMemory, Proposal | None]:
    """The next operating point, or None for no change.

    Nothing is changed while the CPU is stolen or throttled, or the cause is outside the engine's
    batching: a smaller batch would cost throughput and cure nothing.
    """
    engine = signals.engine
    if engine is None or cause in OUTSIDE | {Cause.NEIGHBOUR_CPU, Cause.OWN_QUOTA}:
        return memory, None
    dwelt = engine.steps - memory.changed_at_step >= DWELL_STEPS
    if model.trusted:
        wanted = _modelled(view, signals, engine, model)
    else:
        wanted = _blind(view, memory, cause, dwelt)
    old: dict[str, float] = {}
    new: dict[str, float] = {}
    point = dict(memory.point)
    for name, goal in wanted.items():
        knob = view.knobs.get(name)
        if knob is None:
            continue
        current = point.get(name, knob.start)
        following = toward(current, goal, _range(view, knob), dwelt)
        if following != current:
            old[name], new[name] = current, following
            point[name] = following
    if not new:
        return memory, None
    reason = _reason(view, model, engine, cause)
    held = {name: value for name, value in point.items() if value != view.knobs[name].start}
    changed = replace(memory, point=held, changed_at_step=engine.steps)
    if not held:
        return changed, Proposal((ReleaseKnobs(dict(memory.point)),), reason)
    # the whole point, so that one answer tells that all of it is in force
    return changed, Proposal((SetKnobs(point, old | _unchanged(memory, old)),), reason)


def _unchanged(memory: BatchMemory, old: Mapping[str, float]) -> dict[str, float]:
    return {name: value for name, value in memory.point.items() if name not in old}


def _modelled(
    view: BatchView, signals: Signals, engine: EngineNow, model: StepModel
) -> dict[str, float]:
    gap_ms, running = view.slo.gap_ms, engine.running
    # planned for those that run, not only those that generate yet: they soon will
    fits = prefill_budget(model, gap_ms, MARGIN, running, engine.kv_used)
    floor = rate_floor(model, signals.arrival_tokens_per_s, running, engine.kv_used)
    kv_per_seq = engine.kv_used / running if running else 0.0
    cap = running_cap(model, gap_ms, MARGIN, kv_per_seq, engine.kv_total)
    return {
        # the budget counts one token for each sequence that generates
        BUDGET: running + max(fits, floor),
        RUNNING: cap if cap < SPARE * (running + engine.waiting) else math.inf,
    }


def _blind(view: BatchView, memory: BatchMemory, cause: Cause, dwelt: bool) -> dict[str, float]:
    """One long step is seen by many streams, one after another: it is to be cut for once."""
    wanted = {name: view.knobs[name].start for name in (BUDGET, RUNNING) if name in view.knobs}
    if cause is not Cause.BATCH:
        return wanted
    if not dwelt or BUDGET not in wanted:
        return {}
    return {BUDGET: memory.point.get(BUDGET, wanted[BUDGET]) * BLIND_CUT}


def _range(view: BatchView, knob: Knob) -> Range:
    floors = {BUDGET: view.floors.min_batched_tokens, RUNNING: view.floors.min_running}
    return Range(
        minimum=max(knob.minimum, min(floors[knob.name], knob.start)),
        maximum=knob.maximum,
        start=knob.start,
        sizes=view.graph_sizes if knob.name == RUNNING else (),
    )


def _reason(view: BatchView, model: StepModel, engine: EngineNow, cause: Cause) -> str:
    if not model.trusted:
        return f"cause {cause}; the step model is not yet trusted"
    return (
        f"a step of {engine.running} sequences and {engine.kv_used} cached tokens takes"
        f" {model.predict_ms(0, engine.running, engine.kv_used):.1f} ms and each prompt token"
        f" {model.prefill_ms * 1e3:.0f} µs, against a gap SLO of {view.slo.gap_ms:g} ms"
    )
