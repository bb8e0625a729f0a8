"""Freezes: each made by the freezer, on the undo list before, and over by its deadline.

Three can end one, each without the others: the freezer, the limiter, which looks each tick, and the
guard. The last two do when the deadline is 10 ms past, or the freezer dead.
"""

import os
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final

from controller.limits.cgroup import CgroupError, Group, Hierarchies
from controller.limits.change import Change, Slot, shown
from controller.limits.freezer_client import FreezerClient, Thaw
from controller.limits.freezing import freeze_change
from controller.limits.guard import FREEZE
from controller.limits.holds import Held, Holds
from controller.limits.places import place_of, refuse_to_stop_ourselves
from controller.limits.undo import THAW_GRACE_NS, Foreign, Report

MAX_FREEZE_MS: Final = 5_000
"""No class of service freezes for longer; who asks for more has mistaken the unit."""


@dataclass(frozen=True, slots=True)
class Thawed:
    """A freeze that is over.

    `frozen_ns` is from the write that began it to the one that ended it, as far as is known:
    whoever else thawed left no note, and then it is to when that was found. `complete`: the freezer
    saw every process standing still. `in_time`: the freezer ended it, at its deadline.
    """

    held: Held
    frozen_ns: int
    complete: bool
    in_time: bool


class Freezes:
    """Freezes groups for a `Limiter`, whose methods of the same names say more."""

    def __init__(self, holds: Holds, hierarchies: Hierarchies, guard_fd: int | None) -> None:
        """Freezes are held in `holds`; `guard_fd` is the guard's pipe."""
        self._holds = holds
        self._hierarchies = hierarchies
        self._guard_fd = guard_fd
        self._freezer = FreezerClient()
        self._began_ns: dict[Slot, int] = {}
        self._told: dict[Slot, Thaw] = {}
        self._thawed: list[Thawed] = []

    @property
    def freezer_pid(self) -> int | None:
        """The freezer's process id, None while there is none."""
        return self._freezer.pid

    def prepare(self, wait_ms: int) -> bool:
        """Start the freezer; whether it is ready."""
        return self._freezer.start(wait_ms)

    def freeze(self, group: Group, for_ms: int, reason: str) -> Held | Foreign:
        """Stop every process of the group for `for_ms` at most."""
        if not 1 <= for_ms <= MAX_FREEZE_MS:
            raise CgroupError(f"a freeze is 1 to {MAX_FREEZE_MS} ms, not {for_ms}")
        until_ns = time.monotonic_ns() + for_ms * 1_000_000
        self._end()
        place = place_of(self._hierarchies, group, "freezer")
        change = freeze_change(place)
        held = self._holds.get(change.slot)
        if held is not None:
            return held
        refuse_to_stop_ourselves(place)
        if not self._freezer.start():
            raise CgroupError(f"could not freeze {group.path!r}: the freezer is being started")

        def ask(change: Change) -> None:
            self._warn_guard()
            began_ns = self._freezer.freeze(change.file, place.cgroup_id, until_ns)
            self._began_ns[change.slot] = began_ns
            if shown(change.file, change.text) != change.text and time.monotonic_ns() < until_ns:
                raise CgroupError(f"'{change.file}' did not stay at {change.text!r}")

        return self._holds.set(group, change, reason, place=place, until_ns=until_ns, write=ask)

    def thaw(self, group: Group) -> Report:
        """End the group's freeze now, if there is one."""
        freezes = [held for held in self._all() if held.group == group]
        self._holds.restore(freezes)
        with self._holds.listed():
            return self._holds.release(held.slot for held in freezes)

    def thawed(self) -> tuple[Thawed, ...]:
        """The freezes that are over, since the last call."""
        self._end()
        thawed, self._thawed = tuple(self._thawed), []
        return thawed

    def close(self) -> None:
        """End the freezer, which thaws first."""
        self._freezer.close()

    def _all(self) -> list[Held]:
        return [held for held in self._holds.all() if held.until_ns is not None]

    def _end(self) -> None:
        """End what is overdue, or has lost its freezer; note what is over, by whoever's doing."""
        thaws = self._freezer.thaws()
        if frozen := self._all():
            self._end_those(frozen, thaws)
        for held, found_ns in self._holds.take_over():
            self._thawed.append(self._account(held, found_ns))

    def _end_those(self, frozen: Collection[Held], thaws: Iterable[Thaw]) -> None:
        began = {(held.file, self._began_ns[held.slot]): held for held in frozen}
        told = {(thaw.file, thaw.began_ns): thaw for thaw in thaws}
        self._told |= {began[key].slot: thaw for key, thaw in told.items() if key in began}
        late_ns = time.monotonic_ns() - THAW_GRACE_NS
        orphans = [
            held
            for held in began.values()
            if not self._freezer.alive or (held.until_ns or 0) <= late_ns
        ]
        self._holds.restore(orphans)
        over = [held for held in began.values() if held.slot in self._told or held in orphans]
        if over:
            with self._holds.listed():
                self._holds.release(held.slot for held in over)

    def _account(self, held: Held, found_ns: int) -> Thawed:
        self._freezer.forget(held.file)
        began_ns = self._began_ns.pop(held.slot)
        told = self._told.pop(held.slot, None)
        if told is None:
            return Thawed(held, found_ns - began_ns, complete=False, in_time=False)
        return Thawed(held, told.thawed_ns - began_ns, told.complete, in_time=True)

    def _warn_guard(self) -> None:
        """Have the guard look for the freeze that is on the list now; without it there is none."""
        if self._guard_fd is None:
            return
        try:
            os.write(self._guard_fd, FREEZE)
        except OSError as error:
            raise CgroupError(f"the guard does not listen: {error.strerror}") from None
