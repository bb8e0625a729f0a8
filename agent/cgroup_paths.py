"""The paths of cgroups that the kernel told by id."""

from pathlib import Path
from typing import Final

from controller.limits.cgroup import Hierarchies

_KNOWN: Final = 4_096


class CgroupPaths:
    """Finds paths, and remembers them: a walk over all cgroups is not for every question."""

    def __init__(self, hierarchies: Hierarchies) -> None:
        mount = hierarchies.v1_cpu or hierarchies.v2
        self._root: Path | None = mount.point if mount is not None else None
        self._known: dict[int, Path] = {}

    def path(self, cgroup_id: int) -> str:
        """The path below the mount, `gone (id N)` without one, the id where nothing is mounted.

        Safe from any thread: two that ask at once look twice.
        """
        if self._root is None:
            return str(cgroup_id)
        known = self._known.get(cgroup_id)
        if known is None or not _is(known, cgroup_id):
            known = self._look(self._root, cgroup_id)
        return f"gone (id {cgroup_id})" if known is None else _shown(known, self._root)

    def _look(self, root: Path, cgroup_id: int) -> Path | None:
        if len(self._known) > _KNOWN:
            self._known = {}
        try:
            if _is(root, cgroup_id):
                return root
            for directory in root.rglob("*/"):
                if _is(directory, cgroup_id):
                    self._known[cgroup_id] = directory
                    return directory
        except OSError:
            pass
        return None


def _is(directory: Path, cgroup_id: int) -> bool:
    try:
        return directory.stat().st_ino == cgroup_id
    except OSError:
        return False


def _shown(directory: Path, root: Path) -> str:
    return "/" if directory == root else f"/{directory.relative_to(root)}"
