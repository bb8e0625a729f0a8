import ctypes
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from controller.limits import cgroup, cpu
from controller.limits.cgroup import CgroupError, CgroupGoneError, Group, Hierarchies

from .conftest import MakeGroup

pytestmark = pytest.mark.kernel


class FileHandle(ctypes.Structure):
    """struct file_handle; the kernel puts a kernfs node's 64-bit id into it (FILEID_KERNFS)."""

    _fields_ = (
        ("handle_bytes", ctypes.c_uint),
        ("handle_type", ctypes.c_int),
        ("node_id", ctypes.c_uint64),
    )


@contextmanager
def busy_loop_in(group: Group) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sh", "-c", "while :; do :; done"]) as process:
        try:
            cgroup.write(group.directory / "cgroup.procs", str(process.pid))
            yield process
        finally:
            process.kill()


def test_the_groups_id_is_the_kernels_own(make_group: MakeGroup) -> None:
    group = make_group("engine")
    handle, mount_id = FileHandle(handle_bytes=8), ctypes.c_int()
    libc = ctypes.CDLL(None, use_errno=True)
    failed = libc.name_to_handle_at(
        -100, os.fsencode(group.directory), ctypes.byref(handle), ctypes.byref(mount_id), 0
    )
    assert not failed, os.strerror(ctypes.get_errno())
    assert handle.node_id == group.cgroup_id


def test_a_process_is_found_in_its_group(make_group: MakeGroup, hierarchies: Hierarchies) -> None:
    group = make_group("engine")
    with busy_loop_in(group) as process:
        assert cgroup.cpu_group_of(hierarchies, process.pid) == group


def test_descendants_have_distinct_ids(make_group: MakeGroup) -> None:
    engine, worker = make_group("engine"), make_group("engine/worker")
    assert cgroup.descendants(engine) == (worker,)
    assert engine.cgroup_id != worker.cgroup_id


@pytest.mark.parametrize("weight", [1, 2, 3, 50, 99, 101, 333, 1_000, 9_999, 10_000])
def test_the_kernel_shows_the_weight_that_was_written(make_group: MakeGroup, weight: int) -> None:
    group = make_group("engine")
    cpu.write_weight(group, weight)
    assert cpu.read_weight(group) == weight


@pytest.mark.parametrize("cores", [0.01, 0.2, 1.0, 1.5, 3.33333, None])
def test_the_kernel_shows_the_quota_that_was_written(
    make_group: MakeGroup, cores: float | None
) -> None:
    group = make_group("engine")
    cpu.write_quota(group, cores)
    assert cpu.read_quota(group) == cores


def test_throttling_grows_under_a_quota(make_group: MakeGroup) -> None:
    group = make_group("engine")
    cpu.write_quota(group, 0.05)
    before = cpu.read_throttling(group)
    with busy_loop_in(group):
        deadline = time.monotonic() + 10
        while cpu.read_throttling(group).throttled_periods < 2 and time.monotonic() < deadline:
            time.sleep(0.05)
    after = cpu.read_throttling(group)
    assert before.throttled_periods == 0
    assert after.throttled_periods >= 2
    assert after.periods >= after.throttled_periods
    assert after.throttled_ns > 1_000_000


def test_a_group_that_vanished_is_said_to_be_gone(make_group: MakeGroup) -> None:
    group = make_group("engine")
    group.directory.rmdir()
    with pytest.raises(CgroupGoneError):
        cpu.write_weight(group, 200)


def v1_only(group: Group) -> None:
    if group.version != 1:
        pytest.skip("only cgroup v1 refuses this; the cpu controller is v2 here")


def test_v1_says_which_parent_a_childs_quota_exceeds(make_group: MakeGroup) -> None:
    parent, child = make_group("engine"), make_group("engine/worker")
    v1_only(parent)
    cpu.write_quota(parent, 0.2)
    with pytest.raises(CgroupError) as raised:
        cpu.write_quota(child, 0.5)
    assert f"'{parent.directory}' has 0.2 cores, not 0.5" in str(raised.value)
    assert cpu.read_quota(child) is None


def test_v1_says_which_child_to_lower_first(make_group: MakeGroup) -> None:
    parent, child = make_group("engine"), make_group("engine/worker")
    v1_only(parent)
    cpu.write_quota(child, 0.5)
    with pytest.raises(CgroupError) as raised:
        cpu.write_quota(parent, 0.2)
    assert f"'{child.directory}' below it has 0.5 cores: lower that first" in str(raised.value)


def test_a_quota_below_the_groups_burst_says_so(make_group: MakeGroup) -> None:
    group = make_group("engine")
    burst = group.directory / ("cpu.cfs_burst_us" if group.version == 1 else "cpu.max.burst")
    if not burst.exists():
        pytest.skip(f"this kernel has no {burst.name}")
    cpu.write_quota(group, 0.5)
    cgroup.write(burst, "40000")
    with pytest.raises(CgroupError, match="holds 40000, and a quota cannot be below it"):
        cpu.write_quota(group, 0.2)


def test_a_weight_of_0_makes_a_group_idle(idling: Group) -> None:
    cpu.write_weight(idling, cpu.IDLE_WEIGHT)
    assert cgroup.read(idling.directory / "cpu.idle") == "1"
    assert cpu.read_weight(idling) == cpu.IDLE_WEIGHT


def test_a_weight_makes_a_group_idle_no_more(idling: Group) -> None:
    cpu.write_weight(idling, cpu.IDLE_WEIGHT)
    cpu.write_weight(idling, 300)
    assert cgroup.read(idling.directory / "cpu.idle") == "0"
    assert cpu.read_weight(idling) == 300


def test_the_least_weights_are_not_taken_for_idle(idling: Group) -> None:
    for weight in (1, 2, 3):
        cpu.write_weight(idling, weight)
        assert cpu.read_weight(idling) == weight


def test_v1_shares_as_small_as_an_idle_groups_are_not_taken_for_idle(idling: Group) -> None:
    v1_only(idling)
    cgroup.write(idling.directory / "cpu.shares", "3")
    assert cpu.read_weight(idling) == 1
