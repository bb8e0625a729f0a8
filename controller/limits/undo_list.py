"""The undo list's file: its entries, its text and its lock.

A JSON array, one entry a line, replaced atomically. Put it where a restart of the machine empties
it (/run): cgroups do not survive that either, which is also why nothing here is synced to disk.
"""

import fcntl
import json
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from controller.limits.change import Slot, slot_of

T = TypeVar("T")

WRITABLE: Final = frozenset(
    {
        "cpu.weight",
        "cpu.shares",
        "cpu.max",
        "cpu.cfs_quota_us",
        "cgroup.freeze",
        "freezer.state",
        "memory.high",
        "dmem.max",
        "io.weight",
        "io.bfq.weight",
        "blkio.weight",
        "blkio.bfq.weight",
    }
)
"""The only file names an undo list can make anyone write, and only below a cgroup mount."""

_LOCK_POLL_S: Final = 0.001


@dataclass(frozen=True, slots=True)
class Entry:
    """One file, or one line of it, that was changed.

    `original` and `applied` are texts as in `Change`. `applied` are the texts we put there that
    it may hold now: the last one and, while a change is under way, the next. `cgroup_id` tells a
    group from a later one of the same name. `since_ns` is CLOCK_MONOTONIC, as is `until_ns`, by
    which a freeze has to be over.
    """

    file: Path
    original: str
    applied: tuple[str, ...]
    owner: str
    reason: str
    since_ns: int
    cgroup_id: int
    until_ns: int | None = None

    @property
    def slot(self) -> Slot:
        """Which value it is about."""
        return slot_of(self.file, self.original)


@dataclass(frozen=True, slots=True)
class Problem:
    """Something in a list that is not a valid entry, and the line it is on."""

    line: int
    message: str


def render(entries: Iterable[Entry]) -> str:
    """A list's text: a JSON array with one entry a line."""
    return "[\n" + ",\n".join(json.dumps(_as_dict(entry)) for entry in entries) + "\n]\n"


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


def _as_dict(entry: Entry) -> dict[str, object]:
    # dataclasses.asdict takes ten times as long, and the fast loop waits for this.
    return {
        "file": str(entry.file),
        "original": entry.original,
        "applied": entry.applied,
        "owner": entry.owner,
        "reason": entry.reason,
        "since_ns": entry.since_ns,
        "cgroup_id": entry.cgroup_id,
        "until_ns": entry.until_ns,
    }


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
        until_ns=None if fields.get("until_ns") is None else _field(fields, "until_ns", int),
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
