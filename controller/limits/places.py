"""Where a group's memory, disk and freezer are, given the group that controls its CPU.

Under cgroup v2 it is the same directory. Under v1 each controller has a hierarchy of its own, with
groups of the same path by the custom of systemd, Docker and Kubernetes. Custom is no promise, so
the processes are compared: a group with others in it is not taken.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from controller.limits.cgroup import (
    CgroupError,
    CgroupGoneError,
    Group,
    Hierarchies,
    Mount,
    Version,
    membership_in,
)

Controller = Literal["memory", "io", "freezer"]


def place_of(hierarchies: Hierarchies, group: Group, controller: Controller) -> Group:
    """The group of the same processes that has this controller's files.

    The freezer is v2's wherever v2 is mounted and has the group: what v2 freezes can still be
    killed. Raises `CgroupError` if there is no such group, or if others are in it too.
    """
    if group.version == 2:
        return group
    failed = CgroupError(f"no cgroup hierarchy with the {controller} controller is mounted")
    for mount, version in _mounts(hierarchies, controller):
        try:
            return _same(group, mount, version)
        except CgroupError as error:
            failed = error
    raise failed


def refuse_to_stop_ourselves(place: Group) -> None:
    """Raise `CgroupError` if this process or PID 1 is in or below `place`, a freezer's group."""
    name = "" if place.version == 2 else "freezer"
    for pid, who in (("self", "the agent"), ("1", "PID 1")):
        try:
            text = os.fsdecode(Path("/proc", pid, "cgroup").read_bytes())
        except OSError as error:
            raise CgroupError(f"could not find the cgroup of {who}: {error.strerror}") from None
        path = membership_in(text, name)
        if path is not None and f"{path}/".startswith(f"{place.path.rstrip('/')}/"):
            raise CgroupError(f"{who} is in cgroup {place.path!r}: it is not frozen")


def _mounts(hierarchies: Hierarchies, controller: Controller) -> Iterator[tuple[Mount, Version]]:
    v1 = {
        "memory": hierarchies.v1_memory,
        "io": hierarchies.v1_blkio,
        "freezer": hierarchies.v1_freezer,
    }[controller]
    if hierarchies.v2 is not None and (v1 is None or controller == "freezer"):
        yield hierarchies.v2, 2
    if v1 is not None:
        yield v1, 1


def _same(group: Group, mount: Mount, version: Version) -> Group:
    directory = mount.directory(group.path)
    try:
        cgroup_id = directory.stat().st_ino
    except (FileNotFoundError, NotADirectoryError):
        raise CgroupGoneError(f"no such cgroup: {group.path!r} (no '{directory}')") from None
    found = _members(directory)
    own = _members(group.directory)
    strangers = {pid for pid in found - own if Path("/proc", str(pid)).exists()}
    if strangers - _members(group.directory):
        raise CgroupError(f"'{directory}' has other processes than '{group.directory}'")
    if own and not found:
        raise CgroupError(f"'{directory}' has none of the processes of '{group.directory}'")
    return Group(group.path, directory, version, cgroup_id)


def _members(directory: Path) -> set[int]:
    found: set[int] = set()
    for parent, _, _ in os.walk(directory):
        try:
            found.update(map(int, Path(parent, "cgroup.procs").read_text().split()))
        except OSError:
            continue  # gone meanwhile, or threaded: then its processes show in the group above
    return found
