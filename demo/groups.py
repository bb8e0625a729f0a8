"""The demonstration's cgroups: one group with an engine's, its neighbours' and the agent's below.

For v2 alone, and for v1's cpu controller beside a v2 tree (then each group exists in both, and a
process enters both). All have the default weight, but the one above them: what else the machine
runs shall not blur what they do to each other.
"""

import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from controller.limits.cgroup import CgroupError, Hierarchies, Mount, cpu_group, write
from controller.limits.cpu import MAX_WEIGHT, write_weight

EMPTY_WITHIN_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class Groups:
    """Groups `names` below the group `top`; `restore` notes what has to be taken back above it."""

    hierarchies: Hierarchies
    top: str
    names: Sequence[str]
    restore: Path

    def path(self, name: str) -> str:
        """The path of a group, as policies and /proc/PID/cgroup have it."""
        return f"{_base(self.hierarchies)}/{self.top}/{name}"

    def make(self) -> None:
        """Make all of them; `CgroupError` if the machine does not let them limit CPU."""
        cpu_from_v2 = self.hierarchies.v1_cpu is None
        if cpu_from_v2 and self.hierarchies.v2 is not None:
            self._pass_cpu_down(self.hierarchies.v2.directory(_base(self.hierarchies) or "/"))
        for mount in _mounts(self.hierarchies):
            top = self._top(mount)
            _make(top)
            if cpu_from_v2:
                write(top / "cgroup.subtree_control", "+cpu")
            for name in self.names:
                _make(top / name)
        path = f"{_base(self.hierarchies)}/{self.top}"
        write_weight(cpu_group(self.hierarchies, path), MAX_WEIGHT)

    def procs(self, name: str) -> tuple[Path, ...]:
        """The files through which a process enters a group."""
        mounts = _mounts(self.hierarchies)
        return tuple(self._top(mount) / name / "cgroup.procs" for mount in mounts)

    def end_all(self, name: str) -> None:
        """Kill what still runs in a group."""
        for mount in _mounts(self.hierarchies):
            _empty(self._top(mount) / name)

    def remove(self) -> None:
        """Remove whatever is there, ours or an earlier run's, with the processes still in it."""
        for mount in _mounts(self.hierarchies):
            top = self._top(mount)
            if top.is_dir():
                _empty(top)
                _remove(top)
        if self.restore.exists():
            with suppress(CgroupError):  # the controller may be in use by others by now
                write(Path(self.restore.read_text()), "-cpu")
            self.restore.unlink()

    def _top(self, mount: Mount) -> Path:
        return mount.directory(f"{_base(self.hierarchies)}/{self.top}")

    def _pass_cpu_down(self, root: Path) -> None:
        control = root / "cgroup.subtree_control"
        if "cpu" not in control.read_text().split():
            self.restore.write_text(str(control))
            write(control, "+cpu")


def _mounts(hierarchies: Hierarchies) -> Iterator[Mount]:
    for mount in (hierarchies.v1_cpu, hierarchies.v2):
        if mount is not None:
            yield mount


def _base(hierarchies: Hierarchies) -> str:
    """The path that the mount shows; empty but in a container without a cgroup namespace."""
    return next(_mounts(hierarchies)).root.rstrip("/")


def _make(directory: Path) -> None:
    try:
        directory.mkdir(exist_ok=True)
    except OSError as error:
        raise CgroupError(f"could not make cgroup '{directory}': {error.strerror}") from None


def _empty(top: Path) -> None:
    """Kill what runs below `top` and wait until the kernel has let go of it."""
    until = time.monotonic() + EMPTY_WITHIN_S
    while pids := [pid for file in top.rglob("cgroup.procs") for pid in _pids(file)]:
        if time.monotonic() > until:
            raise CgroupError(f"could not empty cgroup '{top}': processes {pids} do not end")
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


def _pids(file: Path) -> list[int]:
    # 0 stands for a process of a PID namespace that ours does not show
    return [pid for pid in map(int, file.read_text().split()) if pid]


def _remove(top: Path) -> None:
    until = time.monotonic() + EMPTY_WITHIN_S
    for directory in (*sorted(each for each in top.iterdir() if each.is_dir()), top):
        while True:
            try:
                directory.rmdir()
                break
            except OSError as error:
                # a group stays busy for a moment after its last process
                if time.monotonic() > until:
                    raise CgroupError(
                        f"could not remove cgroup '{directory}': {error.strerror}"
                    ) from None
            time.sleep(0.02)
