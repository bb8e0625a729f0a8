"""Whose a process on a GPU is: NVML knows process ids, and discovery knows whose these are."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from agent.discovery import Surroundings
from agent.gpu import Owner
from controller.limits.cgroup import parse_membership
from controller.plain import plain

ENGINE: Final = "engine"
NEIGHBOUR: Final = "neighbour"


class Owners:
    """Asked for processes; told of what discovery finds."""

    def __init__(self) -> None:
        self._targets: Mapping[int, tuple[str, str]] = {}
        self._groups: tuple[tuple[str, str, str], ...] = ()

    def set_surroundings(self, surroundings: Surroundings) -> None:
        """These are the targets now."""
        both = ((ENGINE, surroundings.engines), (NEIGHBOUR, surroundings.neighbours))
        pairs = [(kind, found) for kind, many in both for found in many]
        self._targets = {pid: (found.name, kind) for kind, found in pairs for pid in found.pids}
        self._groups = tuple(
            (found.cgroup, found.name, kind) for kind, found in pairs if found.cgroup is not None
        )

    def owner(self, pid: int) -> Owner:
        """Whose `pid` is. One that discovery has not seen yet goes by its cgroup."""
        command, paths = _look_up(pid)
        target = self._targets.get(pid)
        if target is None:
            target = next(
                ((name, kind) for group, name, kind in self._groups if _below(group, paths)), None
            )
        name, kind = target if target is not None else (None, "")
        return Owner(name, kind, command, max(paths, key=len, default=""))


def _below(group: str, paths: tuple[str, ...]) -> bool:
    return any(path == group or path.startswith(f"{group}/") for path in paths)


def _look_up(pid: int) -> tuple[str, tuple[str, ...]]:
    """Its command name and its cgroup paths; nothing of one that is gone, or not in our /proc."""
    try:
        command = plain(Path(f"/proc/{pid}/comm").read_text(errors="replace").strip())
        member = parse_membership(Path(f"/proc/{pid}/cgroup").read_text())
    except OSError:
        return "", ()
    return command, tuple(path for path in (member.v1_cpu, member.v2) if path is not None)
