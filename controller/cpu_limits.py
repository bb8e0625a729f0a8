"""When neighbours take an engine's CPU: its weight first, then quotas on them, and the way back.

Raising the weight is work-conserving: on a real vLLM it alone brought the gap P99 from 80 ms back
to 19 ms, and the neighbours kept what the engine left. So it comes first, a quota only when weight
is not enough, and both are given back when they are no longer needed (docs/decisions.md).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from controller.actions import Action, Proposal, ReleaseLimit, SetQuota, SetWeight
from controller.attribution import OUTSIDE, Cause
from controller.signals import Signals

WEIGHT_FACTOR: Final = 10
"""One raise: two take a weight of 100 to the kernel's limit."""

WEIGHT_DWELL_NS: Final = 250_000_000
QUOTA_AFTER_NS: Final = 1_000_000_000
"""How long the highest weight may fail to help before quotas come; calm for as long is help."""

BLAME_SHARE: Final = 0.5
"""Neighbours that used less CPU than this share of what the engine waited are not to blame."""

QUOTA_DWELL_NS: Final = 500_000_000
QUOTA_CUT: Final = 0.5
QUOTA_GROWTH: Final = 1.25
RELAX_AFTER_NS: Final = 5_000_000_000
RELAX_EVERY_NS: Final = 1_000_000_000
RELEASE_AFTER_NS: Final = 10_000_000_000
IDLE_AFTER_NS: Final = 60_000_000_000
"""Without traffic for this long the weight goes back even if neighbours burn: nobody needs it. A
shorter lull is part of the load, and giving up in it would make the next burst pay again."""

QUIET_CORES: Final = 0.05
"""Neighbours that use less than this together need no holding down."""


@dataclass(frozen=True, slots=True)
class NeighbourView:
    """A neighbour as the law sees it: what it uses, in cores, and how far it may be limited."""

    name: str
    used_cores: float
    min_cores: float


@dataclass(frozen=True, slots=True)
class CpuMemory:
    """What is in force, and since when."""

    weight: int | None = None
    weight_ns: int = 0
    quotas: Mapping[str, float] = field(default_factory=dict)
    quota_ns: int = 0
    calm_ns: int | None = None
    """Since when nothing was at risk, None while something is."""

    idle_ns: int | None = None
    """Since when there is no traffic, None while there is."""
    trouble_ns: int | None = None
    """Since when neighbours take the CPU again and again, None after a calm."""


@dataclass(frozen=True, slots=True)
class CpuView:
    """What can be done: `base_weight` is the weight without us, None if it can't be set."""

    base_weight: int | None
    max_weight: int
    cpus: int
    neighbours: tuple[NeighbourView, ...] = ()


def decide_cpu(
    view: CpuView, memory: CpuMemory, signals: Signals, cause: Cause
) -> tuple[CpuMemory, Proposal | None]:
    """The next step of the ladder up, or of the way back down, or none.

    What more CPU would not cure is no reason to hold neighbours down: it counts as calm.
    """
    now_ns = signals.now_ns
    if not signals.idle:
        memory = replace(memory, idle_ns=None)
    elif memory.idle_ns is None:
        memory = replace(memory, idle_ns=now_ns)
    if cause is not Cause.NONE and cause not in OUTSIDE:
        memory = replace(memory, calm_ns=None)
        if cause is Cause.NEIGHBOUR_CPU:
            return _tighten(view, memory, signals)
        return memory, None
    if memory.calm_ns is None:
        memory = replace(memory, calm_ns=now_ns)
    return _relax(view, memory, signals)


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
    if view.base_weight is not None:
        weight = memory.weight or view.base_weight
        if weight < view.max_weight:
            if now_ns - memory.weight_ns < WEIGHT_DWELL_NS:
                return memory, None
            raised = min(view.max_weight, weight * WEIGHT_FACTOR)
            changed = replace(memory, weight=raised, weight_ns=now_ns)
            return changed, Proposal((SetWeight(raised, weight),), reason)
    failing_since_ns = max(memory.weight_ns, memory.trouble_ns or now_ns)
    if now_ns - failing_since_ns < QUOTA_AFTER_NS or now_ns - memory.quota_ns < QUOTA_DWELL_NS:
        return memory, None
    used_ns = sum(each.used_cores for each in view.neighbours) * signals.window_ns
    if used_ns < BLAME_SHARE * signals.kernel.wait_other_ns:
        return memory, None  # others, whom the policy does not name, hold the CPU
    quotas = dict(memory.quotas)
    actions: list[Action] = []
    for each in view.neighbours:
        old = quotas.get(each.name)
        # what it uses now, not what it may use: a quota above use changes nothing
        most = min(each.used_cores, old or view.cpus)
        cut = max(each.min_cores, QUOTA_CUT * most)
        if each.used_cores > QUIET_CORES / 2 and cut < most:
            quotas[each.name] = cut
            actions.append(SetQuota(each.name, cut, old))
    if not actions:
        return memory, None
    changed = replace(memory, quotas=quotas, quota_ns=now_ns)
    return changed, Proposal(tuple(actions), f"{reason}, and its weight is not enough")


def _relax(view: CpuView, memory: CpuMemory, signals: Signals) -> tuple[CpuMemory, Proposal | None]:
    now_ns = signals.now_ns
    calm_for_ns = now_ns - (memory.calm_ns if memory.calm_ns is not None else now_ns)
    if memory.trouble_ns is not None and calm_for_ns >= QUOTA_AFTER_NS:
        memory = replace(memory, trouble_ns=None)
    if memory.quotas:
        if calm_for_ns < RELAX_AFTER_NS or now_ns - memory.quota_ns < RELAX_EVERY_NS:
            return memory, None
        return _grow_quotas(view, memory, now_ns, calm_for_ns)
    if memory.weight is None or calm_for_ns < RELEASE_AFTER_NS:
        return memory, None
    used = sum(each.used_cores for each in view.neighbours)
    idle = memory.idle_ns is not None and now_ns - memory.idle_ns >= IDLE_AFTER_NS
    if used >= QUIET_CORES and not idle:
        return memory, None  # they would take it again at once
    why = "the engine has no traffic" if idle else "its neighbours are quiet"
    action = ReleaseLimit("", "cpu_weight", memory.weight)
    return replace(memory, weight=None, weight_ns=now_ns), Proposal((action,), why)


def _grow_quotas(
    view: CpuView, memory: CpuMemory, now_ns: int, calm_for_ns: int
) -> tuple[CpuMemory, Proposal]:
    present = {each.name: each for each in view.neighbours}
    quotas: dict[str, float] = {}
    actions: list[Action] = []
    for name, cores in memory.quotas.items():
        grown = cores * QUOTA_GROWTH
        if grown >= view.cpus or name not in present:
            actions.append(ReleaseLimit(name, "cpu_quota", cores))
        else:
            quotas[name] = grown
            actions.append(SetQuota(name, grown, cores))
    reason = f"nothing was at risk for {calm_for_ns / 1e9:.0f} s"
    return replace(memory, quotas=quotas, quota_ns=now_ns), Proposal(tuple(actions), reason)
