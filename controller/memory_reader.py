"""Reads how much memory an engine's cgroups and the machine have left, cgroup v2 and v1.

What counts as used is what reclaim can't give back: the kernel frees
clean file pages before it kills, so they are not used up.
"""

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from controller.limits.cgroup import MOUNTINFO, CgroupError, Group, cgroup_mounts, membership_in
from controller.limits.kept_open import KeptOpen
from controller.pressure import parse_figures, parse_psi, places_of

MEMINFO: Final = Path("/proc/meminfo")
NO_LIMIT: Final = 1 << 60
"""A v1 limit above this is the kernel's word for none (PAGE_COUNTER_MAX, 2^63 less a page)."""

LOOK_CLOSER: Final = 0.5
"""Below this share of its limit a group's memory.stat is not read: it makes the kernel add up the
counts of all groups below it."""

LIMITS_EVERY: Final = 4
"""Looks, until what the limits are is read again."""

_RECLAIMABLE: Final = {
    1: ("total_inactive_file", "total_active_file"),
    2: ("inactive_file", "active_file", "slab_reclaimable"),
}
_USED: Final = {1: "memory.usage_in_bytes", 2: "memory.current"}
_LIMITS: Final = {1: ("memory.limit_in_bytes",), 2: ("memory.max", "memory.high")}


@dataclass(frozen=True, slots=True)
class Level:
    """A cgroup with a limit: `used` bytes of `limit`; "" is the machine."""

    path: str
    limit: int
    used: int


@dataclass(frozen=True, slots=True)
class Reading:
    """One look. `used` is the engine's own, None where it has no group of its own.

    Events and times only grow: `low` and `high` of memory.events (v1: failcnt for `high`),
    `some_ns` and `full_ns` of its pressure. 0 where the kernel does not say.
    """

    levels: tuple[Level, ...] = ()
    used: int | None = None
    low: int = 0
    high: int = 0
    some_ns: int = 0
    full_ns: int = 0


def parse_meminfo(text: str) -> tuple[int, int] | None:
    """Total and available bytes of the machine; None if the text does not say."""
    found = {}
    for line in text.splitlines():
        name, _, rest = line.partition(":")
        value = rest.removesuffix(" kB").strip()
        if name in {"MemTotal", "MemAvailable"} and value.isdecimal():
            found[name] = int(value) << 10
            if len(found) == 2:
                break
    if len(found) < 2 or not found["MemTotal"]:
        return None
    return found["MemTotal"], found["MemAvailable"]


def parse_limit(text: str) -> int | None:
    """A limit in bytes, None for none; what is no number is none."""
    text = text.strip()
    return int(text) if text.isdecimal() and int(text) < NO_LIMIT else None


@dataclass(frozen=True, slots=True)
class Directory:
    """A cgroup of the memory controller: its path, where it is, and of which version it is."""

    path: str
    directory: Path
    version: int


def memory_groups(mountinfo: str, membership: str) -> tuple[Directory, ...]:
    """A process's cgroup with the memory controller and all above it but the root, own first.

    From the texts of /proc/PID/mountinfo and /proc/PID/cgroup; nothing without one.
    """
    mounts = list(cgroup_mounts(mountinfo))
    v1 = [m for kind, m, names in mounts if kind == "cgroup" and "memory" in names]
    v2 = [m for kind, m, _ in mounts if kind == "cgroup2"]
    name, version, found = ("memory", 1, v1) if v1 else ("", 2, v2)
    path = membership_in(membership, name)
    if not found or path is None:
        return ()
    mount = min(found, key=lambda each: len(each.root))
    parts = [part for part in path.split("/") if part]
    groups = []
    for depth in range(len(parts), 0, -1):
        above = "/" + "/".join(parts[:depth])
        with suppress(CgroupError):
            groups.append(Directory(above, mount.directory(above), version))
    return tuple(groups)


def memory_used(directory: Path) -> int | None:
    """The bytes that a v2 cgroup has; None where that can't be read."""
    try:
        return int((directory / _USED[2]).read_text())
    except (OSError, ValueError):
        return None


class MemoryReader:
    """Reads them for the processes of one group. Nothing raises: what can't be read is none."""

    def __init__(self, group: Group | None, meminfo: Path = MEMINFO) -> None:
        """Without a `group` only the machine is looked at."""
        self._group = group
        self._meminfo = meminfo
        self._groups: tuple[Directory, ...] = ()
        self._pressure: Path | None = None
        self._files = KeptOpen()
        self._limits: dict[Path, int | None] = {}
        self._looks = 0

    @property
    def reads(self) -> int:
        """System calls for files read since the start."""
        return self._files.reads

    def read(self) -> Reading:
        """One look."""
        if not self._groups:
            self._find()
        if self._looks % LIMITS_EVERY == 0:
            self._limits.clear()
        self._looks += 1
        levels = [level for each in self._groups if (level := self._level(each)) is not None]
        machine = parse_meminfo(self._files.text(self._meminfo))
        if machine is not None:
            total, available = machine
            levels.append(Level("", total, total - available))
        if not self._groups:
            return Reading(tuple(levels))
        own = self._groups[0]
        pressure = self._files.text(self._pressure) if self._pressure is not None else ""
        some_ns, full_ns = parse_psi(pressure)
        used, low, high = self._used(own, 0), 0, 0
        if own.version == 1:
            high = _whole(self._files.text(own.directory / "memory.failcnt")) or 0
        else:
            events = parse_figures(self._files.text(own.directory / "memory.events"))
            low = events.get("low", 0)
            high = events.get("high", 0) + events.get("max", 0)
        return Reading(tuple(levels), used, low, high, some_ns, full_ns)

    def close(self) -> None:
        """Close what is open."""
        self._files.close()
        self._groups = ()

    def _find(self) -> None:
        if self._group is None:
            return
        with suppress(OSError, ValueError):
            (pid, *_) = (self._group.directory / "cgroup.procs").read_text().split()
            membership = Path("/proc", pid, "cgroup").read_text()
            mountinfo = MOUNTINFO.read_text()
            self._groups = memory_groups(mountinfo, membership)
            v2 = places_of(mountinfo, membership).v2
            self._pressure = v2 / "memory.pressure" if v2 is not None else None

    def _level(self, each: Directory) -> Level | None:
        if each.directory not in self._limits:
            texts = [self._files.text(each.directory / name) for name in _LIMITS[each.version]]
            limits = [limit for text in texts if (limit := parse_limit(text)) is not None]
            self._limits[each.directory] = min(limits, default=None)
        limit = self._limits[each.directory]
        if limit is None:
            return None
        used = self._used(each, limit)
        return Level(each.path, limit, used) if used is not None else None

    def _used(self, each: Directory, limit: int) -> int | None:
        """What reclaim can't give back, if it is near the limit; else all."""
        used = _whole(self._files.text(each.directory / _USED[each.version]))
        if used is None or used < LOOK_CLOSER * limit:
            return used
        stat = parse_figures(self._files.text(each.directory / "memory.stat"))
        return max(0, used - sum(stat.get(name, 0) for name in _RECLAIMABLE[each.version]))


def _whole(text: str) -> int | None:
    text = text.strip()
    return int(text) if text.isdecimal() else None
