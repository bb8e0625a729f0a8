"""Limits of memory, disks and running itself on a real cgroup v2 tree: set, felt, undone."""

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from controller.limits.block_io import read_io_weight
from controller.limits.cgroup import CgroupError, Group, cpu_group, read_hierarchies
from controller.limits.freezes import Thawed
from controller.limits.freezing import is_frozen
from controller.limits.guard import watch
from controller.limits.holds import Held, Lapsed
from controller.limits.limiter import Limiter
from controller.limits.memory import read_memory_high
from controller.limits.undo import Foreign, run_undo
from controller.pressure import parse_figures
from tests.vm.guest.conftest import ROOT, Burn, MakeCgroup, cgroups, cpu_stat, wait_until

MIB = 1 << 20
FILES = ("cpu.weight", "cpu.max", "memory.high", "io.weight", "cgroup.freeze")


# Freezes the group named in its second argument, says so, and stays.
FREEZER = """
import sys, time
from pathlib import Path
from controller.limits.cgroup import CgroupError, cpu_group, read_hierarchies
from controller.limits.limiter import Limiter
limiter = Limiter(Path(sys.argv[1]))
assert limiter.prepare_to_freeze(wait_ms=60_000)
group = cpu_group(read_hierarchies(), sys.argv[2])
while True:
    # in emulation a freeze may come too late to its freezer, which then refuses it
    try:
        limiter.freeze(group, 5_000, "test")
        break
    except CgroupError:
        time.sleep(0.1)
time.sleep(600)
"""

PROJECT = Path(__file__).parents[3]


@pytest.fixture
def make() -> Iterator[MakeCgroup]:
    """Makes cgroups with the controllers of all limits."""
    with cgroups("+cpu +memory +io") as made:
        yield made


@pytest.fixture
def limiter(tmp_path: Path) -> Iterator[Limiter]:
    """A limiter whose limits end with the test."""
    made = Limiter(tmp_path / "undo")
    yield made
    made.release_all()
    made.close()


def group_at(directory: Path) -> Group:
    """Return the group whose directory this is."""
    return cpu_group(read_hierarchies(), f"/{directory.relative_to(ROOT)}")


def freeze(limiter: Limiter, group: Group) -> Held | Foreign:
    """Freeze a group for long, once the freezer is there.

    In emulation a freeze may come too late to its freezer, which then refuses it.
    """
    until = time.monotonic() + 60
    while True:
        assert limiter.prepare_to_freeze(wait_ms=60_000)
        try:
            return limiter.freeze(group, 5_000, "test")
        except CgroupError:
            assert time.monotonic() < until


def values(group: Group) -> dict[str, str]:
    """Return what every file of a group holds."""
    files = [group.directory / name for name in FILES]
    return {file.name: file.read_text() for file in files if file.exists()}


def test_a_frozen_group_uses_no_cpu_and_goes_on_by_itself(
    make: MakeCgroup, burn: Burn, limiter: Limiter
) -> None:
    group = group_at(make("neighbour"))
    burn(group.directory)
    before = values(group)
    assert isinstance(freeze(limiter, group), Held)
    wait_until(lambda: is_frozen(group), "every process standing still")
    used = cpu_stat(group.directory)["usage_usec"]
    time.sleep(0.5)
    if is_frozen(group):
        assert cpu_stat(group.directory)["usage_usec"] == used
    seen: list[Thawed] = []

    def over() -> bool:
        seen.extend(limiter.thawed())
        return bool(seen)

    wait_until(over, "the end of the freeze")
    assert (seen[0].complete, seen[0].in_time) == (True, True)
    assert not is_frozen(group)
    assert values(group) == before
    wait_until(lambda: cpu_stat(group.directory)["usage_usec"] > used + 100_000, "running again")


def test_a_memory_limit_counts_reclaims_and_is_undone(
    make: MakeCgroup, limiter: Limiter, tmp_path: Path
) -> None:
    group = group_at(make("neighbour"))
    before = values(group)
    held = limiter.set_memory_high(group, 8 * MIB + 5, "test")
    assert isinstance(held, Held)
    assert read_memory_high(group) == 8 * MIB
    # The cache of a file that is written counts as its writer's memory, and can be reclaimed.
    write = 'echo $$ >"$1"; dd if=/dev/zero of="$2" bs=1M count=32 status=none'
    files = (str(group.directory / "cgroup.procs"), str(tmp_path / "big"))
    subprocess.run(["sh", "-c", write, "sh", *files], check=True)
    assert parse_figures((group.directory / "memory.events").read_text())["high"] > 0
    limiter.release(group)
    assert values(group) == before


def test_a_disk_weight_is_set_and_undone_or_refused(make: MakeCgroup, limiter: Limiter) -> None:
    group = group_at(make("neighbour"))
    before = values(group)
    if not any((group.directory / name).exists() for name in ("io.weight", "io.bfq.weight")):
        with pytest.raises(CgroupError, match="has no disk weight"):
            limiter.set_io_weight(group, 10, "test")
        return
    assert isinstance(limiter.set_io_weight(group, 10, "test"), Held)
    assert read_io_weight(group) == 10
    limiter.release(group)
    assert values(group) == before


def test_gpu_memory_is_refused_where_the_kernel_has_no_dmem(
    make: MakeCgroup, limiter: Limiter
) -> None:
    group = group_at(make("neighbour"))
    if (group.directory / "dmem.max").exists():
        pytest.skip("this kernel has dmem, and the machine no GPU to try it on")
    with pytest.raises(CgroupError, match="CONFIG_CGROUP_DMEM"):
        limiter.set_dmem_max(group, "drm/0", MIB, "test")


SETTERS: dict[str, Callable[[Limiter, Group], object]] = {
    "cpu.weight": lambda limiter, group: limiter.set_weight(group, 10, "test"),
    "cpu.max": lambda limiter, group: limiter.set_quota(group, 0.5, "test"),
    "memory.high": lambda limiter, group: limiter.set_memory_high(group, MIB, "test"),
    "io.weight": lambda limiter, group: limiter.set_io_weight(group, 10, "test"),
    "cgroup.freeze": freeze,
}
OTHERS = {
    "cpu.weight": "55",
    "cpu.max": "70000 100000",
    "memory.high": "2097152",
    "io.weight": "default 55",
    "cgroup.freeze": "0",
}


@pytest.mark.parametrize("name", FILES)
def test_what_another_controller_writes_is_left_to_it_and_told(
    make: MakeCgroup, limiter: Limiter, name: str
) -> None:
    group = group_at(make("neighbour"))
    file = group.directory / name
    if not file.exists():
        pytest.skip(f"this kernel has no {name} there")
    assert isinstance(SETTERS[name](limiter, group), Held)
    file.write_text(OTHERS[name])
    theirs = file.read_text()
    # The loop looks twice a second; one look is enough.
    noticed = limiter.check()
    if name == "cgroup.freeze":
        assert [each.held.file for each in limiter.thawed()] == [file]
    else:
        assert [type(each) for each in noticed] == [Foreign]
        assert isinstance(SETTERS[name](limiter, group), Foreign)
    assert limiter.held() == ()
    limiter.release_all()
    assert file.read_text() == theirs


def test_a_frozen_group_can_be_killed(make: MakeCgroup, burn: Burn, limiter: Limiter) -> None:
    group = group_at(make("neighbour"))
    process = burn(group.directory)
    freeze(limiter, group)
    wait_until(lambda: is_frozen(group), "every process standing still")
    process.kill()
    assert process.wait(60) == -signal.SIGKILL


def test_a_group_that_vanishes_is_let_go_with_all_its_limits(
    make: MakeCgroup, limiter: Limiter
) -> None:
    group = group_at(make("neighbour"))
    limiter.set_memory_high(group, MIB, "test")
    limiter.set_weight(group, 10, "test")
    group.directory.rmdir()
    assert [type(each) for each in limiter.check()] == [Lapsed, Lapsed]
    assert limiter.held() == ()


def hold(undo_path: Path, alive: int, groups: list[Group]) -> None:
    """Set every limit, again and again, each time to something else, until killed."""
    limiter, chance = Limiter(undo_path, alive), random.Random(os.getpid())
    while True:
        group, number = chance.choice(groups), chance.randrange(2, 100)
        limiter.set_weight(group, number, "busy")
        limiter.set_quota(group, number / 50, "busy")
        limiter.set_memory_high(group, number << 20, "busy")
        if (group.directory / "io.weight").exists():
            limiter.set_io_weight(group, number, "busy")
        with suppress(CgroupError):  # while the freezer is being started
            limiter.freeze(group, 2_000, "busy")
        limiter.thawed()
        if number < 30:
            limiter.release(group)
        limiter.heartbeat(time.monotonic_ns())


def forked(work: Callable[[], object], closed: int) -> int:
    """Do something in a child, which has not the descriptor `closed`; its pid.

    A new Python takes seconds here; what is run is the same.
    """
    pid = os.fork()
    if pid == 0:
        try:
            os.close(closed)
            work()
        finally:
            os._exit(0)
    return pid


def test_a_holder_killed_at_thirty_random_moments_leaves_no_value_and_nothing_frozen(
    make: MakeCgroup, tmp_path: Path
) -> None:
    groups = [group_at(make(f"neighbour{n}")) for n in range(2)]
    before = [values(group) for group in groups]
    chance, changed = random.Random(30), Counter[str]()
    for moment in range(30):
        path = tmp_path / f"undo-{moment}"
        read_fd, alive = os.pipe()
        guard = forked(partial(watch, path, read_fd, 600_000), closed=alive)
        holder = forked(partial(hold, path, alive, groups), closed=read_fd)
        os.close(read_fd)
        time.sleep(chance.uniform(0.1, 1))
        # Half of them with a guard that dies with the holder: then the next one runs the list.
        if moment % 2:
            os.kill(guard, signal.SIGKILL)
        os.kill(holder, signal.SIGKILL)
        os.close(alive)
        found = [values(group) for group in groups]
        changed.update(
            name for old, now in zip(before, found, strict=True) for name in differ(old, now)
        )
        for pid in (holder, guard):
            os.waitpid(pid, 0)
        run_undo(path)
        wait_until(lambda: not any(is_frozen(group) for group in groups), "nothing frozen")
        assert [values(group) for group in groups] == before
        assert not path.exists()
    assert {"cpu.weight", "cpu.max", "memory.high"} <= changed.keys(), "nothing was held then"


def differ(old: dict[str, str], now: dict[str, str]) -> list[str]:
    """Return the names of what is not as it was."""
    return [name for name in old if old[name] != now[name]]


def test_a_service_killed_with_its_freezer_leaves_nothing_frozen(
    heavy: None, make: MakeCgroup, burn: Burn, tmp_path: Path
) -> None:
    group, undo = group_at(make("neighbour")), tmp_path / "undo"
    burn(group.directory)
    name = "sits-freezes.service"
    stop = f"ExecStopPost={sys.executable} -m controller.limits.undo {undo}"
    properties = ("-p", f"WorkingDirectory={PROJECT}", "-p", "KillMode=mixed", "-p", stop)
    command = (sys.executable, "-c", FREEZER, str(undo), group.path)
    subprocess.run(
        ["systemd-run", "--quiet", "--collect", f"--unit={name}", *properties, *command], check=True
    )
    wait_until(lambda: is_frozen(group), "a frozen group")
    listed = undo.read_text()
    assert '"until_ns": null' not in listed
    # Not one at a time: whoever could thaw is gone at once, and long before the deadline.
    subprocess.run(["systemctl", "kill", "--signal=KILL", name], check=True)
    wait_until(lambda: not is_frozen(group), "a thawed group")
    wait_until(lambda: not undo.exists(), "an empty list")
