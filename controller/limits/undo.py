"""The undo list: what to put back if those who set a limit are gone.

A JSON array in a file, one entry a line, replaced atomically. An entry is recorded before its file
is written, so a process may be killed at any instant. `python -m controller.limits.undo PATH` runs
a list. Put the list where a restart of the machine empties it (/run): cgroups do not survive that
either, which is also why nothing here is synced to disk.

Whoever changes the list or a listed file holds a lock on PATH.lock. A run that cannot get it,
because its holder is stopped, restores the files all the same and leaves the list for a later run.
"""

import fcntl
import json
import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final, TypeVar

from controller.limits.cgroup import CgroupError, CgroupGoneError, read, read_mount_points
from controller.limits.cpu import Change, apply

T = TypeVar("T")

WRITABLE: Final = frozenset(
    {"cpu.weight", "cpu.shares", "cpu.max", "cpu.cfs_quota_us", "cgroup.freeze"}
)
"""The only file names an undo list can make anyone write, and only below a cgroup mount."""

LOCK_WAIT_MS: Final = 200
_LOCK_POLL_S: Final = 0.001


@dataclass(frozen=True, slots=True)
class Entry:
    """One file that was changed.

    `applied` are the texts we put there that it may hold now: the last one and, while a change is
    under way, the next. `cgroup_id` tells a group from a later one of the same name. `since_ns` is
    CLOCK_MONOTONIC.
    """

    file: Path
    original: str
    applied: tuple[str, ...]
    owner: str
    reason: str
    since_ns: int
    cgroup_id: int


@dataclass(frozen=True, slots=True)
class Problem:
    """Something in a list that is not a valid entry, and the line it is on."""

    line: int
    message: str


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


def render(entries: Iterable[Entry]) -> str:
    """A list's text: a JSON array with one entry a line."""
    lines = (json.dumps(asdict(entry) | {"file": str(entry.file)}) for entry in entries)
    return "[\n" + ",\n".join(lines) + "\n]\n"


def parse(text: str, roots: Sequence[Path]) -> tuple[tuple[Entry, ...], tuple[Problem, ...]]:
    """The valid entries of a list's text, and what is wrong with the rest. Never raises.

    An entry is valid if its file has a name in `WRITABLE` and is below one of `roots`.
    """
    decoder = json.JSONDecoder()
    entries: list[Entry] = []
    problems: list[Problem] = []
    at = text.find("{")
    while at >= 0:
        line = text.count("\n", 0, at) + 1
        try:
            fields, end = decoder.raw_decode(text, at)
        except (ValueError, RecursionError) as error:
            problems.append(Problem(line, f"not an entry: {error}"))
            end = text.find("\n", at) % (len(text) + 1)
        else:
            try:
                entries.append(_entry(fields, roots))
            except (ValueError, OSError, RuntimeError) as error:
                problems.append(Problem(line, str(error)))
        at = text.find("{", end)
    if not problems:
        problems.extend(_whole(text))
    return tuple(entries), tuple(problems)


def load(path: Path, roots: Sequence[Path]) -> tuple[tuple[Entry, ...], tuple[str, ...]]:
    """The valid entries of the list at `path`, none if there is no list, and what is wrong."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return (), ()
    entries, problems = parse(text, roots)
    return entries, tuple(
        f"could not read undo list '{path}', line {problem.line}: {problem.message}"
        for problem in problems
    )


def save(path: Path, entries: Sequence[Entry]) -> None:
    """Replace the list at `path` atomically; without entries there is no file. Needs the lock."""
    fresh = path.with_name(f"{path.name}.new")
    if not entries:
        path.unlink(missing_ok=True)
        fresh.unlink(missing_ok=True)
        return
    fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(fd, "w") as file:
        file.write(render(entries))
    fresh.replace(path)


@contextmanager
def locked(path: Path, wait_ms: int) -> Iterator[bool]:
    """Hold the lock of the list at `path`; yields False if it was not to be had in `wait_ms`.

    The lock goes with its holder, however that ends. Its file stays: removing it would let two
    processes hold the lock at once.
    """
    fd = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        yield _lock(fd, time.monotonic_ns() + wait_ms * 1_000_000)
    finally:
        os.close(fd)


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
    """What the entry's file holds; None if its cgroup is gone, or another has taken its name."""
    try:
        if entry.file.parent.stat().st_ino != entry.cgroup_id:
            return None
        return read(entry.file)
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


def _lock(fd: int, deadline_ns: int) -> bool:
    while True:
        with suppress(BlockingIOError):
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        if time.monotonic_ns() >= deadline_ns:
            return False
        time.sleep(_LOCK_POLL_S)


def _entry(fields: dict[str, object], roots: Sequence[Path]) -> Entry:
    applied = _field(fields, "applied", list)
    if not all(isinstance(text, str) for text in applied):
        raise ValueError(f"applied must be texts, not {applied!r}")
    return Entry(
        file=_writable(Path(_field(fields, "file", str)), roots),
        original=_field(fields, "original", str),
        applied=tuple(applied),
        owner=_field(fields, "owner", str),
        reason=_field(fields, "reason", str),
        since_ns=_field(fields, "since_ns", int),
        cgroup_id=_field(fields, "cgroup_id", int),
    )


def _field(fields: dict[str, object], name: str, kind: type[T]) -> T:
    value = fields.get(name)
    if not isinstance(value, kind) or isinstance(value, bool):
        raise ValueError(f"{name} must be {kind.__name__}, not {value!r}")
    return value


def _writable(file: Path, roots: Sequence[Path]) -> Path:
    if file.name not in WRITABLE:
        raise ValueError(f"'{file}' is none of the files that may be written")
    parent = file.parent.resolve()
    tops = [root.resolve() for root in roots]
    if not file.is_absolute() or not any(top in parent.parents for top in tops):
        raise ValueError(f"'{file}' is not in a cgroup below a cgroup mount")
    return parent / file.name


def _whole(text: str) -> Iterator[Problem]:
    """What is wrong with a text whose entries are all right."""
    try:
        if not isinstance(json.loads(text), list):
            yield Problem(1, "not a JSON array")
    except json.JSONDecodeError as error:
        yield Problem(error.lineno, f"not a JSON array: {error.msg}")
    except RecursionError:
        yield Problem(1, "not a JSON array: nested too deep")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
