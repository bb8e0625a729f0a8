"""Freezes of real processes: by v2's freezer where it is mounted, else by v1's."""

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from controller.limits import cgroup, freezing
from controller.limits.cgroup import CgroupError, Group, Hierarchies, Mount
from controller.limits.freezes import Thawed
from controller.limits.holds import Held
from controller.limits.limiter import Limiter
from controller.limits.places import place_of

from .conftest import remove

pytestmark = pytest.mark.kernel


@pytest.fixture(params=["v2", "v1"])
def found(request: pytest.FixtureRequest, hierarchies: Hierarchies) -> Hierarchies:
    """The machine's hierarchies, with one freezer of the two."""
    if request.param == "v1":
        if hierarchies.v1_freezer is None or hierarchies.v1_cpu is None:
            pytest.skip("no v1 freezer is mounted")
        return Hierarchies(None, hierarchies.v1_cpu, v1_freezer=hierarchies.v1_freezer)
    if hierarchies.v2 is None:
        pytest.skip("no v2 is mounted")
    return Hierarchies(hierarchies.v2, hierarchies.v1_cpu)


@pytest.fixture
def group(found: Hierarchies) -> Iterator[Group]:
    """A group with a process, in each hierarchy there is."""
    path = f"/sits-test-{uuid4().hex[:12]}"
    mounts = {m for m in (found.v2, found.v1_cpu, found.v1_freezer) if m is not None}
    with subprocess.Popen(["sleep", "600"]) as work:
        try:
            for mount in mounts:
                put(mount, path, work.pid)
            yield cgroup.cpu_group(found, path)
        finally:
            work.kill()
            work.wait()
            for mount in mounts:
                remove(mount.directory(path))


def put(mount: Mount, path: str, pid: int) -> None:
    directory = mount.directory(path)
    directory.mkdir()
    (directory / "cgroup.procs").write_text(str(pid))


@pytest.fixture
def limiter(tmp_path: Path, found: Hierarchies) -> Iterator[Limiter]:
    made = Limiter(tmp_path / "undo.json", hierarchies=found)
    assert made.prepare_to_freeze(wait_ms=30_000)
    yield made
    made.release_all()
    made.close()


def wait_thawed(limiter: Limiter) -> Thawed:
    deadline = time.monotonic() + 10
    while not (thawed := limiter.thawed()):
        assert time.monotonic() < deadline
        time.sleep(0.002)
    return thawed[0]


def test_a_freeze_stops_the_processes_and_ends_by_itself(
    limiter: Limiter, group: Group, found: Hierarchies, tmp_path: Path
) -> None:
    place = place_of(found, group, "freezer")
    held = limiter.freeze(group, 200, "a test")
    assert isinstance(held, Held)
    deadline = time.monotonic() + 10
    while not freezing.is_frozen(place):
        assert time.monotonic() < deadline
    assert limiter.held() == (held,)
    thawed = wait_thawed(limiter)
    assert (thawed.held, thawed.complete, thawed.in_time) == (held, True, True)
    assert not freezing.is_frozen(place)
    assert limiter.held() == ()
    assert not (tmp_path / "undo.json").exists()


def test_a_group_of_ours_is_not_frozen(limiter: Limiter, found: Hierarchies, group: Group) -> None:
    mount = found.v2 or found.v1_freezer
    assert mount is not None
    root = Group("/", mount.point, 2 if found.v2 else 1, mount.point.stat().st_ino)
    with pytest.raises(CgroupError):
        limiter.freeze(root, 200, "a test")
