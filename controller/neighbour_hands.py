"""The hands on the neighbours: what is in force on each cgroup, and every limit that is set on one.

Whatever asks for a limit on a neighbour passes `NeighbourHands.do`, so that what is protected is
refused there and nowhere else.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from controller.actions import (
    Freeze,
    LimitAction,
    ReleaseLimit,
    SetMemoryHigh,
    SetQuota,
    SetWeight,
    Thaw,
)
from controller.limits.cgroup import CgroupError, Group
from controller.limits.cpu import IDLE_WEIGHT, QUOTA_FILES, WEIGHT_FILES, can_be_idle
from controller.limits.holds import Held
from controller.limits.limiter import Limiter
from controller.limits.memory import HIGH
from controller.limits.undo import Foreign
from controller.neighbour_limits import Hold, NeighbourView
from controller.protection import Protection

PAUSE_NS: Final = 5_000_000_000

KNOB_FILES: Final[Mapping[str, Collection[str]]] = {
    "cpu_weight": frozenset(WEIGHT_FILES.values()),
    "cpu_quota": frozenset(QUOTA_FILES.values()),
    "memory_high": frozenset({HIGH}),
}
"""The files that a limit is in, by the journal's word for it."""

Tell = Callable[[str, str, Mapping[str, Any]], None]
"""Journals an event: its kind, its subject, and the details."""


@dataclass(frozen=True, slots=True)
class Freezes:
    """A neighbour's freezes that are over, and those of them that were not ended by the freezer."""

    count: int = 0
    frozen_ns: int = 0
    longest_ns: int = 0
    late: int = 0


def attempt(set_limit: Callable[[], Held | Foreign], group: Group, tell: Tell) -> str | None:
    """Set a limit; why it was refused, or None. What somebody else wrote is left alone."""
    try:
        held = set_limit()
    except CgroupError as error:
        tell("limit_refused", group.path, {"error": str(error)})
        return str(error)
    if isinstance(held, Foreign):
        tell("foreign_write", str(held.entry.file), {"found": held.found})
        return f"somebody else wrote '{held.entry.file}'"
    return None


class NeighbourHands:
    """Sets and gives back what the laws ask for on neighbours.

    `hold` is what was decided to be in force, by the laws of all engines together.
    """

    def __init__(
        self, limiter: Limiter, protection: Protection, tell: Tell, clock: Callable[[], int]
    ) -> None:
        """Limits go through `limiter`; `tell` journals what happens to them."""
        self.hold = Hold()
        self._limiter = limiter
        self._protection = protection
        self._tell = tell
        self._clock = clock
        self._groups: dict[str, Group] = {}
        self.may_be_idle: Collection[str] = frozenset()
        """The names of those that the kernel can make idle for an engine's sake."""
        self._quotas: dict[str, float] = {}
        self._weights: dict[str, int] = {}
        self._highs: dict[str, int] = {}
        self._frozen: dict[str, int] = {}
        self._paused: dict[str, int] = {}
        self._protected: dict[str, str] = {}
        self._freezes: dict[str, Freezes] = {}

    @property
    def groups(self) -> Mapping[str, Group]:
        """The cgroups of those that may be limited, by name."""
        return self._groups

    def take_on(
        self, groups: Mapping[str, Group], engines: Collection[Group], *, freezable: bool
    ) -> None:
        """The neighbours there are now; those that went, or moved, get theirs back.

        The freezer is started ahead where a class allows a freeze.
        """
        old, self._groups = self._groups, dict(groups)
        self.may_be_idle = {
            name
            for name, group in groups.items()
            if can_be_idle(group) and any(_gives_way(group, engine) for engine in engines)
        }
        self._protection.set_engines(group.path for group in engines)
        self._protection.forget_but(self._groups.values())
        for kept in (self._protected, self._paused, self._freezes):
            for name in kept.keys() - self._groups.keys():
                del kept[name]
        for name in self._limited():
            if self._groups.get(name) != old[name]:
                self._drop(name, old[name])
        if freezable:
            self._limiter.prepare_to_freeze()

    def respect(
        self, floors: Mapping[str, float], freezable: Collection[str], idle: Collection[str]
    ) -> None:
        """Give back what neighbours may not have: quotas below their floor, in cores, and others.

        `freezable` are those whose class allows it, `idle` those that may be idle.
        """
        for name in [name for name, cores in self._quotas.items() if cores < floors.get(name, 0)]:
            self._drop(name, self._groups[name])
        for name in self._frozen.keys() - set(freezable):
            self._thaw(name)
        made_idle = {name for name, weight in self._weights.items() if weight == IDLE_WEIGHT}
        for name in made_idle - set(idle):
            self._drop(name, self._groups[name])

    @property
    def holding(self) -> bool:
        """Whether anything is in force on a neighbour."""
        return bool(self._quotas or self._weights or self._highs or self._frozen)

    def limitable(self, neighbours: Iterable[NeighbourView]) -> tuple[NeighbourView, ...]:
        """Those that can be limited now: known, not protected, and nothing refused lately."""
        now_ns = self._clock()
        return tuple(
            each
            for each in neighbours
            if each.name in self._groups
            and each.name not in self._protected
            and self._paused.get(each.name, 0) <= now_ns
        )

    def free_groups(self) -> Mapping[str, Group]:
        """The cgroups of those on which a limit can be set now, by name."""
        now_ns = self._clock()
        return {
            name: group
            for name, group in self._groups.items()
            if name not in self._protected and self._paused.get(name, 0) <= now_ns
        }

    def do(self, action: LimitAction, reason: str) -> str | None:
        """Carry out an action on a neighbour; why it was refused, or None."""
        name = action.target
        group = self._groups.get(name)
        if group is None:
            return "its cgroup is gone"
        if isinstance(action, ReleaseLimit):
            self._kept(action.knob).pop(name, None)
            return self._release(group, KNOB_FILES[action.knob])
        if isinstance(action, Thaw):
            return self._thaw(name)
        why = self.refuse(name)
        if why is None:
            why = self._set(action, group, reason)
        if why is not None:
            self._paused[name] = self._clock() + PAUSE_NS
            if isinstance(action, SetWeight):
                self.hold = self.hold.without(name, "cpu_weight")
        elif isinstance(action, SetQuota):
            self._quotas[name] = action.cores
        elif isinstance(action, SetWeight):
            self._weights[name] = action.weight
        elif isinstance(action, SetMemoryHigh):
            self._highs[name] = action.high
        elif isinstance(action, Freeze):
            self._frozen[name] = self._clock() + action.for_ms * 1_000_000
        return why

    def refuse(self, name: str) -> str | None:
        """Why nothing may be set on a neighbour, None if it may; an event says so once."""
        group = self._groups.get(name)
        why = self._protection.why(group) if group is not None else None
        if group is None or why is None:
            self._protected.pop(name, None)
            return None
        if self._protected.get(name) != why:
            self._protected[name] = why
            self._tell("protected", name, {"cgroup": group.path, "why": why})
        return f"it is protected: {why}"

    def follow_freezes(self) -> None:
        """Take note of freezes that are over; to be called each tick."""
        try:
            over = self._limiter.thawed()
        except CgroupError as error:
            self._tell("limits", "freezer", {"error": str(error)})
            return
        if not over:
            return
        names = {group: name for name, group in self._groups.items()}
        for each in over:
            name = names.get(each.held.group)
            if name is None:
                continue
            self._frozen.pop(name, None)
            known = self._freezes.get(name, Freezes())
            self._freezes[name] = Freezes(
                known.count + 1,
                known.frozen_ns + each.frozen_ns,
                max(known.longest_ns, each.frozen_ns),
                known.late + (not each.in_time),
            )

    def check(self) -> None:
        """Let go of what has become protected, and see whether what was is it still."""
        for name in {*self._limited(), *self._protected}:
            if self.refuse(name) is not None and name in self._limited():
                self._drop(name, self._groups[name])

    def let_go(self, file: Path) -> None:
        """Somebody else wrote or undid a file: what it held is not in force any more."""
        for name, group in self._groups.items():
            same = group.directory == file.parent
            for knob, files in KNOB_FILES.items():
                if not same or file.name not in files:
                    continue
                self._kept(knob).pop(name, None)
                self.hold = self.hold.without(name, knob)
                self._paused[name] = self._clock() + PAUSE_NS

    def forget(self, name: str) -> None:
        """Nothing of ours is in force on a neighbour any more."""
        for kept in (self._quotas, self._weights, self._highs, self._frozen):
            kept.pop(name, None)
        self.hold = self.hold.without(name)

    def forget_all(self) -> None:
        """Nothing is in force on any: everything was undone, or nothing was done."""
        for kept in (self._quotas, self._weights, self._highs, self._frozen):
            kept.clear()
        self.hold = Hold()

    def give_all_back(self) -> None:
        """Nobody needs them held any more."""
        for name in self._limited():
            self._drop(name, self._groups[name])

    def reset(self) -> None:
        """What was refused may be tried again."""
        self._paused.clear()
        self._protected.clear()

    def is_held(self, name: str) -> bool:
        """Whether a quota or a freeze is in force."""
        return name in self._quotas or name in self._frozen

    def status(self, name: str) -> dict[str, Any]:
        """What is in force on a neighbour and what was, for a `status` message."""
        freezes = self._freezes.get(name, Freezes())
        return {
            "quota_cores": self._quotas.get(name),
            "weight": self._weights.get(name) or None,
            "idle": self._weights.get(name) == IDLE_WEIGHT,
            "frozen": name in self._frozen,
            "freezes": freezes.count,
            "frozen_ns": freezes.frozen_ns,
            "longest_freeze_ns": freezes.longest_ns,
            "late_thaws": freezes.late,
            "protected": self._protected.get(name),
        }

    def _limited(self) -> set[str]:
        return {*self._quotas, *self._weights, *self._highs, *self._frozen}

    def _kept(self, knob: str) -> dict[str, Any]:
        kept: Mapping[str, dict[str, Any]] = {
            "cpu_quota": self._quotas,
            "cpu_weight": self._weights,
            "memory_high": self._highs,
        }
        return kept[knob]

    def _set(self, action: LimitAction, group: Group, reason: str) -> str | None:
        limiter = self._limiter
        match action:
            case SetQuota(cores=cores):
                return attempt(lambda: limiter.set_quota(group, cores, reason), group, self._tell)
            case SetWeight(weight=weight):
                return attempt(lambda: limiter.set_weight(group, weight, reason), group, self._tell)
            case Freeze(for_ms=for_ms):
                return attempt(lambda: limiter.freeze(group, for_ms, reason), group, self._tell)
            case SetMemoryHigh(high=high):
                return attempt(
                    lambda: limiter.set_memory_high(group, high, reason), group, self._tell
                )
        raise TypeError(f"{action} sets nothing")

    def _thaw(self, name: str) -> str | None:
        try:
            report = self._limiter.thaw(self._groups[name])
        except CgroupError as error:
            return str(error)
        return "; ".join(each.why for each in report.kept) or None

    def _drop(self, name: str, group: Group) -> None:
        """Give back all that is in force on a neighbour."""
        why = self._release(group, None)
        if why is not None:
            self._tell("undo", name, {"error": why})
        self.forget(name)

    def _release(self, group: Group, files: Collection[str] | None) -> str | None:
        try:
            report = self._limiter.release(group, files)
        except CgroupError as error:
            return str(error)
        return "; ".join(each.why for each in report.kept) or None


def _gives_way(group: Group, engine: Group) -> bool:
    """Whether an idle `group` would give way to `engine`.

    The kernel compares the two groups that the paths to both have below their last common one; who
    is deeper down than that would give way to others alone.
    """
    return group.directory.parent in engine.directory.parents
