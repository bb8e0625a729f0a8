"""The engine's batching: budget, running cap, relegation; from the step model, under the guards."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from controller.actions import Proposal, ReleaseKnobs, SetKnobs
from controller.admission import (
    CALM_NS,
    can_relegate,
    is_pressed,
    queue_point,
    relegation_point,
)
from controller.attribution import LONG_STEP_SHARE, ON_THE_WAY, STOPS, Cause
from controller.changed import changed
from controller.engines.contract import Knob
from controller.engines.page import EngineNow
from controller.feasibility import EVERYTHING, Room, within
from controller.guards import DWELL_STEPS, Range, toward
from controller.laws import (
    MARGIN,
    jitter_budget,
    prefill_budget,
    prefill_rate,
    rate_floor,
    running_cap,
)
from controller.policy_model import KnobFloors, Slo
from controller.signals import Signals
from controller.step_model import StepModel
from controller.window_choice import WINDOW, Demand, WindowMemory, batch_time, choose_window

BUDGET: Final = "max_batched_tokens"
RUNNING: Final = "max_running"

SPARE: Final = 2
"""A running cap this many times what is there binds nothing, and moves with every request."""

BLIND_CUT: Final = 0.7
"""Without a trusted model a batch that is too large is cut by this, as AIMD would."""


KEPT_RATE: Final = 0.75
"""A load that no budget keeps up with may not make every gap late for the last quarter of the rate
at which prompts are computed: large batches gain little."""


@dataclass(frozen=True, slots=True)
class BatchMemory:
    """The operating point we hold; empty without a lease.

    `pressed_ns` is when the queue was last long enough to relegate.
    """

    point: Mapping[str, float] = field(default_factory=dict)
    changed_at_step: int = 0
    pressed_ns: int | None = None
    window: WindowMemory = field(default_factory=WindowMemory)


@dataclass(frozen=True, slots=True)
class BatchView:
    """What the engine offers and what it owes; a `max_deferral_ms` of 0 means no relegation.

    `change_ns` is how long its last change took to be in force. `room` is what memory allows.
    """

    knobs: Mapping[str, Knob]
    slo: Slo
    floors: KnobFloors
    graph_sizes: tuple[int, ...] = ()
    max_deferral_ms: int = 0
    change_ns: int = 0
    room: Room = EVERYTHING


def decide_batch(
    view: BatchView,
    memory: BatchMemory,
    signals: Signals,
    model: StepModel,
    cause: Cause,
    margin: float = MARGIN,
    most_queued: float = math.inf,
    prompt_per_answer: float = 0.0,
) -> tuple[BatchMemory, Proposal | None]:
    """The next operating point, or None for no change.

    `margin` is the share of the gap SLO that a step may take. `most_queued` may wait, which counts
    only where requests can be relegated: else the door would be shut to anybody.
    `prompt_per_answer` are prompt tokens that come with each token of an answer, 0 for not known.

    Nothing is changed while something outside its batching stops the whole engine: a smaller batch
    would cost throughput and cure nothing. Streams that are late on the way stop nobody, and the
    step model does not see them: by it alone the others keep their point.
    """
    engine, memory = signals.engine, offered(view, memory)
    if engine is None or cause in STOPS or (cause in ON_THE_WAY and not model.trusted):
        return memory, None
    steps = max(0, engine.steps - memory.changed_at_step)
    if model.trusted:
        wanted, rate = _modelled(view, signals, engine, model, margin, prompt_per_answer)
    else:
        wanted, rate = _blind(view, memory, signals, engine, cause, steps), 0.0
    point = dict(memory.point)
    for name, goal in wanted.items():
        knob = view.knobs.get(name)
        if knob is not None:
            current = point.get(name, knob.start)
            point[name] = toward(current, goal, _range(view, knob), steps)
    retuned = any(point[name] != memory.point.get(name, view.knobs[name].start) for name in point)
    memory, relegation = _relegation(view, memory, signals, engine, rate, most_queued)
    point |= relegation
    memory, window = _window(view, memory, signals, engine, model)
    point |= window
    changed_at = engine.steps if retuned else memory.changed_at_step

    def why() -> str:
        return (
            _window_reason(view, signals, model) if window else _reason(view, model, engine, cause)
        )

    return proposed(view, memory, point, changed(memory, changed_at_step=changed_at), why)


def proposed(
    view: BatchView,
    memory: BatchMemory,
    point: Mapping[str, float],
    moved: BatchMemory,
    why: Callable[[], str],
) -> tuple[BatchMemory, Proposal | None]:
    """What it takes to go from the point held to `point`; `moved` is kept if anything does.

    What there is no memory for is left as it is. `why` is asked only for a change.
    """
    point, clipped = within(view.room, point, memory.point, view.knobs)
    held = {name: value for name, value in point.items() if value != view.knobs[name].start}
    if held == memory.point:
        return memory, None
    reason = "; ".join(each for each in (why(), clipped) if each)
    moved = changed(moved, point=held)
    # what was held before is named too: it goes back to its start value
    point = {name: value for name, value in point.items() if name in held or name in memory.point}
    old = {name: memory.point.get(name, view.knobs[name].start) for name in point}
    if not held:
        return moved, Proposal((ReleaseKnobs(dict(memory.point)),), reason)
    # the whole point, so that one answer tells that all of it is in force
    return moved, Proposal((SetKnobs(point, old),), reason)


def offered(view: BatchView, memory: BatchMemory) -> BatchMemory:
    """What is held, as far as the engine offers it: another `hello` may allow less."""
    inside = {
        name: min(max(value, view.knobs[name].minimum), view.knobs[name].maximum)
        for name, value in memory.point.items()
        if name in view.knobs
    }
    return memory if inside == memory.point else replace(memory, point=inside)


def _relegation(
    view: BatchView,
    memory: BatchMemory,
    signals: Signals,
    engine: EngineNow,
    rate: float,
    most_queued: float,
) -> tuple[BatchMemory, dict[str, float]]:
    """The knobs of relegation while a queue is pressed and a while after; then as at the start."""
    if not can_relegate(view.knobs, view.max_deferral_ms):
        return memory, {}
    if is_pressed(signals, engine, view.slo, rate):
        memory = changed(memory, pressed_ns=signals.now_ns)
    if memory.pressed_ns is None:
        return memory, {}
    point = relegation_point(view.knobs, view.slo, view.max_deferral_ms)
    point |= queue_point(view.knobs, memory.point, most_queued)
    # not while anybody waits who was passed over: he would be first at once, and all others late
    if signals.now_ns - memory.pressed_ns < CALM_NS or engine.waiting:
        return memory, point
    return replace(memory, pressed_ns=None), {name: view.knobs[name].start for name in point}


def _window(
    view: BatchView, memory: BatchMemory, signals: Signals, engine: EngineNow, model: StepModel
) -> tuple[BatchMemory, dict[str, float]]:
    """The batch window, where the engine has one and it is worth a change."""
    if WINDOW not in view.knobs:
        return memory, {}
    demand = Demand(
        signals.now_ns,
        signals.arrival_tokens_per_s,
        view.slo.ttft_ms,
        engine.max_batched_tokens or math.inf,
        is_pressed(signals, engine, view.slo, 0.0) or bool(signals.kernel.ttft_over),
        view.change_ns,
    )
    window, wanted = choose_window(view.knobs[WINDOW], memory.point, memory.window, model, demand)
    return changed(memory, window=window), {} if wanted is None else {WINDOW: wanted}


def _modelled(
    view: BatchView,
    signals: Signals,
    engine: EngineNow,
    model: StepModel,
    margin: float,
    prompt_per_answer: float,
) -> tuple[dict[str, float], float]:
    """Where budget and cap should be, and the prompt tokens a second that the budget then gives.

    Where the engine can relegate, a load that no budget keeps up with is answered by who waits, and
    those that run keep their gaps; elsewhere the rate floor holds.
    """
    gap_ms, running = view.slo.gap_ms, engine.running
    # planned for those that run, not only those that generate yet: they soon will
    fits = prefill_budget(model, gap_ms, margin, running, engine.kv_used)
    prompts = min(fits, jitter_budget(model, view.slo.jitter_ms))
    start = view.knobs[BUDGET].start if BUDGET in view.knobs else math.inf
    if not can_relegate(view.knobs, view.max_deferral_ms):
        most_tokens_per_s = prefill_rate(model, start - running, running, engine.kv_used)
        needed = min(signals.arrival_tokens_per_s, KEPT_RATE * most_tokens_per_s)
        prompts = max(prompts, rate_floor(model, needed, running, engine.kv_used))
    kv_per_seq = engine.kv_used / running if running else 0.0
    # while prompts still fit beside those that run, a cap would be a guess about what never was
    crowded = fits < view.floors.min_batched_tokens
    by_time_ms = gap_ms if crowded else math.inf
    cap = running_cap(model, by_time_ms, margin, kv_per_seq, engine.kv_total, prompt_per_answer)
    wanted = {
        # the budget counts one token for each sequence that generates
        BUDGET: running + prompts,
        RUNNING: cap if cap < SPARE * (running + engine.waiting) else math.inf,
    }
    most = min(max(prompts, view.floors.min_batched_tokens - running), start - running)
    return wanted, prefill_rate(model, most, running, engine.kv_used)


def _blind(
    view: BatchView,
    memory: BatchMemory,
    signals: Signals,
    engine: EngineNow,
    cause: Cause,
    steps: int,
) -> dict[str, float]:
    """One long step is seen by many streams, one after another: it is to be cut for once.

    The cause is that of the server's streams. Of its ranks, one whose own steps are short, or that
    has nothing to do, is not to blame.
    """
    wanted = {name: view.knobs[name].start for name in (BUDGET, RUNNING) if name in view.knobs}
    if cause is not Cause.BATCH:
        return wanted
    least_ns = LONG_STEP_SHARE * view.slo.gap_ms * 1e6
    is_short = 0 < signals.longest_step_ns <= least_ns or not (engine.running or engine.waiting)
    if steps < DWELL_STEPS or BUDGET not in wanted or is_short:
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


def _window_reason(view: BatchView, signals: Signals, model: StepModel) -> str:
    batch = batch_time(model)
    return (
        f"a batch of n takes {batch.base_ms:.1f} + {batch.item_ms:.2f}·n ms and"
        f" {signals.arrival_tokens_per_s:.0f} items/s may come, against a TTFT SLO of"
        f" {view.slo.ttft_ms:g} ms"
    )
