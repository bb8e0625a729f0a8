"""Sets limits on cgroups so that each is undone, by itself or by the guard.

One `Limiter` owns one undo list. A file's first original is kept however often it is changed.

Two things can happen to a limit from outside. Somebody else writes the file: the limiter yields,
that is, it forgets the file and leaves it alone until `reset`. Or the guard, or the supervisor,
undoes it, because this process was stopped for longer than the guard's timeout: the limit is then
no longer held, and the next `set_…` applies it afresh. `check` finds both.

A freeze is held like a limit until its deadline, and made by the freezer, which ends it by then.
"""

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from controller.limits import undo, undo_list
from controller.limits.block_io import io_weight_change
from controller.limits.cgroup import (
    CgroupError,
    Group,
    Hierarchies,
    read_hierarchies,
    read_mount_points,
)
from controller.limits.change import Change, Slot, shown, slot_of
from controller.limits.cpu import apply, quota_change, read_quota, weight_change
from controller.limits.freezer_client import FreezerClient, Thaw
from controller.limits.freezing import freeze_change
from controller.limits.guard import BEAT, FREEZE
from controller.limits.memory import dmem_max_change, memory_high_change
from controller.limits.order import Step, in_order
from controller.limits.places import place_of, refuse_to_stop_ourselves
from controller.limits.undo import THAW_GRACE_NS, Foreign, Report
from controller.limits.undo_list import Entry

BEAT_EVERY_NS: Final = 100_000_000
LOCK_WAIT_MS: Final = 50
"""An undo run holds the lock for less; a fast loop that waits this long loses a few ticks."""

MAX_FREEZE_MS: Final = 5_000
"""No class of service freezes for longer; who asks for more has mistaken the unit."""

_Stamp = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Held:
    """A limit in force: `file` of `group` holds `applied`; before us it held `original`.

    Both are texts as in `Change`. `group` is the one that was asked for: with cgroup v1 the file
    may be in another hierarchy. `since_ns` (CLOCK_MONOTONIC) is when the file was first changed,
    `until_ns` when a freeze has to be over.
    """

    group: Group
    file: Path
    original: str
    applied: str
    reason: str
    since_ns: int
    cgroup_id: int
    until_ns: int | None = None

    @property
    def slot(self) -> Slot:
        """Which value it is about."""
        return slot_of(self.file, self.original)


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


@dataclass(frozen=True, slots=True)
class Lapsed:
    """A limit that was held and is no more: undone from outside, or gone with its cgroup."""

    held: Held


class Limiter:
    """Sets, releases and watches limits. Not for use from several threads."""

    def __init__(
        self,
        undo_path: Path,
        heartbeat_fd: int | None = None,
        *,
        roots: Sequence[Path] | None = None,
        owner: str = "controller",
        hierarchies: Hierarchies | None = None,
    ) -> None:
        """Use the undo list at `undo_path`, whose directory exists.

        `heartbeat_fd` is the write end of the guard's pipe; it becomes non-blocking and stays the
        caller's to close. `roots` is as in `run_undo`, `owner` goes into the list's entries. In
        `hierarchies`, the machine's own by default, a group of cgroup v1 has its other files.
        """
        self._path = undo_path
        self._beat_fd = heartbeat_fd
        self._roots = read_mount_points() if roots is None else tuple(roots)
        self._owner = owner
        self._last_beat_ns = 0
        self._hierarchies = read_hierarchies() if hierarchies is None else hierarchies
        self._held: dict[Slot, Held] = {}
        self._foreign: dict[Slot, Foreign] = {}
        self._noticed: list[Foreign | Lapsed] = []
        self._listed: Mapping[Slot, Entry] = {}
        self._freezer = FreezerClient()
        self._began_ns: dict[Slot, int] = {}
        self._told: dict[Path, Thaw] = {}
        self._thawed: list[Thawed] = []
        self._stamp: _Stamp | None = None
        if heartbeat_fd is not None:
            os.set_blocking(heartbeat_fd, False)

    def set_weight(self, group: Group, weight: int, reason: str) -> Held | Foreign:
        """Set the group's weight (1–10000). Returns what is held now, or why it is left alone.

        Raises `CgroupError` if it cannot be done; then the file is as it was.
        """
        return self._set(group, weight_change(group, weight), reason)

    def set_quota(self, group: Group, cores: float | None, reason: str) -> Held | Foreign:
        """Set the group's quota in cores, None for no limit; otherwise as `set_weight`.

        Lifting a quota is held like any other value: `release` puts the original back.
        """
        return self._set(group, quota_change(group, cores), reason)

    def set_quotas(
        self, cores_by_group: Mapping[Group, float | None], reason: str
    ) -> dict[Group, Held | Foreign]:
        """Set the quotas of a tree, each as `set_quota` does, in an order that cgroup v1 takes.

        Raises `CgroupError` at the first that is refused; those before it stay, and are held.
        """
        groups = {group.path: group for group in cores_by_group}
        steps = (
            Step(path, read_quota(group), cores_by_group[group]) for path, group in groups.items()
        )
        return {
            groups[step.path]: self.set_quota(groups[step.path], step.new, reason)
            for step in in_order(steps)
        }

    def set_memory_high(self, group: Group, limit_bytes: int | None, reason: str) -> Held | Foreign:
        """Set memory.high, None for no limit; otherwise as `set_weight`.

        Refused under cgroup v1, which has nothing like it. See `memory_high_change` for what the
        write costs before kernel 6.16.
        """
        place = place_of(self._hierarchies, group, "memory")
        return self._set(group, memory_high_change(place, limit_bytes), reason, place)

    def set_io_weight(self, group: Group, weight: int, reason: str) -> Held | Foreign:
        """Set the group's weight (1–10000) for all disks; otherwise as `set_weight`."""
        place = place_of(self._hierarchies, group, "io")
        return self._set(group, io_weight_change(place, weight), reason, place)

    def set_dmem_max(
        self, group: Group, region: str, limit_bytes: int | None, reason: str
    ) -> Held | Foreign:
        """Limit the group's GPU memory in a region, None: no limit; otherwise as `set_weight`."""
        return self._set(group, dmem_max_change(group, region, limit_bytes), reason)

    def freeze(self, group: Group, for_ms: int, reason: str) -> Held | Foreign:
        """Stop every process of the group for `for_ms` at most.

        A group that is frozen already stays so until the deadline it has: asking again does not
        make it later. Call `thawed` each tick; it ends what the freezer did not. Raises
        `CgroupError` if it cannot be done, as while the freezer is started at the first call, if
        somebody else has frozen the group, or if we, or PID 1, are in it.
        """
        if not 1 <= for_ms <= MAX_FREEZE_MS:
            raise CgroupError(f"a freeze is 1 to {MAX_FREEZE_MS} ms, not {for_ms}")
        until_ns = time.monotonic_ns() + for_ms * 1_000_000
        self._end_freezes()
        place = place_of(self._hierarchies, group, "freezer")
        change = freeze_change(place)
        if change.slot in self._held:
            return self._held[change.slot]
        refuse_to_stop_ourselves(place)
        if not self._freezer.start():
            raise CgroupError(f"could not freeze {group.path!r}: the freezer is being started")

        def ask(change: Change) -> None:
            self._warn_guard()
            began_ns = self._freezer.freeze(change.file, place.cgroup_id, until_ns)
            self._began_ns[change.slot] = began_ns
            if shown(change.file, change.text) != change.text and time.monotonic_ns() < until_ns:
                raise CgroupError(f"'{change.file}' did not stay at {change.text!r}")

        return self._set(group, change, reason, place, until_ns, ask)

    def thaw(self, group: Group) -> Report:
        """End the group's freeze now, if there is one; otherwise as `release`."""
        with self._list():
            return self._release(
                held.slot
                for held in self.held()
                if held.until_ns is not None and held.group == group
            )

    def thawed(self) -> tuple[Thawed, ...]:
        """The freezes that are over, since the last call; to be called each tick.

        It never waits, but where there is something to end: a freeze whose freezer has died, or is
        late, is ended here. Raises `CgroupError` as `release` does; the next call tries again.
        """
        self._end_freezes()
        thawed, self._thawed = tuple(self._thawed), []
        return thawed

    def _end_freezes(self) -> None:
        self._told |= {thaw.file: thaw for thaw in self._freezer.thaws()}
        late_ns = time.monotonic_ns() - THAW_GRACE_NS
        over = [
            held.slot
            for held in self.held()
            if held.until_ns is not None
            and (not self._freezer.alive or held.file in self._told or held.until_ns <= late_ns)
        ]
        if over:
            with self._list():
                self._release(over)

    def prepare_to_freeze(self, wait_ms: int = 0) -> bool:
        """Start the freezer ahead of its first use; whether it is ready."""
        return self._freezer.start(wait_ms)

    def close(self) -> None:
        """End the freezer, which thaws first. Limits stay until they are released."""
        self._freezer.close()

    def release(self, group: Group) -> Report:
        """Put the group's files back; what could not be put back stays held and is in the report.

        Raises `CgroupError` only if the undo list cannot be used.
        """
        with self._list() as listed:
            ours = {held.slot for held in self.held() if held.group == group}
            return self._release(
                slot for slot in listed if slot in ours or slot[0].parent == group.directory
            )

    def release_all(self) -> Report:
        """Put every file on the list back, those that an earlier process left included."""
        with self._list() as listed:
            return self._release(listed)

    def held(self) -> tuple[Held, ...]:
        """The limits in force as far as is known, oldest first; `check` looks again."""
        return tuple(self._held.values())

    def check(self) -> tuple[Foreign | Lapsed, ...]:
        """Look at every held file; one that somebody else wrote, or undid, is no longer held.

        To be called every second or so: it also drops groups that vanished. Returns what was
        noticed since the last call, without what `set_…` and `release` returned themselves.
        """
        if self._held:
            with self._list():
                self._look_at(self.held())
        noticed = tuple(self._noticed)
        self._noticed.clear()
        return noticed

    def reset(self) -> None:
        """Forget what others wrote: those files may be limited again."""
        self._foreign.clear()

    def heartbeat(self, now_ns: int) -> bool:
        """Tell the guard that this process lives; called each tick, writes each 100 ms at most.

        Never blocks. Returns False if the guard is gone, so that another can be started.
        """
        if self._beat_fd is None or now_ns - self._last_beat_ns < BEAT_EVERY_NS:
            return True
        self._last_beat_ns = now_ns
        try:
            os.write(self._beat_fd, BEAT)
        except BlockingIOError:
            return True
        except BrokenPipeError:
            return False
        return True

    def _warn_guard(self) -> None:
        """Have the guard look for the freeze that is on the list now; without it there is none."""
        if self._beat_fd is None:
            return
        try:
            os.write(self._beat_fd, FREEZE)
        except OSError as error:
            raise CgroupError(f"the guard does not listen: {error.strerror}") from None

    def _set(
        self,
        group: Group,
        change: Change,
        reason: str,
        place: Group | None = None,
        until_ns: int | None = None,
        write: Callable[[Change], None] | None = None,
    ) -> Held | Foreign:
        """Set a file of `place`, the group itself by default, by `write`, which is `apply`."""
        slot = change.slot
        if slot in self._foreign:
            return self._foreign[slot]
        now_ns = time.monotonic_ns()
        self.heartbeat(now_ns)
        cgroup_id = group.cgroup_id if place is None else place.cgroup_id
        with self._list() as listed:
            found = shown(change.file, change.text)
            entry = listed.get(slot)
            if entry is None or entry.cgroup_id != cgroup_id:
                entry = Entry(change.file, found, (), self._owner, reason, now_ns, cgroup_id)
                if until_ns is not None and found == change.text:
                    raise CgroupError(f"'{change.file}': somebody else has frozen the group")
            elif found not in (entry.original, *self._ours(entry)):
                self._drop([slot])
                self._foreign[slot] = Foreign(entry, found)
                return self._foreign[slot]
            elif slot in self._held and found == change.text:
                return self._held[slot]
            entry = replace(entry, reason=reason, until_ns=until_ns)
            self._record_and_apply(entry, found, change, write or apply)
        held = Held(
            group=group,
            file=entry.file,
            original=entry.original,
            applied=change.text,
            reason=reason,
            since_ns=entry.since_ns,
            cgroup_id=cgroup_id,
            until_ns=until_ns,
        )
        self._held[slot] = held
        return held

    def _record_and_apply(
        self, entry: Entry, found: str, change: Change, write: Callable[[Change], None]
    ) -> None:
        """The list first: it tells both the text that is there now, if ours, and the next."""
        before = self._listed
        last = () if found == entry.original else (found,)
        self._save({**before, entry.slot: replace(entry, applied=(*last, change.text))})
        try:
            write(change)
        except CgroupError:
            with suppress(CgroupError):
                if shown(change.file, change.text) != found:
                    apply(Change(change.file, found))
                self._save(before)
            raise

    def _release(self, slots: Iterable[Slot]) -> Report:
        entries = [self._listed[slot] for slot in slots if slot in self._listed]
        report = undo.restore([replace(entry, applied=self._ours(entry)) for entry in entries])
        kept = {each.entry.slot for each in report.kept}
        self._drop([entry.slot for entry in entries if entry.slot not in kept])
        self._foreign.update({each.entry.slot: each for each in report.foreign})
        return report

    def _look_at(self, holds: Iterable[Held]) -> None:
        listed = dict(self._listed)
        for held in holds:
            entry = listed.pop(held.slot, None) or self._entry(held)
            found = undo.read_entry(entry)
            if found == held.applied:
                listed[held.slot] = entry
                continue
            self._let_go(held)
            if held.until_ns is not None:
                continue
            if found is None or found == held.original:
                self._noticed.append(Lapsed(held))
            else:
                self._foreign[held.slot] = Foreign(entry, found)
                self._noticed.append(self._foreign[held.slot])
        self._save(listed)

    def _let_go(self, held: Held) -> None:
        """It is not held any more; a freeze is over, and the freezer need not end it."""
        del self._held[held.slot]
        if held.until_ns is None:
            return
        self._freezer.forget(held.file)
        began_ns = self._began_ns.pop(held.slot)
        told = self._told.pop(held.file, None)
        if told is None or told.began_ns != began_ns:
            frozen_ns = time.monotonic_ns() - began_ns
            self._thawed.append(Thawed(held, frozen_ns, complete=False, in_time=False))
        else:
            frozen_ns = told.thawed_ns - told.began_ns
            self._thawed.append(Thawed(held, frozen_ns, told.complete, in_time=True))

    def _entry(self, held: Held) -> Entry:
        return Entry(
            file=held.file,
            original=held.original,
            applied=(held.applied,),
            owner=self._owner,
            reason=held.reason,
            since_ns=held.since_ns,
            cgroup_id=held.cgroup_id,
            until_ns=held.until_ns,
        )

    def _ours(self, entry: Entry) -> tuple[str, ...]:
        """What the file may hold by our doing: all the list says, unless we know better."""
        held = self._held.get(entry.slot)
        return entry.applied if held is None else (held.applied,)

    def _drop(self, slots: Sequence[Slot]) -> None:
        for slot in slots:
            if slot in self._held:
                self._let_go(self._held[slot])
        self._save({slot: entry for slot, entry in self._listed.items() if slot not in slots})

    @contextmanager
    def _list(self) -> Iterator[Mapping[Slot, Entry]]:
        """The list, locked and as it is on disk; holds it lacks were undone meanwhile."""
        try:
            with undo_list.locked(self._path, LOCK_WAIT_MS) as alone:
                if not alone:
                    raise CgroupError(f"undo list '{self._path}' is locked by another process")
                if self._stamp != _stamp(self._path):
                    self._load()
                    self._look_at([held for held in self.held() if held.slot not in self._listed])
                yield self._listed
        except OSError as error:
            raise CgroupError(f"could not use undo list '{self._path}': {error}") from error

    def _load(self) -> None:
        entries, problems = undo_list.load(self._path, self._roots)
        if problems:
            raise CgroupError(problems[0])
        self._listed = {entry.slot: entry for entry in entries}
        self._stamp = _stamp(self._path)

    def _save(self, listed: Mapping[Slot, Entry]) -> None:
        if listed != self._listed:
            undo_list.save(self._path, list(listed.values()))
            self._listed = listed
            self._stamp = _stamp(self._path)


def _stamp(path: Path) -> _Stamp | None:
    """Changes whenever somebody else replaces or removes the list; None without one."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size
