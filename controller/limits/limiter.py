"""Sets CPU limits on cgroups so that each is undone, by itself or by the guard.

One `Limiter` owns one undo list. A file's first original is kept however often it is changed.

Two things can happen to a limit from outside. Somebody else writes the file: the limiter yields,
that is, it forgets the file and leaves it alone until `reset`. Or the guard, or the supervisor,
undoes it, because this process was stopped for longer than the guard's timeout: the limit is then
no longer held, and the next `set_…` applies it afresh. `check` finds both.
"""

import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from controller.limits import undo, undo_list
from controller.limits.cgroup import CgroupError, Group, read, read_mount_points
from controller.limits.cpu import Change, apply, quota_change, weight_change
from controller.limits.undo import Foreign, Report
from controller.limits.undo_list import Entry

BEAT_EVERY_NS: Final = 100_000_000
LOCK_WAIT_MS: Final = 50
"""An undo run holds the lock for less; a fast loop that waits this long loses a few ticks."""

_Stamp = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Held:
    """A limit in force: `file` of `group` holds `applied`; before us it held `original`.

    Both are the file's text. `since_ns` (CLOCK_MONOTONIC) is when the file was first changed.
    """

    group: Group
    file: Path
    original: str
    applied: str
    reason: str
    since_ns: int


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
    ) -> None:
        """Use the undo list at `undo_path`, whose directory exists.

        `heartbeat_fd` is the write end of the guard's pipe; it becomes non-blocking and stays the
        caller's to close. `roots` is as in `run_undo`, `owner` goes into the list's entries.
        """
        self._path = undo_path
        self._beat_fd = heartbeat_fd
        self._roots = read_mount_points() if roots is None else tuple(roots)
        self._owner = owner
        self._last_beat_ns = 0
        self._held: dict[Path, Held] = {}
        self._foreign: dict[Path, Foreign] = {}
        self._noticed: list[Foreign | Lapsed] = []
        self._listed: Mapping[Path, Entry] = {}
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

    def release(self, group: Group) -> Report:
        """Put the group's files back; what could not be put back stays held and is in the report.

        Raises `CgroupError` only if the undo list cannot be used.
        """
        with self._list() as listed:
            return self._release(file for file in listed if file.parent == group.directory)

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
            os.write(self._beat_fd, b"b")
        except BlockingIOError:
            return True
        except BrokenPipeError:
            return False
        return True

    def _set(self, group: Group, change: Change, reason: str) -> Held | Foreign:
        file = change.file
        if file in self._foreign:
            return self._foreign[file]
        now_ns = time.monotonic_ns()
        self.heartbeat(now_ns)
        with self._list() as listed:
            found = read(file)
            entry = listed.get(file)
            if entry is None or entry.cgroup_id != group.cgroup_id:
                entry = Entry(file, found, (), self._owner, reason, now_ns, group.cgroup_id)
            elif found not in (entry.original, *self._ours(entry)):
                self._drop([file])
                self._foreign[file] = Foreign(entry, found)
                return self._foreign[file]
            elif file in self._held and found == change.text:
                return self._held[file]
            self._record_and_apply(replace(entry, reason=reason), found, change)
        held = Held(group, file, entry.original, change.text, reason, entry.since_ns)
        self._held[file] = held
        return held

    def _record_and_apply(self, entry: Entry, found: str, change: Change) -> None:
        """The list first: it tells both the text that is there now, if ours, and the next."""
        before = self._listed
        last = () if found == entry.original else (found,)
        self._save({**before, entry.file: replace(entry, applied=(*last, change.text))})
        try:
            apply(change)
        except CgroupError:
            with suppress(CgroupError):
                if read(change.file) != found:
                    apply(Change(change.file, found))
                self._save(before)
            raise

    def _release(self, files: Iterable[Path]) -> Report:
        entries = [self._listed[file] for file in files]
        report = undo.restore([replace(entry, applied=self._ours(entry)) for entry in entries])
        kept = {each.entry.file for each in report.kept}
        self._drop([entry.file for entry in entries if entry.file not in kept])
        self._foreign.update({each.entry.file: each for each in report.foreign})
        return report

    def _look_at(self, holds: Iterable[Held]) -> None:
        listed = dict(self._listed)
        for held in holds:
            entry = listed.pop(held.file, None) or self._entry(held)
            found = undo.read_entry(entry)
            if found == held.applied:
                listed[held.file] = entry
                continue
            del self._held[held.file]
            if found is None or found == held.original:
                self._noticed.append(Lapsed(held))
            else:
                self._foreign[held.file] = Foreign(entry, found)
                self._noticed.append(self._foreign[held.file])
        self._save(listed)

    def _entry(self, held: Held) -> Entry:
        return Entry(
            file=held.file,
            original=held.original,
            applied=(held.applied,),
            owner=self._owner,
            reason=held.reason,
            since_ns=held.since_ns,
            cgroup_id=held.group.cgroup_id,
        )

    def _ours(self, entry: Entry) -> tuple[str, ...]:
        """What the file may hold by our doing: all the list says, unless we know better."""
        held = self._held.get(entry.file)
        return entry.applied if held is None else (held.applied,)

    def _drop(self, files: Sequence[Path]) -> None:
        for file in files:
            self._held.pop(file, None)
        self._save({file: entry for file, entry in self._listed.items() if file not in files})

    @contextmanager
    def _list(self) -> Iterator[Mapping[Path, Entry]]:
        """The list, locked and as it is on disk; holds it lacks were undone meanwhile."""
        try:
            with undo_list.locked(self._path, LOCK_WAIT_MS) as alone:
                if not alone:
                    raise CgroupError(f"undo list '{self._path}' is locked by another process")
                if self._stamp != _stamp(self._path):
                    self._load()
                    self._look_at([held for held in self.held() if held.file not in self._listed])
                yield self._listed
        except OSError as error:
            raise CgroupError(f"could not use undo list '{self._path}': {error}") from error

    def _load(self) -> None:
        entries, problems = undo_list.load(self._path, self._roots)
        if problems:
            raise CgroupError(problems[0])
        self._listed = {entry.file: entry for entry in entries}
        self._stamp = _stamp(self._path)

    def _save(self, listed: Mapping[Path, Entry]) -> None:
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
