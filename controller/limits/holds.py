"""What is held: values of cgroup files, each on the undo list before its file is written.

Somebody else may write a file, or undo it: then it is not held any more, and `check` says which.
Who puts the original back once may have meant no more than to undo ours; a service manager that
writes what it is configured to, again and again, has the file for himself.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from controller.limits import undo, undo_list
from controller.limits.cgroup import CgroupError, Group
from controller.limits.change import Change, Slot, shown, slot_of
from controller.limits.cpu import apply, between
from controller.limits.undo import Foreign, Report
from controller.limits.undo_list import Entry

LOCK_WAIT_MS: Final = 50
"""An undo run holds the lock for less; a fast loop that waits this long loses a few ticks."""

MOST_TAKEN_BACK: Final = 3
"""So often the original may be put back past the undo list: then it is somebody else's value."""

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
class Lapsed:
    """A limit that was held and is no more: undone from outside, or gone with its cgroup."""

    held: Held


class Holds:
    """The values that are held, and the undo list that says so on disk."""

    def __init__(self, path: Path, roots: Sequence[Path], owner: str) -> None:
        """Use the undo list at `path`; `roots` and `owner` as for `Limiter`."""
        self._path = path
        self._roots = tuple(roots)
        self._owner = owner
        self._held: dict[Slot, Held] = {}
        self._foreign: dict[Slot, Foreign] = {}
        self._taken_back: dict[Slot, int] = {}
        self._noticed: list[Foreign | Lapsed] = []
        self._over: list[tuple[Held, int]] = []
        self._listed: Mapping[Slot, Entry] = {}
        self._stamp: _Stamp | None = None

    def all(self) -> tuple[Held, ...]:
        """What is held as far as is known, oldest first."""
        return tuple(self._held.values())

    def get(self, slot: Slot) -> Held | None:
        """What is held of one value."""
        return self._held.get(slot)

    def check(self) -> tuple[Foreign | Lapsed, ...]:
        """Look at every held file; what was noticed since the last call."""
        if self._held:
            with self.listed():
                self._look_at(self.all())
        noticed = tuple(self._noticed)
        self._noticed.clear()
        return noticed

    def take_over(self) -> list[tuple[Held, int]]:
        """The freezes that are not held any more, and when that was found, since the last call."""
        over, self._over = self._over, []
        return over

    def forgive(self) -> None:
        """Forget what others wrote: those files may be written again."""
        self._foreign.clear()
        self._taken_back.clear()

    def restore(self, helds: Iterable[Held]) -> None:
        """Put values back without the list, whose lock somebody stopped may hold."""
        undo.restore([self._entry(held) for held in helds])

    def set(
        self,
        group: Group,
        change: Change,
        reason: str,
        *,
        place: Group | None = None,
        until_ns: int | None = None,
        write: Callable[[Change], None] | None = None,
    ) -> Held | Foreign:
        """Set a file of `place`, the group itself by default, by `write`, which is `apply`.

        Raises `CgroupError` if it cannot be done; then the file is as it was.
        """
        slot = change.slot
        if slot in self._foreign:
            return self._foreign[slot]
        now_ns = time.monotonic_ns()
        cgroup_id = group.cgroup_id if place is None else place.cgroup_id
        with self.listed() as listed:
            found = shown(change.file, change.text)
            entry = listed.get(slot)
            if entry is None or entry.cgroup_id != cgroup_id:
                entry = Entry(change.file, found, (), self._owner, reason, now_ns, cgroup_id)
                if until_ns is not None and found == change.text:
                    raise CgroupError(f"'{change.file}': somebody else has frozen the group")
            elif found not in (entry.original, *self._ours(entry)) or self._is_taken(entry, found):
                self._drop([slot])
                self._foreign[slot] = Foreign(entry, found)
                return self._foreign[slot]
            elif (held := self._held.get(slot)) and held.applied == found == change.text:
                return held
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
        texts = (*last, *between(found, change), change.text)
        self._save({**before, entry.slot: replace(entry, applied=texts)})
        try:
            write(change)
        except CgroupError:
            with suppress(CgroupError):
                if shown(change.file, change.text) != found:
                    apply(Change(change.file, found))
                self._save(before)
            raise

    def release(self, slots: Iterable[Slot]) -> Report:
        """Put listed values back, with the list held; what could not be put back stays held."""
        entries = [self._listed[slot] for slot in slots if slot in self._listed]
        report = undo.restore([replace(entry, applied=self._ours(entry)) for entry in entries])
        kept = {each.entry.slot for each in report.kept}
        self._drop([entry.slot for entry in entries if entry.slot not in kept])
        self._foreign.update({each.entry.slot: each for each in report.foreign})
        return report

    def _look_at(self, holds: Iterable[Held]) -> None:
        listed = dict(self._listed)
        for held in holds:
            known = listed.pop(held.slot, None)
            entry = known or self._entry(held)
            found = undo.read_entry(entry)
            if found == held.applied:
                listed[held.slot] = entry
                continue
            taken = known is not None and self._is_taken(known, found)
            self._let_go(held)
            if held.until_ns is not None:
                continue
            if found is None or (found == held.original and not taken):
                self._noticed.append(Lapsed(held))
            else:
                self._foreign[held.slot] = Foreign(entry, found)
                self._noticed.append(self._foreign[held.slot])
        self._save(listed)

    def _is_taken(self, entry: Entry, found: str | None) -> bool:
        """Whether a file we hold was put back too often; whoever undoes by the list strikes it off.

        To be asked once each time the file is found so.
        """
        held = self._held.get(entry.slot)
        if held is None or held.until_ns is not None:
            return False
        if found != held.original or found == held.applied:
            return False
        self._taken_back[entry.slot] = self._taken_back.get(entry.slot, 0) + 1
        return self._taken_back[entry.slot] >= MOST_TAKEN_BACK

    def _let_go(self, held: Held) -> None:
        """It is not held any more."""
        del self._held[held.slot]
        if held.until_ns is not None:
            self._over.append((held, time.monotonic_ns()))

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
    def listed(self) -> Iterator[Mapping[Slot, Entry]]:
        """The list, locked and as it is on disk; holds it lacks were undone meanwhile."""
        try:
            with undo_list.locked(self._path, LOCK_WAIT_MS) as alone:
                if not alone:
                    raise CgroupError(f"undo list '{self._path}' is locked by another process")
                if self._stamp != _stamp(self._path):
                    self._load()
                    self._look_at([held for held in self.all() if held.slot not in self._listed])
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
