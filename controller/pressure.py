"""What the kernel says of an engine's cgroups: the CPU time they used, and what memory cost them.

CPU time and pressure stall information (PSI) come from the v2 tree, which has them without any
controller; limits hit come from wherever the memory controller is. Files are kept open (3 to 4 µs a
reading here, against 20 to 30 with an open).
"""

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from controller.limits.cgroup import (
    MOUNTINFO,
    CgroupError,
    Group,
    Mount,
    cgroup_mounts,
    membership_in,
)
from controller.limits.kept_open import KeptOpen

_V2_FILES: Final = ("cpu.stat", "cpu.pressure", "memory.pressure")
_MEMORY_FILES: Final = ("memory.stat", "memory.events", "memory.failcnt", "memory.oom_control")
"""Of both versions: what is not there is not read."""


@dataclass(frozen=True, slots=True)
class Pressure:
    """Totals since the cgroups were made, in ns and events; 0 where the kernel does not say.

    `memory_ns`: some task stood still for want of memory. `starved_ns`: some task was runnable and
    had no CPU. `limit_hits`: allocations that found the group's memory limit in their way.
    `out_of_memory` is of now: tasks wait until memory is freed (v1 without its OOM killer).
    """

    memory_ns: int = 0
    starved_ns: int = 0
    limit_hits: int = 0
    major_faults: int = 0
    out_of_memory: bool = False


@dataclass(frozen=True, slots=True)
class Places:
    """The directories that tell of a process: None where there is none of its own."""

    v2: Path | None
    memory: Path | None


def parse_psi(text: str) -> tuple[int, int]:
    """The totals of `some` and `full` in ns; 0 for a line that is not there.

    The format is that of Documentation/accounting/psi.rst, whose totals are in µs.
    """
    totals = {"some": 0, "full": 0}
    for line in text.splitlines():
        kind, _, rest = line.partition(" ")
        _, _, total = rest.partition("total=")
        if kind in totals and total.isdecimal():
            totals[kind] = int(total) * 1_000
    return totals["some"], totals["full"]


def parse_figures(text: str) -> dict[str, int]:
    """A flat keyed file such as memory.stat, memory.events or cpu.stat."""
    pairs = (line.split(" ", 1) for line in text.splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdecimal()}


def places_of(mountinfo: str, membership: str) -> Places:
    """Where a process's v2 group and memory group are, from /proc/PID/mountinfo and cgroup.

    The root group is everybody's, so it counts as none.
    """
    v2_path, memory_path = membership_in(membership, ""), membership_in(membership, "memory")
    v2 = memory = None
    for kind, mount, controllers in cgroup_mounts(mountinfo):
        if kind == "cgroup2":
            v2 = v2 or _directory(mount, v2_path)
        elif "memory" in controllers:
            memory = memory or _directory(mount, memory_path)
    return Places(v2, memory if memory is not None or memory_path is not None else v2)


class PressureReader:
    """Reads them for the processes of one group. Nothing here raises: what can't be read is 0."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self._paths: dict[str, Path] = {}
        self._files = KeptOpen()
        self._version = 0

    def used_ns(self) -> int | None:
        """CPU time used, exact to a timer tick even while a thread runs on; None if not known."""
        text = self._text("cpu.stat")
        figures = parse_figures(text)
        return figures["usage_usec"] * 1_000 if "usage_usec" in figures else None

    def read(self) -> Pressure:
        """All the rest."""
        if not self._paths:
            self._find()
        stat = parse_figures(self._text("memory.stat"))
        if self._version == 1:
            hits = self._text("memory.failcnt").strip()
            waits = parse_figures(self._text("memory.oom_control"))
            return Pressure(
                memory_ns=self._some_ns("memory.pressure"),
                starved_ns=self._some_ns("cpu.pressure"),
                limit_hits=int(hits) if hits.isdecimal() else 0,
                major_faults=stat.get("total_pgmajfault", 0),
                out_of_memory=bool(waits.get("under_oom")),
            )
        events = parse_figures(self._text("memory.events"))
        return Pressure(
            memory_ns=self._some_ns("memory.pressure"),
            starved_ns=self._some_ns("cpu.pressure"),
            limit_hits=events.get("high", 0) + events.get("max", 0),
            major_faults=stat.get("pgmajfault", 0),
        )

    def close(self) -> None:
        """Close what is open."""
        self._files.close()
        self._paths.clear()

    def _find(self) -> None:
        try:
            (pid, *_) = (self._group.directory / "cgroup.procs").read_text().split()
            membership = Path("/proc", pid, "cgroup").read_text()
            places = places_of(MOUNTINFO.read_text(), membership)
        except (OSError, ValueError):
            return  # nothing runs in the group yet
        self._version = 2 if places.memory == places.v2 else 1
        for directory, names in ((places.v2, _V2_FILES), (places.memory, _MEMORY_FILES)):
            if directory is not None:
                self._paths |= {name: directory / name for name in names}

    def _text(self, name: str) -> str:
        path = self._paths.get(name)
        return self._files.text(path) if path is not None else ""

    def _some_ns(self, name: str) -> int:
        return parse_psi(self._text(name))[0]


def _directory(mount: Mount, path: str | None) -> Path | None:
    if path is None or path == "/":
        return None
    with suppress(CgroupError):
        return mount.directory(path)
    return None
