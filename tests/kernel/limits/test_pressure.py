"""What real cgroups say of their processes: CPU used, CPU waited for, memory in want."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from controller.limits.cgroup import MOUNTINFO, Group, cgroup_mounts
from controller.pressure import PressureReader
from tests.kernel.bpf.scheduling import accounts, burning, burnt
from tests.kernel.conftest import MakeGroup, TwinGroup

pytestmark = pytest.mark.kernel

PATIENCE_S = 20.0
TAKE = "import sys; sys.stdin.readline(); m = b'x' * (256 << 20); print('took it', flush=True)"


@contextmanager
def reader_of(group: TwinGroup) -> Iterator[PressureReader]:
    made = PressureReader(Group(group.cpu.name, group.cpu, 1, group.cpu_id))
    made.read()
    try:
        yield made
    finally:
        made.close()


def wait_for(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < until, f"waited {PATIENCE_S} s in vain"
        time.sleep(0.02)


def test_cpu_time_used_is_what_the_scheduler_accounts(make_cgroup: MakeGroup) -> None:
    group = make_cgroup("engine")
    with burnt(group, 100), reader_of(group) as reader:
        before = reader.used_ns()
        with burnt(group, 200) as (second, accounted):
            after = reader.used_ns()
            assert before is not None
            assert after is not None
            # totals are in µs; it was in the group a little before it burnt, but not all its life
            assert accounted.run_ns - 2_000 <= after - before <= accounts(second.pid).run_ns
            assert reader.used_ns() == after


def test_tasks_that_get_no_cpu_are_starved_and_want_no_memory(make_cgroup: MakeGroup) -> None:
    group, neighbour = make_cgroup("engine"), make_cgroup("neighbour")
    with burning(group), reader_of(group) as reader:
        before = reader.read()
        with burning(neighbour):
            wait_for(lambda: reader.read().starved_ns - before.starved_ns > 100_000_000)
        after = reader.read()
    assert (after.memory_ns, after.limit_hits, after.out_of_memory) == (0, 0, False)


@contextmanager
def memory_limit(pid: int, limit_bytes: int) -> Iterator[Path]:
    """A v1 memory group with this limit and without its OOM killer, and the process in it."""
    mounts = cgroup_mounts(MOUNTINFO.read_text())
    found = [mount for kind, mount, names in mounts if kind == "cgroup" and "memory" in names]
    if not found:
        pytest.skip("the memory controller is not on cgroup v1 here: a v2 limit reclaims instead")
    directory = found[0].directory(f"{found[0].root.rstrip('/')}/sits-test-pressure-{pid}")
    directory.mkdir()
    try:
        (directory / "memory.limit_in_bytes").write_text(str(limit_bytes))
        (directory / "memory.oom_control").write_text("1")
        (directory / "cgroup.procs").write_text(str(pid))
        yield directory
    finally:
        # room first: a task that waits for memory can't end
        (directory / "memory.limit_in_bytes").write_text("-1")
        wait_for(lambda: not (directory / "cgroup.procs").read_text())
        directory.rmdir()


def test_tasks_that_wait_until_memory_is_freed_are_out_of_memory(make_cgroup: MakeGroup) -> None:
    group = make_cgroup("engine")
    with subprocess.Popen(
        [sys.executable, "-c", TAKE], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        group.take_in(process.pid)
        with memory_limit(process.pid, 32 << 20) as limited, reader_of(group) as reader:
            before = reader.read()
            assert (before.limit_hits, before.out_of_memory) == (0, False)
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(b"\n")
            process.stdin.flush()
            wait_for(lambda: reader.read().out_of_memory)
            assert reader.read().limit_hits > 0
            (limited / "memory.limit_in_bytes").write_text("-1")
            assert process.stdout.readline() == b"took it\n"
            assert not reader.read().out_of_memory
            process.wait()
