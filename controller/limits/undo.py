"""Puts back what an undo list names, if those who set the limits are gone.

An entry is recorded before its file is written, so a process may be killed at any instant.
`python -m controller.limits.undo PATH` runs a list.

Whoever changes the list or a listed file holds the list's lock. A run that cannot get it, because
its holder is stopped, restores the files all the same and leaves the list for a later run.
"""

import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from controller.limits.cgroup import CgroupError, CgroupGoneError, read_mount_points
from controller.limits.change import KEYED, Change, shown
from controller.limits.cpu import apply
from controller.limits.undo_list import Entry, load, locked, save

UNDO_NAME: Final = "undo.json"
"""The undo list's file, in the agent's run directory."""

LOCK_WAIT_MS: Final = 200

THAW_GRACE_NS: Final = 10_000_000
"""How late a freeze may be before somebody other than the freezer ends it."""


@dataclass(frozen=True, slots=True)
class Foreign:
    """Somebody else wrote the file: it holds `found`, neither the original nor a value of ours."""

    entry: Entry
    found: str


@dataclass(frozen=True, slots=True)
class Kept:
    """An entry that could not be undone, and why."""

    entry: Entry
    why: str


@dataclass(frozen=True, slots=True)
class Report:
    """What undoing did, entry by entry.

    `restored` files were put back, `unchanged` ones held their original already, `foreign` ones
    are left as somebody else wrote them, `vanished` ones went with their cgroup, `kept` ones stay
    on the list. `problems` are messages about the list itself. `busy` means that the list was
    locked: files were restored, the list was left as it was.
    """

    restored: tuple[Entry, ...] = ()
    unchanged: tuple[Entry, ...] = ()
    foreign: tuple[Foreign, ...] = ()
    vanished: tuple[Entry, ...] = ()
    kept: tuple[Kept, ...] = ()
    problems: tuple[str, ...] = ()
    busy: bool = False

    @property
    def complete(self) -> bool:
        """Whether nothing is left for a later run."""
        return not self.kept and not self.busy


def restore(entries: Sequence[Entry]) -> Report:
    """Put the files of `entries` back, newest first; needs no list.

    Entries that fail are tried again as long as others succeed: cgroup v1 takes a child's quota
    only once its parent's is back.
    """
    done = Report()
    pending = list(reversed(entries))
    while True:
        failed: list[Kept] = []
        for entry in pending:
            try:
                done = _restore(entry, done)
            except CgroupError as error:
                failed.append(Kept(entry, str(error)))
        if not failed or len(failed) == len(pending):
            return replace(done, kept=tuple(failed))
        pending = [each.entry for each in failed]


def read_entry(entry: Entry) -> str | None:
    """What the entry's file holds; None if it is gone, or its cgroup is another now."""
    try:
        if entry.file.parent.stat().st_ino != entry.cgroup_id:
            return None
        text = shown(entry.file, entry.original)
        return None if not text and entry.file.name in KEYED else text
    except (FileNotFoundError, NotADirectoryError, CgroupGoneError):
        return None


def run_undo(
    path: Path, roots: Sequence[Path] | None = None, wait_ms: int = LOCK_WAIT_MS
) -> Report:
    """Undo everything on the list at `path` and remove it; entries that fail stay on it.

    `roots` are the directories below which files may be written: by default the machine's cgroup
    mounts. A list with mistakes in it is moved to PATH.corrupt after its valid entries were undone.
    Safe to run from several processes at once.
    """
    if not path.exists():
        return Report()
    with locked(path, wait_ms) as alone:
        entries, problems = load(path, read_mount_points() if roots is None else roots)
        report = replace(restore(entries), problems=problems, busy=not alone)
        if alone:
            if problems:
                path.replace(f"{path}.corrupt")
            kept = {each.entry for each in report.kept}
            save(path, [entry for entry in entries if entry in kept])
    return report


def thaw_overdue(path: Path, roots: Sequence[Path] | None = None) -> tuple[Report, int | None]:
    """End the freezes on the list at `path` that are overdue, and say when the next one will be.

    The list is read and left as it is, without its lock: whoever holds that may be stopped.
    """
    entries, _ = load(path, read_mount_points() if roots is None else roots)
    freezes = [(entry.until_ns + THAW_GRACE_NS, entry) for entry in entries if entry.until_ns]
    now_ns = time.monotonic_ns()
    report = restore([entry for due_ns, entry in freezes if due_ns <= now_ns])
    again = [now_ns + THAW_GRACE_NS for _ in report.kept]
    return report, min([due_ns for due_ns, _ in freezes if due_ns > now_ns] + again, default=None)


def describe(report: Report) -> Iterator[str]:
    """What a run did, a line for each thing somebody should know."""
    yield from report.problems
    for entry in report.restored:
        yield f"'{entry.file}' is back at {entry.original!r} (was {entry.reason})"
    for entry in report.vanished:
        yield f"'{entry.file}' went with its cgroup"
    for foreign in report.foreign:
        yield f"'{foreign.entry.file}' is left at {foreign.found!r}: somebody else wrote it"
    for kept in report.kept:
        yield f"could not undo, still listed: {kept.why}"
    if report.busy:
        yield "the list is locked by another process and left as it was"


def main(arguments: Sequence[str]) -> int:
    """Run the list named in `arguments`; 0 if nothing is left to do and the list was sound."""
    if len(arguments) != 1:
        print("usage: python -m controller.limits.undo PATH", file=sys.stderr)
        return 2
    try:
        report = run_undo(Path(arguments[0]))
    except OSError as error:
        print(f"could not run undo list '{arguments[0]}': {error}", file=sys.stderr)
        return 1
    for line in describe(report):
        print(line)
    return 0 if report.complete and not report.problems else 1


def _restore(entry: Entry, done: Report) -> Report:
    found = read_entry(entry)
    if found is None:
        return replace(done, vanished=(*done.vanished, entry))
    if found == entry.original:
        return replace(done, unchanged=(*done.unchanged, entry))
    if found not in entry.applied:
        return replace(done, foreign=(*done.foreign, Foreign(entry, found)))
    apply(Change(entry.file, entry.original))
    return replace(done, restored=(*done.restored, entry))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
