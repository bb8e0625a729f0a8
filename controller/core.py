"""The decision core of one engine: what is learnt, trimmed and decided, without any IO.

The same functions run live, in replay and in simulation: `learn_steps` on every tick, whatever the
mode; `decide` where decisions are wanted. Layer 1 (every tick) sets the operating point, layer 2
(once a second) its margin, and takes the point back where it did no good (design section 6).
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Final

from bpf.layout import Counters
from controller.actions import Proposal, ReleaseKnobs
from controller.admission import is_pressed
from controller.attribution import STOPS, Cause, of_the_engine
from controller.batching import (
    RUNNING,
    BatchMemory,
    BatchView,
    decide_batch,
    offered,
    proposed,
)
from controller.changed import changed
from controller.engines.page import Step
from controller.gate import Gate, decide_gate, is_gate
from controller.gate import after as gate_after
from controller.laws import KV_WATERMARK, capacity_rps, queued_cap
from controller.load import Load, after
from controller.overrun import planned_share
from controller.rollback import Trial, judge
from controller.signals import Signals
from controller.step_model import StepModel, learn
from controller.trim import START, Trim, trim

SLOW_NS: Final = 1_000_000_000
"""Period of layer 2."""

UNKNOWN_GAPS: Final = 100.0
"""Gaps of a stream while answers are not known."""

GIVE_BACK_NS: Final = 10_000_000_000
"""A point is given back when the figures it was decided on have been in doubt for so long."""

PUT_BACK: Final = "memory has not run short for a while: what was saved is put back"

_GOLDEN: Final = 0.618033988749895

IDLE_NS: Final = 300_000_000_000
"""And when there was no traffic for so long; a shorter lull is part of the load."""


@dataclass(frozen=True, slots=True)
class CoreState:
    """All that is kept of an engine between ticks to decide about its batching."""

    model: StepModel = field(default_factory=StepModel)
    batch: BatchMemory = field(default_factory=BatchMemory)
    trim: Trim = field(default_factory=Trim)
    trial: Trial = field(default_factory=Trial)
    load: Load = field(default_factory=Load)
    most_queued: float = math.inf
    share: float | None = None
    """Of the gap SLO that a step is planned for; None until the model is trusted."""
    gate: Gate = field(default_factory=Gate)
    slow_ns: int | None = None
    slow_after_ns: int = SLOW_NS
    """When layer 2 runs after `slow_ns`; the first time later by the engine's phase."""
    totals: Counters = field(default_factory=Counters)
    idle_ns: int | None = None
    """Since when the engine has had no request, None while it has one."""
    requests_total: int = 0
    disturbed: bool = False
    """Whether the engine stood still for anything else than its load since layer 2 last ran."""


def phase_ns(row: int) -> int:
    """How much later than others the engine of this row does what is done once a second.

    All are looked at in one tick, and begin together after a start. By multiples of the golden
    ratio any number of neighbouring rows is spread over the second, so that no tick has it all.
    """
    return int(row * _GOLDEN % 1 * SLOW_NS)


def learn_steps(
    state: CoreState, steps: Iterable[Step], signals: Signals, disturbed_share: float
) -> CoreState:
    """The model after `steps`; nothing is learnt while others take more than `disturbed_share`."""
    disturbed = signals.neighbour_pressure > disturbed_share or bool(
        signals.throttled_ns or signals.memory_ns or signals.stall
    )
    return changed(state, model=learn(state.model, steps, disturbed))


def decide(
    view: BatchView, state: CoreState, signals: Signals, cause: Cause, attainment: float
) -> tuple[CoreState, Proposal | None]:
    """The next operating point, or None for no change.

    `attainment` is the share of streams that must be good, as in the policy.
    """
    state = changed(state, disturbed=state.disturbed or cause in STOPS)
    state = _idle_since(state, signals)
    forced = _by_memory(view, state, signals)
    if forced is not None:
        return forced
    idle_ns = signals.now_ns - state.idle_ns if state.idle_ns is not None else 0
    capped = math.isfinite(view.room.cap)
    if idle_ns >= IDLE_NS and not capped:
        return _given_back(state, f"no traffic for {idle_ns / 1e9:.0f} s")
    if signals.doubted_ns >= GIVE_BACK_NS and not capped:
        for_s = signals.doubted_ns / 1e9
        return _given_back(state, f"its figures have been in doubt for {for_s:.0f} s")
    if state.slow_ns is None:
        state = changed(state, slow_ns=signals.now_ns, totals=signals.totals)
    elif signals.now_ns - state.slow_ns >= state.slow_after_ns:
        state, proposal = _slowly(view, state, signals, attainment)
        if proposal is not None:
            return state, proposal
    if signals.now_ns < state.trial.paused_until_ns:
        return state, None
    if state.share is None:
        state = changed(state, share=step_share(view, state.model, state.load))
    if is_gate(view, signals.engine):
        batch, proposal = decide_gate(view, state.batch, signals, state.gate, cause)
        return changed(state, batch=batch), proposal
    batch, proposal = decide_batch(
        view,
        state.batch,
        signals,
        state.model,
        cause,
        step_margin(view, state),
        state.most_queued,
        state.load.prompt_per_answer,
    )
    return changed(state, batch=batch), proposal


def _by_memory(
    view: BatchView, state: CoreState, signals: Signals
) -> tuple[CoreState, Proposal | None] | None:
    """At once down to what there is memory for, or back to what was saved; None for neither."""
    knob, room = view.knobs.get(RUNNING), view.room
    if knob is None:
        return None
    memory = offered(view, state.batch)
    if room.restore is not None:
        wanted, reason = min(max(room.restore, knob.minimum), knob.maximum), PUT_BACK
    elif memory.point.get(RUNNING, knob.start) > max(room.cap, knob.minimum):
        wanted = max(room.cap, knob.minimum)
        reason = f"{RUNNING} is cut to {wanted:g}: {room.cap_why}"
    else:
        return None
    at_step = signals.engine.steps if signals.engine is not None else memory.changed_at_step
    moved = replace(memory, changed_at_step=at_step)
    point = {**memory.point, RUNNING: wanted}
    batch, proposal = proposed(view, memory, point, moved, lambda: reason)
    return (replace(state, batch=batch), proposal) if proposal is not None else None


def _idle_since(state: CoreState, signals: Signals) -> CoreState:
    """By the engine's own count: what the kernel counts may be its metrics being asked for."""
    engine = signals.engine
    if engine is None or engine.running or engine.waiting:
        return changed(state, idle_ns=None)
    if engine.requests_total == state.requests_total and state.idle_ns is not None:
        return state
    return changed(state, idle_ns=signals.now_ns, requests_total=engine.requests_total)


def _slowly(
    view: BatchView, state: CoreState, signals: Signals, attainment: float
) -> tuple[CoreState, Proposal | None]:
    """Layer 2: what came of the second that has passed."""
    assert state.slow_ns is not None
    passed_s = (signals.now_ns - state.slow_ns) / 1e9
    passed = of_the_engine(signals.totals.since(state.totals))
    trimmed, trial = state.trim, state.trial
    if not state.disturbed:
        of_gaps = gap_attainment(attainment, state.load)
        pressed = _is_pressed(view, state, signals, passed)
        trimmed = trim(trimmed, passed.gaps_over, passed.gaps, of_gaps, passed_s, pressed)
        trial = judge(trial, passed, passed_s, bool(state.batch.point), signals.now_ns)
    gate = state.gate
    if is_gate(view, signals.engine):
        gate = gate_after(
            gate, view, state.batch, signals, passed, passed_s, attainment, state.disturbed
        )
    load = after(state.load, signals.engine, passed_s) if signals.engine is not None else Load()
    state = changed(
        state,
        trim=trimmed,
        trial=trial,
        gate=gate,
        load=load,
        share=step_share(view, state.model, load),
        most_queued=_most_queued(
            view,
            state.model,
            load,
            trimmed.margin,
            signals.engine.kv_total if signals.engine is not None else 0,
        ),
        slow_ns=signals.now_ns,
        slow_after_ns=SLOW_NS,
        totals=signals.totals,
        disturbed=False,
    )
    if signals.now_ns >= trial.paused_until_ns or math.isfinite(view.room.cap):
        return state, None
    return _given_back(state, trial.reason)


def _given_back(state: CoreState, reason: str) -> tuple[CoreState, Proposal | None]:
    if not state.batch.point:
        return state, None
    action = ReleaseKnobs(dict(state.batch.point))
    # when the window was changed last counts on: giving it back may be a reload too
    batch = BatchMemory(window=state.batch.window)
    return replace(state, batch=batch), Proposal((action,), reason)


def _is_pressed(view: BatchView, state: CoreState, signals: Signals, passed: Counters) -> bool:
    """Whether requests waited long in the second that has passed."""
    assert state.slow_ns is not None
    if passed.ttft_over or (state.batch.pressed_ns or 0) > state.slow_ns:
        return True
    return signals.engine is not None and is_pressed(signals, signals.engine, view.slo, 0.0)


def step_share(view: BatchView, model: StepModel, load: Load) -> float | None:
    """The share of the gap SLO to plan steps for, by how unevenly they come; None without a model.

    Looked at once a second: a share that follows every step would have to be followed by those that
    run, and they can only end.
    """
    if not model.trusted:
        return None
    return planned_share(model.spread, model.base_ms / view.slo.gap_ms, answer_gaps(load))


def step_margin(view: BatchView, state: CoreState) -> float:
    """What of the gap SLO a step may take: the planned share, trimmed by what came of it.

    m = β + (s − β)·trim/start. β is the part that an empty step takes, in which nothing is served
    and nothing can be saved: a trim of the whole share would cut throughput by many times as much
    where β is not far from s. The trim is relative to its start, so that as long as nothing is
    known of what came of it the plan holds.
    """
    share = state.share or 1.0
    base_share = min(share, state.model.base_ms / view.slo.gap_ms)
    return base_share + (share - base_share) * state.trim.margin / START


def answer_gaps(load: Load) -> float:
    """Gaps of a mean stream."""
    return max(1.0, load.mean_answer - 1) if load.lengths_known else UNKNOWN_GAPS


def gap_attainment(attainment: float, load: Load) -> float:
    """The share of gaps that must meet the SLO so that this share of streams has none over it.

    One late gap spoils a stream, and late gaps come apart: of streams with g gaps a share 1 − A may
    have one, so 1 − (1 − A)/g of all gaps must be in time.
    """
    return 1 - (1 - attainment) / answer_gaps(load)


def _most_queued(
    view: BatchView, model: StepModel, load: Load, margin: float, kv_total: int
) -> float:
    """How many may wait; any number while load or engine is not known, or no answer has tokens."""
    if not model.trusted or not load.known or load.mean_answer <= 0:
        return math.inf
    running = view.knobs.get(RUNNING)
    most = running.start if running is not None else math.inf
    if kv_total:
        most = min(most, KV_WATERMARK * kv_total / (load.mean_prompt + load.mean_answer))
    step_ms = margin * view.slo.gap_ms
    capacity = capacity_rps(model, step_ms, most, load.mean_prompt, load.mean_answer)
    arrival = load.prompt_tokens_per_s / load.mean_prompt if load.mean_prompt > 0 else 0.0
    return queued_cap(capacity, arrival, view.slo.ttft_ms, view.max_deferral_ms)
