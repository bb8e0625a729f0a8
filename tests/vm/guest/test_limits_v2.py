"""The project's CPU limits on a real cgroup v2 tree, with processes that feel them."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from controller.limits.cgroup import (
    CgroupError,
    Group,
    Mount,
    cpu_group,
    cpu_group_of,
    read_hierarchies,
)
from controller.limits.cpu import (
    IDLE_WEIGHT,
    can_be_idle,
    read_quota,
    read_throttling,
    read_weight,
)
from controller.limits.guard import start_guard
from controller.limits.holds import Held, Lapsed
from controller.limits.limiter import Limiter
from controller.limits.undo import Foreign, run_undo
from tests.vm.guest.conftest import ROOT, Burn, MakeCgroup, cpu_stat, members, wait_until

# Sets a weight and a quota on the group named in its second argument, says so, and stays.
HOLDER = """
import sys, time
from pathlib import Path
from controller.limits.cgroup import cpu_group, read_hierarchies
from controller.limits.limiter import Limiter
group = cpu_group(read_hierarchies(), sys.argv[2])
limiter = Limiter(Path(sys.argv[1]))
limiter.set_weight(group, 7, "test")
limiter.set_quota(group, 0.1, "test")
print("held", flush=True)
time.sleep(600)
"""


def group_at(directory: Path) -> Group:
    """Return the group whose directory this is."""
    return cpu_group(read_hierarchies(), f"/{directory.relative_to(ROOT)}")


def needs_idle(directory: Path) -> None:
    if not can_be_idle(group_at(directory)):
        pytest.skip("this kernel has no cpu.idle (5.15)")


@pytest.fixture
def limiter(tmp_path: Path) -> Iterator[Limiter]:
    """A limiter whose limits end with the test."""
    made = Limiter(tmp_path / "undo")
    yield made
    made.release_all()


@pytest.fixture
def service() -> Iterator[int]:
    """A systemd service with a CPU weight of 200; its main process."""
    name = "sits-test.service"
    properties = ("-p", "CPUWeight=200")
    subprocess.run(
        ["systemd-run", "--quiet", f"--unit={name}", *properties, "sleep", "600"], check=True
    )
    shown = subprocess.run(
        ["systemctl", "show", "-P", "MainPID", name], check=True, capture_output=True, text=True
    )
    yield int(shown.stdout)
    subprocess.run(["systemctl", "stop", name], check=True)


def test_the_v2_tree_is_found() -> None:
    found = read_hierarchies()
    assert found.v2 == Mount(ROOT)
    assert found.v1_cpu is None


def test_a_process_is_found_in_its_cgroup(make_cgroup: MakeCgroup, burn: Burn) -> None:
    directory = make_cgroup("outer/inner")
    found = cpu_group_of(read_hierarchies(), burn(directory).pid)
    assert (found.path, found.directory, found.version) == (
        "/tests/outer/inner",
        directory,
        2,
    )
    assert found.cgroup_id == directory.stat().st_ino


def test_a_cgroup_without_the_controller_is_refused_with_what_to_write(
    make_cgroup: MakeCgroup,
) -> None:
    outer = make_cgroup("outer")
    (outer / "inner").mkdir()
    with pytest.raises(CgroupError, match=r"write \+cpu to '.*/outer/cgroup.subtree_control'"):
        group_at(outer / "inner")


def test_a_weight_is_set_and_undone(make_cgroup: MakeCgroup, limiter: Limiter) -> None:
    group = group_at(make_cgroup("engine"))
    held = limiter.set_weight(group, 1000, "test")
    assert isinstance(held, Held)
    assert (held.original, held.applied) == ("100", "1000")
    assert read_weight(group) == 1000
    assert limiter.release(group).complete
    assert (group.directory / "cpu.weight").read_text() == "100\n"


@pytest.fixture
def burning(make_cgroup: MakeCgroup, burn: Burn) -> list[Path]:
    """An engine's group and three neighbours', of one weight, all of which burn."""
    groups = [make_cgroup("engine"), *(make_cgroup(f"neighbour{n}") for n in range(3))]
    for group in groups:
        burn(group)
    return groups


def share(groups: list[Path]) -> float:
    """What the first of them gets of the CPU that they use."""
    before = [cpu_stat(group)["usage_usec"] for group in groups]
    time.sleep(4)
    used = [cpu_stat(g)["usage_usec"] - b for g, b in zip(groups, before, strict=True)]
    return used[0] / sum(used)


def test_a_weight_moves_the_cpu_to_the_engine(burning: list[Path], limiter: Limiter) -> None:
    fair = share(burning)
    limiter.set_weight(group_at(burning[0]), 1000, "test")
    assert fair < 0.5 < share(burning)


def test_idle_neighbours_leave_the_cpu_to_the_engine_and_get_their_weight_back(
    burning: list[Path], limiter: Limiter
) -> None:
    engine, *neighbours = burning
    needs_idle(engine)
    fair = share(burning)
    for each in neighbours:
        limiter.set_weight(group_at(each), IDLE_WEIGHT, "test")
        assert (each / "cpu.idle").read_text() == "1\n"
    assert fair < 0.5 < share(burning)
    limiter.release_all()
    assert {(each / "cpu.idle").read_text() for each in neighbours} == {"0\n"}
    assert {(each / "cpu.weight").read_text() for each in neighbours} == {"100\n"}


def test_a_quota_keeps_a_neighbours_period(make_cgroup: MakeCgroup, limiter: Limiter) -> None:
    group = group_at(make_cgroup("neighbour"))
    (group.directory / "cpu.max").write_text("max 50000")
    limiter.set_quota(group, 0.5, "test")
    assert (group.directory / "cpu.max").read_text() == "25000 50000\n"
    limiter.release(group)
    assert (group.directory / "cpu.max").read_text() == "max 50000\n"


def test_a_quota_throttles_until_it_is_undone(
    make_cgroup: MakeCgroup, burn: Burn, limiter: Limiter
) -> None:
    group = group_at(make_cgroup("neighbour"))
    burn(group.directory)
    assert read_throttling(group).throttled_ns == 0
    limiter.set_quota(group, 0.1, "test")
    assert read_quota(group) == 0.1
    wait_until(lambda: read_throttling(group).throttled_periods > 5, "throttled periods")
    assert read_throttling(group).throttled_ns > 0

    limiter.release(group)
    assert read_quota(group) is None
    time.sleep(0.5)  # the period that the release fell into
    settled, ran = read_throttling(group), cpu_stat(group.directory)["usage_usec"]
    wait_until(lambda: cpu_stat(group.directory)["usage_usec"] > ran + 500_000, "free running")
    assert read_throttling(group).throttled_periods == settled.throttled_periods


def test_a_parents_quota_holds_the_children(
    make_cgroup: MakeCgroup, burn: Burn, limiter: Limiter
) -> None:
    inner = make_cgroup("outer/inner")
    burn(inner)
    outer = group_at(inner.parent)
    limiter.set_quota(outer, 0.1, "test")
    wait_until(lambda: read_throttling(outer).throttled_periods > 5, "throttled periods")
    assert read_throttling(group_at(inner)).throttled_periods == 0


def test_what_somebody_else_writes_is_left_alone(make_cgroup: MakeCgroup, limiter: Limiter) -> None:
    group = group_at(make_cgroup("neighbour"))
    limiter.set_weight(group, 10, "test")
    (group.directory / "cpu.weight").write_text("55")
    (noticed,) = limiter.check()
    assert isinstance(noticed, Foreign)
    assert isinstance(limiter.set_weight(group, 10, "test"), Foreign)
    limiter.release_all()
    assert read_weight(group) == 55


def test_a_limit_ends_with_its_cgroup(make_cgroup: MakeCgroup, limiter: Limiter) -> None:
    group = group_at(make_cgroup("neighbour"))
    limiter.set_weight(group, 10, "test")
    group.directory.rmdir()
    (noticed,) = limiter.check()
    assert isinstance(noticed, Lapsed)
    assert limiter.held() == ()


def test_a_quota_below_the_kernels_least_is_refused(
    make_cgroup: MakeCgroup, limiter: Limiter
) -> None:
    group = group_at(make_cgroup("neighbour"))
    with pytest.raises(CgroupError, match="no less than 1000 µs"):
        limiter.set_quota(group, 0.005, "test")
    assert limiter.held() == ()
    assert (group.directory / "cpu.max").read_text() == "max 100000\n"


def test_a_systemd_service_gets_its_own_weight_back(service: int, limiter: Limiter) -> None:
    group = cpu_group_of(read_hierarchies(), service)
    assert group.path == "/system.slice/sits-test.service"
    held = limiter.set_weight(group, 2000, "test")
    assert isinstance(held, Held)
    assert held.original == "200"
    limiter.release(group)
    assert read_weight(group) == 200


def test_a_limit_that_systemds_reload_takes_off_is_noticed_and_set_again(
    service: int, limiter: Limiter
) -> None:
    group = cpu_group_of(read_hierarchies(), service)
    limiter.set_quota(group, 0.3, "test")
    # On a reload systemd writes what its unit files say into every unit's cgroup.
    subprocess.run(["systemctl", "daemon-reload"], check=True)
    wait_until(lambda: read_quota(group) is None, "systemd's own value")
    (noticed,) = limiter.check()
    assert isinstance(noticed, Lapsed)
    assert isinstance(limiter.set_quota(group, 0.3, "test"), Held)
    assert read_quota(group) == 0.3


def test_an_idle_service_gets_its_own_weight_back_whatever_systemd_does_meanwhile(
    service: int, limiter: Limiter
) -> None:
    group = cpu_group_of(read_hierarchies(), service)
    needs_idle(group.directory)
    limiter.set_weight(group, IDLE_WEIGHT, "test")
    subprocess.run(["systemctl", "daemon-reload"], check=True)
    time.sleep(1)
    # the kernel refuses a weight for an idle group; a systemd that wakes it first has it
    for noticed in limiter.check():
        assert isinstance(noticed, Lapsed)
    assert isinstance(limiter.set_weight(group, IDLE_WEIGHT, "test"), Held)
    assert read_weight(group) == IDLE_WEIGHT
    limiter.release(group)
    assert (group.directory / "cpu.idle").read_text() == "0\n"
    assert read_weight(group) == 200


def start_holder(undo_path: Path, group: Group, *inherited: int) -> "subprocess.Popen[bytes]":
    """Start a process that holds limits on a group; returns when it does."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, undo_path, group.path],
        stdout=subprocess.PIPE,
        pass_fds=inherited,
    )
    assert process.stdout is not None
    with process.stdout as said:
        assert said.readline() == b"held\n"
    assert (read_weight(group), read_quota(group)) == (7, 0.1)
    return process


def as_before(group: Group) -> bool:
    """Say whether a group has the kernel's own weight and no quota."""
    return (read_weight(group), read_quota(group)) == (100, None)


def test_the_list_undoes_what_a_killed_process_held(
    make_cgroup: MakeCgroup, tmp_path: Path
) -> None:
    group = group_at(make_cgroup("neighbour"))
    with start_holder(tmp_path / "undo", group) as holder:
        holder.kill()
    assert not as_before(group)
    assert len(run_undo(tmp_path / "undo").restored) == 2
    assert as_before(group)


def test_the_guard_undoes_what_killed_processes_held(
    make_cgroup: MakeCgroup, tmp_path: Path
) -> None:
    group = group_at(make_cgroup("neighbour"))
    # Silence is not the point here, and the slow machine must not be taken for it.
    guard, alive = start_guard(tmp_path / "undo", timeout_ms=600_000)
    try:
        with start_holder(tmp_path / "undo", group, alive) as holder:
            os.close(alive)
            holder.send_signal(signal.SIGKILL)
        assert guard.wait(60) == 0
    finally:
        guard.kill()
        guard.wait()
    assert as_before(group)


def test_limits_do_not_stop_processes_from_leaving(
    make_cgroup: MakeCgroup, burn: Burn, limiter: Limiter
) -> None:
    group = group_at(make_cgroup("neighbour"))
    process = burn(group.directory)
    limiter.set_quota(group, 0.01, "test")
    process.kill()
    process.wait()
    wait_until(lambda: members(group.directory) == [], "an empty cgroup")
