"""Real cgroups of the hierarchy that controls CPU on this machine, removed whatever happens."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

import pytest

from controller.limits import cgroup
from controller.limits.cgroup import CgroupError, Group, Hierarchies

MakeGroup = Callable[[str], Group]


@pytest.fixture(scope="session")
def hierarchies() -> Hierarchies:
    found = cgroup.read_hierarchies()
    if os.geteuid() != 0:
        pytest.skip("making cgroups needs root")
    if found.v2 is None and found.v1_cpu is None:
        pytest.skip("no cgroup hierarchy is mounted")
    return found


@pytest.fixture
def make_group(hierarchies: Hierarchies) -> Iterator[MakeGroup]:
    """Makes a cgroup by name below one that is this test's own; parents must be made first."""
    top = f"/sits-test-{uuid4().hex[:12]}"
    mount = hierarchies.v1_cpu or hierarchies.v2
    assert mount is not None
    mount.directory(top).mkdir()

    def make(name: str) -> Group:
        directory = mount.directory(f"{top}/{name}")
        directory.mkdir()
        if hierarchies.v1_cpu is None:
            _pass_on_cpu(mount.point, directory.parent)
        return cgroup.cpu_group(hierarchies, f"{top}/{name}")

    try:
        yield make
    finally:
        for directory, _, _ in sorted(os.walk(mount.directory(top)), reverse=True):
            remove(Path(directory))


def _pass_on_cpu(root: Path, directory: Path) -> None:
    """Enable the v2 cpu controller from the root down to what is below `directory`."""
    for each in (*reversed(directory.parents), directory):
        file = each / "cgroup.subtree_control"
        if each.is_relative_to(root) and "cpu" not in cgroup.read(file).split():
            cgroup.write(file, "+cpu")


def remove(directory: Path) -> None:
    """The kernel lets go of a killed process's group a moment after its end."""
    deadline = time.monotonic() + 5
    while directory.exists():
        with suppress(FileNotFoundError):
            try:
                directory.rmdir()
            except OSError as error:
                if time.monotonic() > deadline:
                    raise CgroupError(f"could not remove '{directory}': {error}") from error
                time.sleep(0.01)
