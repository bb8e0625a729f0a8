"""What a real cgroup v2 says of its processes, with the memory controller in the same tree."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from controller.limits.cgroup import Group
from controller.pressure import PressureReader
from tests.vm.guest.conftest import Burn, cgroups, cpu_stat, wait_until

HIGH_BYTES = 32 << 20
TAKE = "import sys; print(flush=True); input(); m = bytearray(b'x') * (128 << 20); input()"


@pytest.fixture
def group() -> Iterator[Path]:
    """A cgroup with the memory controller."""
    with cgroups("+cpu +memory") as make:
        yield make("engine")


@contextmanager
def reader_of(group: Path) -> Iterator[PressureReader]:
    reader = PressureReader(Group("/tests/engine", group, 2, group.stat().st_ino))
    try:
        yield reader
    finally:
        reader.close()


def test_cpu_time_used_is_the_cgroups(group: Path, burn: Burn) -> None:
    process = burn(group)
    with reader_of(group) as reader:
        reader.read()
        wait_until(lambda: cpu_stat(group)["usage_usec"] > 500_000, "CPU time")
        before, used_ns, after = (cpu_stat(group), reader.used_ns(), cpu_stat(group))
        assert used_ns is not None
        assert before["usage_usec"] <= used_ns / 1_000 <= after["usage_usec"]
        process.kill()
        process.wait()
        assert reader.used_ns() == cpu_stat(group)["usage_usec"] * 1_000


def test_two_that_want_one_cpu_are_starved(group: Path, burn: Burn) -> None:
    burn(group)
    with reader_of(group) as reader:
        before = reader.read()
        burn(group)
        wait_until(lambda: reader.read().starved_ns > before.starved_ns, "a starved task")
        assert (reader.read().memory_ns, reader.read().limit_hits) == (0, 0)


def test_who_takes_more_memory_than_is_high_stands_still_for_it(group: Path) -> None:
    (group / "memory.high").write_text(str(HIGH_BYTES))
    with subprocess.Popen(
        [sys.executable, "-c", TAKE], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()
        (group / "cgroup.procs").write_text(str(process.pid))
        with reader_of(group) as reader:
            before = reader.read()
            assert (before.memory_ns, before.limit_hits) == (0, 0)
            process.stdin.write(b"\n")
            process.stdin.flush()
            wait_until(lambda: reader.read().memory_ns > 0, "a wait for memory")
            assert reader.read().limit_hits > 0
            # tasks are slowed here, and none is to wait until memory is freed
            assert not reader.read().out_of_memory
        (group / "memory.high").write_text("max")
        process.kill()
