from pathlib import Path

import pytest

from agent.cgroup_paths import GONE_S, CgroupPaths
from controller.limits.cgroup import Hierarchies, Mount


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def paths(tmp_path: Path, clock: Clock) -> CgroupPaths:
    return CgroupPaths(Hierarchies(v2=Mount(tmp_path), v1_cpu=None), clock)


def made(directory: Path) -> int:
    directory.mkdir(parents=True)
    return directory.stat().st_ino


def test_a_cgroup_has_its_path_below_the_mount(tmp_path: Path, paths: CgroupPaths) -> None:
    deep = made(tmp_path / "a" / "b" / "c d")
    assert paths.path(deep) == "/a/b/c d"
    assert paths.path(tmp_path.stat().st_ino) == "/"


def test_one_that_moved_or_came_later_is_found(tmp_path: Path, paths: CgroupPaths) -> None:
    first = made(tmp_path / "first")
    assert paths.path(first) == "/first"
    (tmp_path / "first").rename(tmp_path / "other")
    later = made(tmp_path / "later")
    assert paths.path(first) == "/other"
    assert paths.path(later) == "/later"


def test_one_that_is_gone_says_so_and_is_looked_for_again_after_a_while(
    tmp_path: Path, paths: CgroupPaths, clock: Clock
) -> None:
    cgroup = made(tmp_path / "here")
    (tmp_path / "here").rename(tmp_path.parent / f"{tmp_path.name}-away")
    assert paths.path(cgroup) == f"gone (id {cgroup})"
    (tmp_path.parent / f"{tmp_path.name}-away").rename(tmp_path / "back")
    assert paths.path(cgroup) == f"gone (id {cgroup})"
    clock.now_s += GONE_S
    assert paths.path(cgroup) == "/back"


def test_without_a_hierarchy_there_is_only_the_id() -> None:
    assert CgroupPaths(Hierarchies(v2=None, v1_cpu=None)).path(7) == "7"
