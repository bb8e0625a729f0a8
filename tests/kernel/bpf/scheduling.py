"""Tasks on one CPU, and what the scheduler itself accounts to them."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from bpf.layout import TargetKind
from bpf.targets import Target
from tests.kernel.bpf.child import Child, child
from tests.kernel.conftest import TwinGroup

CPU: Final = max(os.sched_getaffinity(0))


class Accounts(NamedTuple):
    """What the scheduler itself counts of a task."""

    run_ns: int
    wait_ns: int
    involuntary: int
    turns: int
    """Times it came on a CPU."""


def accounts(pid: int) -> Accounts:
    run_ns, wait_ns, turns = Path(f"/proc/{pid}/schedstat").read_text().split()
    status = dict(
        line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines()
    )
    involuntary = int(status["nonvoluntary_ctxt_switches"])
    return Accounts(int(run_ns), int(wait_ns), involuntary, int(turns))


@contextmanager
def task(group: TwinGroup | None, *what: str, cpu: int = CPU) -> Iterator[Child]:
    with child("task.py", *what, group=group, cpu=cpu) as started:
        started.tell()
        yield started


@contextmanager
def burning(group: TwinGroup | None, cpu: int = CPU) -> Iterator[Child]:
    """Something that takes all the CPU it can get."""
    with task(group, "burn", cpu=cpu) as started:
        yield started


@contextmanager
def to_burn(group: TwinGroup, cpu_ms: int) -> Iterator[tuple[Child, Accounts]]:
    """A task that begins to take so much CPU time, and what was accounted to it before."""
    with child("task.py", "burn", str(cpu_ms), cpu=CPU) as started:
        # what it does before is nothing that is watched
        started.wait_until_it_blocks()
        group.take_in(started.pid)
        before = accounts(started.pid)
        started.tell()
        yield started, before


@contextmanager
def burnt(group: TwinGroup, cpu_ms: int) -> Iterator[tuple[Child, Accounts]]:
    """A task that took so much CPU time and sleeps again, and what is accounted to it for that."""
    with to_burn(group, cpu_ms) as (started, before):
        started.answer()
        started.wait_until_it_blocks()
        after = accounts(started.pid)
        yield started, Accounts(*(now - then for now, then in zip(after, before, strict=True)))


def worked(group: TwinGroup | None, *what: str) -> None:
    """Let a task do its work and end.

    Ask for fewer waits than it made: hardened kernels may run no tracing program in the context of
    their host's own tasks, and so miss a switch from one of them.
    """
    with task(group, *what) as started:
        started.answer()


def cpu_engine(group: TwinGroup, wait_edge_ns: int = 0) -> Target:
    """A target whose threads and culprits are told of, too."""
    cgroups = frozenset([group.cpu_id])
    return Target(group.cpu.name, TargetKind.ENGINE, wait_edge_ns=wait_edge_ns, cpu_cgroups=cgroups)


def taken_by_others_ns() -> int:
    """Time of our CPU that interrupts and the hypervisor took: a task's own clock leaves it out."""
    for line in Path("/proc/stat").read_text().splitlines():
        name, *ticks = line.split()
        if name == f"cpu{CPU}":
            return sum(map(int, ticks[5:8])) * 1_000_000_000 // os.sysconf("SC_CLK_TCK")
    raise AssertionError(f"no such CPU: {CPU}")


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, "waited 20 s in vain"
        time.sleep(0.005)
