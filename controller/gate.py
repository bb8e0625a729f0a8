"""How much to let in, where nothing is known of an engine but how many requests it has.

An engine behind a proxy, or one that tells of no steps, can't be modelled step by step. What counts
then is what comes out: by Little's law the completions a second give its capacity, and so how many
may wait and still be on time; and how many may run is found by trying, since only the users' gaps
tell. Layer 2 learns (`after`), every tick may act (`decide_gate`).
"""

import math
from dataclasses import dataclass, field, replace
from typing import Final

from bpf.layout import Counters
from controller.actions import Proposal
from controller.admission import QUEUED
from controller.attribution import STOPS, Cause
from controller.batching import RUNNING, BatchMemory, BatchView, offered, proposed
from controller.engines.page import EngineNow
from controller.laws import served_rps
from controller.signals import Signals

MEMORY_S: Final = 20.0
"""Time constant with which completions are forgotten; only seconds that tell something count."""

KNOWN_S: Final = 3.0
KNOWN_FINISHED: Final = 5.0
"""Fewer full seconds or completions make no rate."""

SHARE: Final = 0.7
LEAST_SHARE: Final = 0.1
MOST_SHARE: Final = 0.9
"""Of the TTFT target that waiting may take; the rest is for the engine to begin. Where it begins,
and how far what comes of it may move it."""

SHARE_PER_S: Final = 0.03
"""How fast: from one end to the other in half a minute."""

WORST: Final = -4.0
"""More than five times as many late as allowed count as five times."""

BAND: Final = 0.2
"""A change of the queue's limit by this share, or by one, is not worth a write: the rate is a count
of some dozens."""

CALM_NS: Final = 60_000_000_000
"""The queue's limit is given back when nobody has waited for so long."""

SPOILED: Final = 0.05
"""A larger share of streams with a late gap, beyond what is allowed, is too much for the batch."""

CUT: Final = 0.85
GROWTH: Final = 1.05
LEAST_RUNNING: Final = 0.25
"""A running cap is cut by a seventh, grown by a twentieth, and never below a quarter of its start:
how much is lost by going lower is not known."""

CUT_DWELL_NS: Final = 2_000_000_000
GROWTH_DWELL_NS: Final = 5_000_000_000
"""What a change does is looked at for so long before the next one."""

HELPED: Final = 0.7
"""A cut to the end that leaves more than this share of what was spoiled is no cure."""

LEFT_NS: Final = 300_000_000_000
"""Then the cap is left alone for so long."""


@dataclass(frozen=True, slots=True)
class Served:
    """Completions and the requests that ran meanwhile, in request-seconds; older ones weigh less.

    `seconds` weigh less too, `seen_s` do not.
    """

    finished: float = 0.0
    running_s: float = 0.0
    seconds: float = 0.0
    seen_s: float = 0.0

    @property
    def known(self) -> bool:
        """Whether enough was seen to go by."""
        return self.seen_s >= KNOWN_S and self.finished >= KNOWN_FINISHED

    def rps(self, most_running: float) -> float:
        """Requests a second with so many running; see `laws.served_rps`."""
        if self.seconds <= 0:
            return math.inf
        running = self.running_s / self.seconds
        return served_rps(self.finished / self.seconds, running, most_running)

    def after(self, finished: int, running: float, passed_s: float) -> "Served":
        """With another `passed_s` seconds."""
        kept = math.exp(-passed_s / MEMORY_S)
        return Served(
            kept * self.finished + finished,
            kept * self.running_s + running * passed_s,
            kept * self.seconds + passed_s,
            self.seen_s + passed_s,
        )


@dataclass(frozen=True, slots=True)
class Gate:
    """What is kept of such an engine.

    `full` counts only seconds in which requests waited at both ends, `busy` all with any. `share`
    of the TTFT target may be spent waiting. `cap` may run. `spoiled` is the share of streams with a
    late gap before the first cut.
    """

    full: Served = field(default_factory=Served)
    busy: Served = field(default_factory=Served)
    share: float = SHARE
    cap: float = math.inf
    spoiled: float = 0.0
    waited_ns: int | None = None
    limited_ns: int | None = None
    """Since when the queue has had a limit of ours."""
    capped_ns: int = 0
    """When the cap was changed last, or is to be left alone until."""
    before: EngineNow | None = None

    def capacity_rps(self, most_running: float) -> float:
        """What the engine serves a second, infinite while that is not known."""
        for served in (self.full, self.busy):
            if served.known:
                return served.rps(most_running)
        return math.inf


def is_gate(view: BatchView, engine: EngineNow | None) -> bool:
    """Whether this is an engine that shows requests and no steps, and lets itself be limited."""
    if engine is None or engine.steps or not engine.requests_total:
        return False
    return RUNNING in view.knobs or QUEUED in view.knobs


def after(
    gate: Gate,
    view: BatchView,
    memory: BatchMemory,
    signals: Signals,
    passed: Counters,
    passed_s: float,
    attainment: float,
    disturbed: bool,
) -> Gate:
    """What is known after another `passed_s` seconds, in which the kernel counted `passed`.

    Of the late gaps, those that are the engine's. Nothing is learnt of a second in which the engine
    stood still for something else (`disturbed`).
    """
    engine, before = signals.engine, gate.before
    gate = replace(gate, before=engine)
    if engine is None or before is None or passed_s <= 0:
        return gate
    if engine.waiting:
        gate = replace(gate, waited_ns=signals.now_ns)
    if QUEUED not in memory.point:
        gate = replace(gate, limited_ns=None)
    elif gate.limited_ns is None:
        gate = replace(gate, limited_ns=signals.now_ns)
    if disturbed:
        return gate
    finished = max(0, engine.finished_total - before.finished_total)
    running = (engine.running + before.running) / 2
    if running:
        gate = replace(gate, busy=gate.busy.after(finished, running, passed_s))
    if engine.waiting and before.waiting:
        gate = replace(gate, full=gate.full.after(finished, running, passed_s))
    gate = replace(gate, share=_share(gate, view, signals, passed, passed_s, attainment))
    return _cap(gate, view, signals, passed, finished, attainment)


def decide_gate(
    view: BatchView, memory: BatchMemory, signals: Signals, gate: Gate, cause: Cause
) -> tuple[BatchMemory, Proposal | None]:
    """The next operating point, or None for no change.

    None while something else than its load stops the whole engine. Streams that are late on the way
    stop nobody, and are not in what the gate was learnt from.
    """
    engine, memory = signals.engine, offered(view, memory)
    if engine is None or cause in STOPS:
        return memory, None
    point = dict(memory.point)
    if RUNNING in view.knobs:
        knob = view.knobs[RUNNING]
        point[RUNNING] = float(math.floor(min(max(gate.cap, _floor(view)), knob.start)))
    if QUEUED in view.knobs:
        point[QUEUED] = _limit(view, memory, signals, gate, engine)
    reason = (
        f"{gate.capacity_rps(engine.max_running):.1f} requests a second get through, and waiting"
        f" may take {gate.share:.0%} of a TTFT SLO of {view.slo.ttft_ms:g} ms"
    )
    return proposed(view, memory, point, memory, lambda: reason)


def _limit(
    view: BatchView, memory: BatchMemory, signals: Signals, gate: Gate, engine: EngineNow
) -> float:
    """How many may wait: those that get in within a share of the TTFT target."""
    knob = view.knobs[QUEUED]
    calm = gate.waited_ns is None or signals.now_ns - gate.waited_ns >= CALM_NS
    fits = gate.capacity_rps(engine.max_running) * gate.share * view.slo.ttft_ms / 1e3
    if calm or fits >= knob.start:
        return knob.start
    before = memory.point.get(QUEUED, knob.start)
    wanted = float(math.floor(max(fits, knob.minimum, 1.0)))
    return before if abs(wanted - before) <= max(1.0, BAND * before) else wanted


def _share(
    gate: Gate,
    view: BatchView,
    signals: Signals,
    passed: Counters,
    passed_s: float,
    attainment: float,
) -> float:
    """Moved by how many were late, once all that come were let in under the limit.

    share ← share + K·e·dt with e = (x − late)/(x + 1), x late ones being allowed: as `trim`.
    """
    if gate.limited_ns is None or not passed.first_chunks:
        return gate.share
    if signals.now_ns - gate.limited_ns < 2 * view.slo.ttft_ms * 1e6:
        return gate.share
    allowed = (1 - attainment) * passed.first_chunks
    error = max((allowed - passed.ttft_over) / (allowed + 1), WORST)
    moved = gate.share + SHARE_PER_S * error * min(passed_s, 5.0)
    return min(max(moved, LEAST_SHARE), MOST_SHARE)


def _cap(
    gate: Gate,
    view: BatchView,
    signals: Signals,
    passed: Counters,
    finished: int,
    attainment: float,
) -> Gate:
    """Cut while gaps are late, grown again while they are not and somebody waits."""
    if RUNNING not in view.knobs or not passed.gaps or signals.engine is None:
        return gate
    start, now_ns = view.knobs[RUNNING].start, signals.now_ns
    spoiled = passed.gaps_over / max(1, finished)
    if spoiled > 1 - attainment + SPOILED:
        if now_ns - gate.capped_ns < CUT_DWELL_NS:
            return gate
        floor, cap = _floor(view), min(gate.cap, start)
        first = spoiled if gate.cap >= start else gate.spoiled
        if cap <= floor and spoiled > HELPED * first:
            return replace(gate, cap=math.inf, capped_ns=now_ns + LEFT_NS)
        # from what runs: a cap above it would do nothing
        wanted = max(floor, math.floor(CUT * min(cap, max(1, signals.engine.running))))
        return replace(gate, cap=wanted, capped_ns=now_ns, spoiled=first)
    idle = gate.cap >= start or now_ns - gate.capped_ns < GROWTH_DWELL_NS
    if idle or not signals.engine.waiting or spoiled > 1 - attainment:
        return gate
    grown = max(gate.cap + 1, math.floor(GROWTH * gate.cap))
    return replace(gate, cap=math.inf if grown >= start else grown, capped_ns=now_ns)


def _floor(view: BatchView) -> float:
    knob = view.knobs[RUNNING]
    least = max(knob.minimum, min(view.floors.min_running, knob.start))
    return max(least, math.ceil(LEAST_RUNNING * knob.start))
