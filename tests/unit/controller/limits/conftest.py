"""Cgroup trees of plain files: what they hold is the kernel's text, what they refuse is nothing."""

from pathlib import Path

import pytest

from controller.limits.cgroup import Hierarchies, Mount, Version

FILES = {
    1: {
        "cpu.shares": "1024\n",
        "cpu.cfs_quota_us": "-1\n",
        "cpu.cfs_period_us": "100000\n",
        "cpu.stat": "nr_periods 33\nnr_throttled 31\nthrottled_time 2400000000\n",
    },
    2: {
        "cpu.weight": "100\n",
        "cpu.max": "max 100000\n",
        "cpu.stat": "usage_usec 9\nnr_periods 33\nnr_throttled 31\nthrottled_usec 2400000\n",
        "cgroup.controllers": "cpu memory\n",
        "cgroup.subtree_control": "cpu\n",
        "cgroup.freeze": "0\n",
        "cgroup.events": "populated 1\nfrozen 0\n",
        "cgroup.procs": "",
        "memory.high": "max\n",
        "io.weight": "default 100\n8:16 200\n",
        "dmem.max": "drm/0000:03:00.0/vram0 max\ndrm/0000:04:00.0/vram0 1048576\n",
    },
}


def make_group(mount: Path, path: str, version: Version) -> Path:
    """A group's directory with the files its version has."""
    directory = mount / path.strip("/")
    directory.mkdir(parents=True)
    for name, text in FILES[version].items():
        (directory / name).write_text(text)
    return directory


@pytest.fixture
def v1(tmp_path: Path) -> Hierarchies:
    """A v1 cpu hierarchy with /engine and /engine/child, beside a v2 tree without controllers."""
    cpu, unified = tmp_path / "cpu", tmp_path / "unified"
    for path in ("/engine", "/engine/child", "/neighbour"):
        make_group(cpu, path, 1)
        (unified / path.strip("/")).mkdir(parents=True)
    return Hierarchies(v2=Mount(unified), v1_cpu=Mount(cpu))


@pytest.fixture
def v2(tmp_path: Path) -> Hierarchies:
    """A v2 tree with the same groups."""
    root = tmp_path / "v2"
    root.mkdir()
    (root / "cgroup.controllers").write_text("cpu memory\n")
    (root / "cgroup.subtree_control").write_text("cpu\n")
    for path in ("/engine", "/engine/child", "/neighbour"):
        make_group(root, path, 2)
    return Hierarchies(v2=Mount(root), v1_cpu=None)


@pytest.fixture(params=["v1", "v2"])
def either(request: pytest.FixtureRequest) -> Hierarchies:
    """Each of the two in turn."""
    found: Hierarchies = request.getfixturevalue(request.param)
    return found
