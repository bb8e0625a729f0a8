"""How neighbours are held, and let go of again: they are made idle, then quotas, then freezes.

What is held belongs to the machine, not to the engine it is held for. Every engine in need tightens
the same `Hold`, in the rhythm of one, and it is relaxed only when no engine is in need: so each
neighbour is held as the tightest need asks, is cut once and not by every engine, and is not let go
by one while another still suffers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar

from controller.actions import Action, Freeze, ReleaseLimit, SetQuota, SetWeight, Thaw
from controller.backfill import HeldWork, deal, most_deserving
from controller.limits.cpu import IDLE_WEIGHT

T = TypeVar("T")

BLAME_SHARE: Final = 0.5
"""Neighbours that used less CPU than this share of what the engine waited are not to blame."""

QUOTA_DWELL_NS: Final = 500_000_000
QUOTA_CUT: Final = 0.5
IDLE_CORES: Final = 0.01
"""Who uses less is not made idle: there is nothing to win."""

IDLE_AT_ONCE: Final = 16
"""A write with its undo takes a seventh of a millisecond, and the loop waits for all of them."""

FREEZE_AFTER_NS: Final = 1_000_000_000
"""How long the smallest quotas may fail to help before freezes come."""

FREEZE_DWELL_NS: Final = 100_000_000
"""Between freezes of different neighbours: what the first did shows first."""

MOST_FROZEN: Final = 0.8
"""Of its time no neighbour stands still for more than this share, whatever its class allows."""

THAW_AFTER_NS: Final = 200_000_000
"""Calm for so long during a freeze ends it early, one neighbour after the other."""

RELEASE_AFTER_NS: Final = 10_000_000_000
MOST_RELAPSES: Final = 4
"""How often that may double for idle neighbours: to 160 s."""

NO_TRAFFIC_NS: Final = 60_000_000_000
"""Without traffic for this long an engine needs nobody held. A shorter lull is part of the load,
and giving up in it would make the next burst pay again."""

RELAX_AFTER_NS: Final = 5_000_000_000
RELAX_EVERY_NS: Final = 1_000_000_000

QUIET_CORES: Final = 0.05
"""Neighbours that use less than this together need no holding down."""

WEIGHT_EVERY_NS: Final = 1_000_000_000
WEIGHT_BAND: Final = 0.1
"""A tenant's weight is written again when it is off by more than this share."""


@dataclass(frozen=True, slots=True)
class NeighbourView:
    """A neighbour as the laws see it: what it uses, in cores, and how far it may be limited.

    `weight` is what it should have as a tenant, None if it is none; `held_back_s` is as in
    `HeldWork`; the rest is its class. `idle` is whether it may be made idle.
    """

    name: str
    used_cores: float
    min_cores: float
    cpu_share: float = 1.0
    freeze_ms: int = 0
    retry_ms: int = 1000
    held_back_s: float = 0.0
    weight: int | None = None
    idle: bool = False


@dataclass(frozen=True, slots=True)
class Frozen:
    """A neighbour's last freeze: from when, until when at the latest."""

    since_ns: int
    until_ns: int

    def may_again_ns(self, retry_ms: int) -> int:
        """From when it may be frozen again: after its class's time to run, and a quarter of this.

        The quarter keeps it below `MOST_FROZEN` of the time.
        """
        ran_ns = (self.until_ns - self.since_ns) * (1 - MOST_FROZEN) / MOST_FROZEN
        return self.until_ns + max(retry_ms * 1_000_000, int(ran_ns))


@dataclass(frozen=True, slots=True)
class Hold:
    """What is in force on the machine's neighbours, and since when. One for all engines."""

    quotas: Mapping[str, float] = field(default_factory=dict)
    quota_ns: int = 0
    frozen: Mapping[str, Frozen] = field(default_factory=dict)
    weights: Mapping[str, int] = field(default_factory=dict)
    """Of tenants, and 0 of those that are made idle."""

    weight_ns: int = 0
    idle_ns: int = 0
    woken_ns: int = 0
    """When the idle ones had their weight back, 0 once it was seen what came of it."""

    relapses: int = 0
    """How many times running they were made idle again sooner than they were woken."""

    need_ns: int = 0
    """When an engine was last in need."""

    traffic_ns: int = 0
    """When an engine last had traffic, to a second."""

    @property
    def idle(self) -> list[str]:
        """Those that are made idle."""
        return [name for name, weight in self.weights.items() if weight == IDLE_WEIGHT]

    @property
    def wake_after_ns(self) -> int:
        """How long it must be calm before the idle ones are woken.

        An engine that takes all of its CPUs leaves them nothing, so they look quiet, and take it
        again once they are woken: each time they do, twice as long as the time before.
        """
        return RELEASE_AFTER_NS << self.relapses

    def without(self, name: str, knob: str | None = None) -> "Hold":
        """The same without a neighbour, or without its `cpu_quota` or `cpu_weight` alone."""
        hold = self
        if knob in {None, "cpu_quota"}:
            hold = replace(hold, quotas=_others(hold.quotas, name))
        if knob in {None, "cpu_weight"}:
            hold = replace(hold, weights=_others(hold.weights, name))
        return hold if knob is not None else replace(hold, frozen=_others(hold.frozen, name))


def make_idle(
    neighbours: Sequence[NeighbourView], hold: Hold, waited_ns: int, window_ns: int, now_ns: int
) -> tuple[Hold, tuple[Action, ...]]:
    """Make all idle that may be and use the CPU, a tenant never; nothing if they are innocent.

    They keep all that nobody else wants: it costs them what the engine waits for and no more, so it
    is done at once and to all of them, `IDLE_AT_ONCE` in one step and who uses most first.
    """
    if not _are_to_blame(neighbours, waited_ns, window_ns):
        return hold, ()
    burning = [
        each
        for each in neighbours
        if each.idle
        and each.weight is None
        and each.used_cores >= IDLE_CORES
        and each.name not in hold.weights
    ]
    if not burning:
        return hold, ()
    burning.sort(key=lambda each: -each.used_cores)
    fresh = [each.name for each in burning[:IDLE_AT_ONCE]]
    weights = {**hold.weights, **dict.fromkeys(fresh, IDLE_WEIGHT)}
    actions = tuple(SetWeight(IDLE_WEIGHT, None, name) for name in fresh)
    relapses = hold.relapses
    if hold.woken_ns:
        again = now_ns - hold.woken_ns < hold.wake_after_ns
        relapses = min(relapses + 1, MOST_RELAPSES) if again else 0
    held = replace(hold, weights=weights, idle_ns=now_ns, woken_ns=0, relapses=relapses)
    return held, actions


def wake(
    neighbours: Sequence[NeighbourView], hold: Hold, calm_ns: int, now_ns: int
) -> tuple[Hold, tuple[Action, ...], str]:
    """Give the idle ones their weight back after `calm_ns` in which no engine was in need, and why.

    Not while they use the CPU and an engine serves: they would take it again at once.
    """
    idle = hold.idle
    if not idle or calm_ns < RELEASE_AFTER_NS:
        return hold, (), ""
    used = sum(each.used_cores for each in neighbours if each.name in idle)
    unused = now_ns - hold.traffic_ns >= NO_TRAFFIC_NS
    if not unused and (used >= QUIET_CORES or calm_ns < hold.wake_after_ns):
        return hold, (), ""
    weights = {name: each for name, each in hold.weights.items() if each != IDLE_WEIGHT}
    actions = tuple(ReleaseLimit(name, "cpu_weight", IDLE_WEIGHT) for name in idle)
    why = "no engine has traffic" if unused else "they are quiet"
    return replace(hold, weights=weights, woken_ns=now_ns), actions, why


def tighten(
    neighbours: Sequence[NeighbourView],
    cpus: int,
    hold: Hold,
    waited_ns: int,
    window_ns: int,
    now_ns: int,
) -> tuple[Hold, tuple[Action, ...]]:
    """The next quotas, or freezes where no quota can be cut any more; nothing if they are innocent.

    `waited_ns` is what the engine waited for others in the window. A quota is half of what is used,
    at most the class's share of the machine, and never below the neighbour's least.
    """
    if now_ns - hold.quota_ns < QUOTA_DWELL_NS:
        return hold, ()
    if not _are_to_blame(neighbours, waited_ns, window_ns):
        return hold, ()
    quotas = dict(hold.quotas)
    actions: list[Action] = []
    for each in neighbours:
        old = quotas.get(each.name)
        # what it uses now, not what it may use: a quota above use changes nothing
        most = min(each.used_cores, old or cpus)
        cut = max(each.min_cores, min(QUOTA_CUT * most, each.cpu_share * cpus))
        if each.used_cores > QUIET_CORES / 2 and cut < most:
            quotas[each.name] = cut
            actions.append(SetQuota(each.name, cut, old))
    if actions:
        return replace(hold, quotas=quotas, quota_ns=now_ns), tuple(actions)
    if now_ns - hold.quota_ns < FREEZE_AFTER_NS:
        return hold, ()
    return _freeze(neighbours, hold, waited_ns / window_ns if window_ns else 0.0, now_ns)


def _freeze(
    neighbours: Sequence[NeighbourView], hold: Hold, waited_cores: float, now_ns: int
) -> tuple[Hold, tuple[Action, ...]]:
    """Freeze, lowest class first, until those frozen used what the engine waited for."""
    if any(now_ns - last.since_ns < FREEZE_DWELL_NS for last in hold.frozen.values()):
        return hold, ()
    frozen = {
        name: last
        for name, last in hold.frozen.items()
        if now_ns < last.may_again_ns(_retry_ms(neighbours, name))
    }
    actions: list[Action] = []
    for each in sorted(neighbours, key=lambda each: (each.cpu_share, -each.used_cores)):
        if waited_cores <= 0:
            break
        may = each.freeze_ms > 0 and each.name not in frozen
        if not may or each.used_cores <= QUIET_CORES / 2:
            continue
        frozen[each.name] = Frozen(now_ns, now_ns + each.freeze_ms * 1_000_000)
        actions.append(Freeze(each.name, each.freeze_ms))
        waited_cores -= each.used_cores
    return replace(hold, frozen=frozen), tuple(actions)


def relax(
    neighbours: Sequence[NeighbourView], cpus: int, hold: Hold, calm_ns: int, now_ns: int
) -> tuple[Hold, tuple[Action, ...], str]:
    """What is let go of after `calm_ns` in which no engine was in need, and why."""
    standing = [name for name, last in hold.frozen.items() if last.until_ns > now_ns]
    if standing and calm_ns >= THAW_AFTER_NS:
        deserves = {each.name: each.held_back_s * each.cpu_share for each in neighbours}
        name = most_deserving(standing, deserves)
        assert name is not None
        last = hold.frozen[name]
        frozen = {**hold.frozen, name: replace(last, until_ns=now_ns)}
        why = f"nothing was at risk for {calm_ns / 1e6:.0f} ms"
        return replace(hold, frozen=frozen), (Thaw(name),), why
    due = calm_ns >= RELAX_AFTER_NS and now_ns - hold.quota_ns >= RELAX_EVERY_NS
    if not hold.quotas or not due:
        return hold, (), ""
    present = {each.name: each for each in neighbours}
    dealt = deal(
        HeldWork(name, cores, one.used_cores, one.held_back_s, one.cpu_share)
        for name, cores in hold.quotas.items()
        if (one := present.get(name)) is not None
    )
    quotas: dict[str, float] = {}
    actions: list[Action] = []
    for name, cores in hold.quotas.items():
        grown = dealt.get(name, cpus)
        if grown >= cpus:
            actions.append(ReleaseLimit(name, "cpu_quota", cores))
        else:
            quotas[name] = grown
            actions.append(SetQuota(name, grown, cores))
    changed = replace(hold, quotas=quotas, quota_ns=now_ns)
    return changed, tuple(actions), f"nothing was at risk for {calm_ns / 1e9:.0f} s"


def weigh_tenants(
    neighbours: Sequence[NeighbourView], hold: Hold, now_ns: int
) -> tuple[Hold, tuple[Action, ...]]:
    """The weights of neighbours that are tenants, where they are off; once a second at the most."""
    if now_ns - hold.weight_ns < WEIGHT_EVERY_NS:
        return hold, ()
    weights = dict(hold.weights)
    actions: list[Action] = []
    for each in neighbours:
        held = weights.get(each.name)
        if each.weight is None:
            if held is not None and held != IDLE_WEIGHT:
                del weights[each.name]
                actions.append(ReleaseLimit(each.name, "cpu_weight", held))
        elif held is None or abs(each.weight - held) > WEIGHT_BAND * held:
            weights[each.name] = each.weight
            actions.append(SetWeight(each.weight, held, each.name))
    if not actions:
        return hold, ()
    return replace(hold, weights=weights, weight_ns=now_ns), tuple(actions)


def _are_to_blame(neighbours: Sequence[NeighbourView], waited_ns: int, window_ns: int) -> bool:
    """Whether it is they who hold the CPU, and not others, whom the policy does not name."""
    used_ns = sum(each.used_cores for each in neighbours) * window_ns
    return used_ns >= BLAME_SHARE * waited_ns


def _retry_ms(neighbours: Sequence[NeighbourView], name: str) -> int:
    return next((each.retry_ms for each in neighbours if each.name == name), 0)


def _others(kept: Mapping[str, T], name: str) -> Mapping[str, T]:
    return {other: each for other, each in kept.items() if other != name}
