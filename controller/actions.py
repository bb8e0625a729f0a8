"""What a decision can ask for; the loop carries it out, or in shadow mode writes it down."""

from collections.abc import Mapping
from dataclasses import dataclass

from controller.journal_rows import Change
from controller.limits.cpu import IDLE_WEIGHT


@dataclass(frozen=True, slots=True)
class SetKnobs:
    """Set these knobs of the engine under the lease; `old` are the values before."""

    values: Mapping[str, float]
    old: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class ReleaseKnobs:
    """Give the lease back: the engine returns to its start values."""

    old: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class SetWeight:
    """Set the CPU weight (v2 unit) of a cgroup: the engine's own, or a `target`'s, 0 for idle.

    `old` is None where it is not known.
    """

    weight: int
    old: int | None
    target: str = ""


@dataclass(frozen=True, slots=True)
class SetQuota:
    """Hold a neighbour's cgroup to `cores`."""

    target: str
    cores: float
    old: float | None


@dataclass(frozen=True, slots=True)
class SetMemoryHigh:
    """Slow a neighbour's cgroup down when it has more than `high` bytes of memory."""

    target: str
    high: int
    old: int | None


@dataclass(frozen=True, slots=True)
class Freeze:
    """Stop a neighbour's processes for `for_ms` at the most."""

    target: str
    for_ms: int


@dataclass(frozen=True, slots=True)
class Thaw:
    """Let a frozen neighbour go on before its time is over."""

    target: str


@dataclass(frozen=True, slots=True)
class ReleaseLimit:
    """Undo what was set on a target's cgroup: `knob` is cpu_weight, cpu_quota or memory_high."""

    target: str
    knob: str
    old: float


LimitAction = SetWeight | SetQuota | Freeze | Thaw | SetMemoryHigh | ReleaseLimit
"""What is done to cgroups."""

Action = SetKnobs | ReleaseKnobs | LimitAction
"""Anything a decision can ask for."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """Actions that belong together, and why, in words."""

    actions: tuple[Action, ...]
    reason: str


def changes_of(proposal: Proposal, engine: str, rank: str = "") -> list[Change]:
    """What a proposal about `engine` changes, as the journal has it; `rank` is whose knobs."""
    return [change for action in proposal.actions for change in _changes(action, engine, rank)]


def _changes(action: Action, engine: str, rank: str) -> list[Change]:
    match action:
        case SetKnobs(values=values, old=old):
            return [
                Change("knob", rank or engine, name, old.get(name), value)
                for name, value in values.items()
                if old.get(name) != value
            ]
        case ReleaseKnobs(old=old):
            return [
                Change("knob", rank or engine, name, value, "start") for name, value in old.items()
            ]
        case SetWeight(weight=weight, old=before, target=whose):
            return [Change("limit", whose or engine, "cpu_weight", before, _weight(weight))]
        case Freeze(target=target, for_ms=for_ms):
            return [Change("limit", target, "freeze_ms", None, for_ms)]
        case Thaw(target=target):
            return [Change("limit", target, "freeze_ms", None, "thawed")]
        case SetQuota(target=target, cores=cores, old=was):
            return [Change("limit", target, "cpu_quota", was, round(cores, 4))]
        case SetMemoryHigh(target=target, high=high, old=was_high):
            return [Change("limit", target, "memory_high", was_high, high)]
        case ReleaseLimit(target=target, knob=knob, old=held):
            old_weight = _weight(held) if knob == "cpu_weight" else held
            return [Change("limit", target or engine, knob, old_weight, "original")]


def _weight(weight: float) -> float | str:
    return "idle" if weight == IDLE_WEIGHT else weight
