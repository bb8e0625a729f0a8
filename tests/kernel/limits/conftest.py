"""Real cgroups of the hierarchy that controls CPU on this machine, removed whatever happens."""

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final
from uuid import uuid4

import pytest

from controller.limits import cgroup, cpu
from controller.limits.cgroup import CgroupError, Group, Hierarchies, Mount, membership_in

IDLING_WEIGHT: Final = 250
"""Of `idling`."""

MakeGroup = Callable[[str], Group]
Busy = Callable[..., Group]


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


@pytest.fixture
def idling(make_group: MakeGroup) -> Group:
    """A group with a weight of its own that can be made idle."""
    group = make_group("batch")
    if not cpu.can_be_idle(group):
        pytest.skip("this kernel has no cpu.idle")
    cpu.write_weight(group, IDLING_WEIGHT)
    return group


@pytest.fixture(params=["v2", "v1"])
def one_freezer(request: pytest.FixtureRequest, hierarchies: Hierarchies) -> Hierarchies:
    """The machine's hierarchies with one freezer, of either version in turn."""
    if request.param == "v1":
        if hierarchies.v1_freezer is None or hierarchies.v1_cpu is None:
            pytest.skip("no v1 freezer is mounted")
        return Hierarchies(None, hierarchies.v1_cpu, v1_freezer=hierarchies.v1_freezer)
    if hierarchies.v2 is None:
        pytest.skip("no v2 is mounted")
    return Hierarchies(hierarchies.v2, hierarchies.v1_cpu)


def freezer_mounts(found: Hierarchies) -> list[Mount]:
    """Where a group has to be made so that it can be frozen and its CPU limited."""
    mounts = {found.v1_cpu or found.v2, found.v2 or found.v1_freezer}
    return [mount for mount in mounts if mount is not None]


@pytest.fixture
def busy(one_freezer: Hierarchies) -> Iterator[Busy]:
    """Starts a command in a group of its own, and kills it; "/sits-test-…" is the group's path.

    With RT_GROUP_SCHED a group of v1 has to be allowed real-time processes.
    """
    mounts = freezer_mounts(one_freezer)
    started: list[tuple[str, subprocess.Popen[bytes]]] = []

    def start(command: list[str]) -> Group:
        path = f"/sits-test-{uuid4().hex[:12]}"
        # It waits for its input's end, so that its first instruction runs in the group.
        waiting = ["sh", "-c", 'read _; exec "$@"', "sh", *command]
        process = subprocess.Popen(waiting, stdin=subprocess.PIPE)
        started.append((path, process))
        for mount in mounts:
            directory = mount.directory(path)
            directory.mkdir()
            if (directory / "cpu.rt_runtime_us").exists():
                (directory / "cpu.rt_runtime_us").write_text("50000")
            (directory / "cgroup.procs").write_text(str(process.pid))
        assert process.stdin is not None
        process.stdin.close()
        return cgroup.cpu_group(one_freezer, path)

    try:
        yield start
    finally:
        for _, process in started:
            process.kill()
            process.wait()
        for path, _ in started:
            for mount in mounts:
                remove(mount.directory(path))


@contextmanager
def inside(group: Group, found: Hierarchies) -> Iterator[None]:
    """This process in a group, in each hierarchy that has it."""
    before = Path("/proc/self/cgroup").read_text()
    names = {found.v2: "", found.v1_cpu: "cpu", found.v1_freezer: "freezer"}
    homes = {mount: membership_in(before, names[mount]) for mount in freezer_mounts(found)}
    try:
        for mount in homes:
            (mount.directory(group.path) / "cgroup.procs").write_text(str(os.getpid()))
        yield
    finally:
        for mount, home in homes.items():
            assert home is not None
            (mount.directory(home) / "cgroup.procs").write_text(str(os.getpid()))


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
