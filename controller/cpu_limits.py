"""When others take an engine's CPU: what costs them nothing else first, and the way back.

A higher weight of the engine and idle neighbours (`neighbour_limits`) are work-conserving: the
neighbours keep what the engine leaves. So both come first, and at once; quotas and freezes only
when they are not enough; and all are given back when they are no longer needed (docs/decisions.md).
"""

from dataclasses import dataclass, field, replace
from typing import Final

from controller.actions import Proposal, ReleaseLimit, SetWeight
from controller.attribution import OUTSIDE, Cause
from controller.changed import changed
from controller.neighbour_limits import (
    NO_TRAFFIC_NS,
    QUIET_CORES,
    RELEASE_AFTER_NS,
    WEIGHT_BAND,
    WEIGHT_EVERY_NS,
    Hold,
    NeighbourView,
    make_idle,
    relax,
    tighten,
    wake,
    weigh_tenants,
)
from controller.signals import Signals

WEIGHT_FACTOR: Final = 10
"""One raise: two take a weight of 100 to the kernel's limit."""

WEIGHT_DWELL_NS: Final = 250_000_000
QUOTA_AFTER_NS: Final = 1_000_000_000
"""How long both may fail to help before quotas come; calm for as long is help."""

TRAFFIC_EVERY_NS: Final = 1_000_000_000


@dataclass(frozen=True, slots=True)
class CpuMemory:
    """What is in force for an engine, and since when; `hold` is shared by all engines."""

    weight: int | None = None
    weight_ns: int = 0
    raised: bool = False
    """Whether `weight` is the ladder's; otherwise it is the engine's own as a tenant."""

    hold: Hold = field(default_factory=Hold)
    calm_ns: int | None = None
    """Since when nothing was at risk, None while something is."""

    idle_ns: int | None = None
    """Since when there is no traffic, None while there is."""
    trouble_ns: int | None = None
    """Since when neighbours take the CPU again and again, None after a calm."""


@dataclass(frozen=True, slots=True)
class CpuView:
    """What can be done: `base_weight` is the weight without us, None if it can't be set.

    `max_weight` is the least of what the policy allows and what the other engines leave
    (`node_budget`); `tenant_weight` is what the engine has by itself as a tenant, None if it is
    none.
    """

    base_weight: int | None
    max_weight: int
    cpus: int
    neighbours: tuple[NeighbourView, ...] = ()
    tenant_weight: int | None = None


def decide_cpu(
    view: CpuView, memory: CpuMemory, signals: Signals, cause: Cause
) -> tuple[CpuMemory, Proposal | None]:
    """The next step of the ladder up, or of the way back down, or none.

    What more CPU would not cure is no reason to hold neighbours down: it counts as calm.
    """
    now_ns = signals.now_ns
    if not signals.idle:
        hold = memory.hold
        if memory.idle_ns is not None or now_ns - hold.traffic_ns >= TRAFFIC_EVERY_NS:
            hold = changed(hold, traffic_ns=now_ns)
            memory = changed(memory, idle_ns=None, hold=hold)
    elif memory.idle_ns is None:
        memory = replace(memory, idle_ns=now_ns)
    if cause is not Cause.NONE and cause not in OUTSIDE:
        hold = changed(memory.hold, need_ns=now_ns)
        memory = changed(memory, calm_ns=None, hold=hold)
        step = _tighten if cause is Cause.NEIGHBOUR_CPU else _keep
    else:
        memory = changed(memory, calm_ns=now_ns if memory.calm_ns is None else memory.calm_ns)
        step = _relax
    lowered = _lower(view, memory, now_ns)
    if lowered is not None:
        return lowered
    memory, proposal = step(view, memory, signals)
    return (memory, proposal) if proposal is not None else _weigh(view, memory, now_ns)


def _keep(view: CpuView, memory: CpuMemory, signals: Signals) -> tuple[CpuMemory, Proposal | None]:
    """Something else is wrong: nothing is tightened for it, and nothing relaxed."""
    return memory, None


def _lower(
    view: CpuView, memory: CpuMemory, now_ns: int
) -> tuple[CpuMemory, Proposal | None] | None:
    """A weight that other engines leave no room for any more, down to what they do leave."""
    held = memory.weight
    if held is None or not memory.raised or not 0 < view.max_weight < held:
        return None
    if now_ns - memory.weight_ns < WEIGHT_DWELL_NS:
        return None
    reason = "the engines that share its CPUs want more than there is: each gets its part"
    lowered = replace(memory, weight=view.max_weight, weight_ns=now_ns)
    return lowered, Proposal((SetWeight(view.max_weight, held),), reason)


def _tighten(
    view: CpuView, memory: CpuMemory, signals: Signals
) -> tuple[CpuMemory, Proposal | None]:
    now_ns = signals.now_ns
    if memory.trouble_ns is None:
        memory = replace(memory, trouble_ns=now_ns)
    reason = (
        f"neighbours held the CPU for {signals.neighbour_pressure:.0%} of the time the engine"
        " wanted it"
    )
    waited_ns, window_ns = signals.kernel.wait_other_ns, signals.window_ns
    hold, actions = make_idle(view.neighbours, memory.hold, waited_ns, window_ns, now_ns)
    memory = changed(memory, hold=hold)
    weight = memory.weight or view.base_weight
    below = weight is not None and weight < view.max_weight
    if weight is not None and below and now_ns - memory.weight_ns >= WEIGHT_DWELL_NS:
        raised = min(view.max_weight, weight * WEIGHT_FACTOR)
        actions = (SetWeight(raised, weight), *actions)
        memory = replace(memory, weight=raised, weight_ns=now_ns, raised=True)
    if actions:
        return memory, Proposal(actions, reason)
    failing_since_ns = max(memory.weight_ns, hold.idle_ns, memory.trouble_ns or now_ns)
    if below or now_ns - failing_since_ns < QUOTA_AFTER_NS:
        return memory, None
    hold, actions = tighten(view.neighbours, view.cpus, hold, waited_ns, window_ns, now_ns)
    if not actions:
        return memory, None
    why = f"{reason}, and its weight is not enough"
    return replace(memory, hold=hold), Proposal(actions, why)


def _relax(view: CpuView, memory: CpuMemory, signals: Signals) -> tuple[CpuMemory, Proposal | None]:
    now_ns = signals.now_ns
    calm_ns = now_ns - (memory.calm_ns if memory.calm_ns is not None else now_ns)
    if memory.trouble_ns is not None and calm_ns >= QUOTA_AFTER_NS:
        memory = replace(memory, trouble_ns=None)
    all_calm_ns = min(calm_ns, now_ns - memory.hold.need_ns)
    hold, actions, why = relax(view.neighbours, view.cpus, memory.hold, all_calm_ns, now_ns)
    if actions:
        return replace(memory, hold=hold), Proposal(actions, why)
    if memory.hold.quotas:
        return memory, None
    hold, actions, why = wake(view.neighbours, memory.hold, all_calm_ns, now_ns)
    if actions:
        return replace(memory, hold=hold), Proposal(actions, why)
    if memory.weight is None or not memory.raised:
        return memory, None
    used = sum(each.used_cores for each in view.neighbours)
    idle = memory.idle_ns is not None and now_ns - memory.idle_ns >= NO_TRAFFIC_NS
    if calm_ns < RELEASE_AFTER_NS or ((used >= QUIET_CORES or memory.hold.idle) and not idle):
        return memory, None  # they would take it again at once
    why = "the engine has no traffic" if idle else "its neighbours are quiet"
    own = view.tenant_weight
    action = (
        ReleaseLimit("", "cpu_weight", memory.weight)
        if own is None
        else SetWeight(own, memory.weight)
    )
    eased = replace(memory, weight=own, weight_ns=now_ns, raised=False)
    return eased, Proposal((action,), why)


def _weigh(view: CpuView, memory: CpuMemory, now_ns: int) -> tuple[CpuMemory, Proposal | None]:
    """The weights that tenants have by themselves, the engine's own and its neighbours'."""
    hold, actions = weigh_tenants(view.neighbours, memory.hold, now_ns)
    memory = changed(memory, hold=hold)
    own, held = view.tenant_weight, memory.weight
    if view.base_weight is not None and not memory.raised:
        if own is None and held is not None:
            actions = (*actions, ReleaseLimit("", "cpu_weight", held))
            memory = replace(memory, weight=None, weight_ns=now_ns)
        elif own is not None and _is_off(own, held) and _is_due(memory, now_ns):
            actions = (*actions, SetWeight(own, held or view.base_weight))
            memory = replace(memory, weight=own, weight_ns=now_ns)
    if not actions:
        return memory, None
    return memory, Proposal(actions, "tenants' weights, by how they meet their SLO and use memory")


def _is_off(own: int, held: int | None) -> bool:
    return held is None or abs(own - held) > WEIGHT_BAND * held


def _is_due(memory: CpuMemory, now_ns: int) -> bool:
    return now_ns - memory.weight_ns >= WEIGHT_EVERY_NS
