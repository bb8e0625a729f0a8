"""Run-queue delay, against what the scheduler itself accounts to the same tasks."""

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pytest

from bpf.layout import Counters, EdgeKind, TargetKind
from bpf.readers import Culprit, read_culprits
from bpf.targets import Target
from tests.kernel.bpf.child import Child, child
from tests.kernel.bpf.conftest import MAX_TARGETS
from tests.kernel.bpf.watched import Watched
from tests.kernel.conftest import MakeGroup, TwinGroup

pytestmark = pytest.mark.kernel

CPU = max(os.sched_getaffinity(0))


@contextmanager
def task(group: TwinGroup | None, *what: str) -> Iterator[Child]:
    with child("task.py", *what, group=group, cpu=CPU) as started:
        started.tell()
        yield started


@contextmanager
def burning(group: TwinGroup | None) -> Iterator[Child]:
    """Something that takes all the CPU it can get."""
    with task(group, "burn") as started:
        yield started


def neighbour(group: TwinGroup, wait_edge_ns: int = 0) -> Target:
    cgroups = frozenset([group.cpu_id])
    return Target(
        group.cpu.name, TargetKind.NEIGHBOUR, wait_edge_ns=wait_edge_ns, cpu_cgroups=cgroups
    )


def worked(group: TwinGroup | None, *what: str) -> int:
    """Let a task do its work and end; returns the CPU time it says it took."""
    with task(group, *what) as started:
        return int(json.loads(started.answer())["cpu_ns"])


class Accounts(NamedTuple):
    """What the scheduler itself counts of a task."""

    run_ns: int
    wait_ns: int
    involuntary: int


def accounts(pid: int) -> Accounts:
    run_ns, wait_ns, _ = Path(f"/proc/{pid}/schedstat").read_text().split()
    status = dict(
        line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines()
    )
    return Accounts(int(run_ns), int(wait_ns), int(status["nonvoluntary_ctxt_switches"]))


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


def culprits(watched: Watched, row: int) -> list[Culprit]:
    return [each for each in read_culprits(watched.programs.map("culprits")) if each.row == row]


def counted(watched: Watched, row: int) -> Counters:
    return watched.reader.counters(row)


def test_waits_behind_a_neighbour_are_counted_as_others(
    watched: Watched, make_cgroup: MakeGroup
) -> None:
    row = watched.watch(neighbour(group := make_cgroup("waking")))
    with burning(make_cgroup("burning")):
        worked(group, "wake", "100")
    counters = counted(watched, row)
    assert counters.waits >= 100
    assert 0 < counters.wait_other_ns <= counters.wait_ns


def test_the_neighbour_that_held_the_cpu_is_named(watched: Watched, make_cgroup: MakeGroup) -> None:
    row = watched.watch(neighbour(group := make_cgroup("waiting")))
    with burning(burner := make_cgroup("burning")):
        worked(group, "burn", "100")
        found = {culprit.cgroup: culprit for culprit in culprits(watched, row)}
        other_ns = counted(watched, row).wait_other_ns
    assert burner.cpu_id in found
    assert found[burner.cpu_id].waits > 0
    assert sum(culprit.wait_ns for culprit in found.values()) <= other_ns


def test_waits_behind_ones_own_tasks_are_counted_as_self(
    watched: Watched, make_cgroup: MakeGroup
) -> None:
    row = watched.watch(neighbour(group := make_cgroup("crowded")))
    with burning(group):
        worked(group, "burn", "100")
    counters = counted(watched, row)
    assert 0 < counters.wait_self_ns <= counters.wait_ns
    assert group.cpu_id not in {culprit.cgroup for culprit in culprits(watched, row)}


@contextmanager
def burnt(group: TwinGroup, cpu_ms: int) -> Iterator[tuple[Child, Accounts]]:
    """A task that took so much CPU time and sleeps again, and what is accounted to it for that."""
    with child("task.py", "burn", str(cpu_ms), group=group, cpu=CPU) as started:
        started.wait_until_it_blocks()
        before = accounts(started.pid)
        started.tell()
        started.answer()
        started.wait_until_it_blocks()
        after = accounts(started.pid)
        yield started, Accounts(*(now - then for now, then in zip(after, before, strict=True)))


def test_run_time_is_what_the_scheduler_accounts(watched: Watched, make_cgroup: MakeGroup) -> None:
    row = watched.watch(neighbour(group := make_cgroup("running")))
    taken_before_ns = taken_by_others_ns()
    with burnt(group, 300) as (_, kernels):
        taken_ns = taken_by_others_ns() - taken_before_ns
        run_ns = counted(watched, row).run_ns
    assert 0.9 * kernels.run_ns <= run_ns <= 1.1 * kernels.run_ns + taken_ns + 20_000_000


def test_waiting_time_is_what_the_scheduler_accounts(
    watched: Watched, make_cgroup: MakeGroup
) -> None:
    row = watched.watch(neighbour(group := make_cgroup("waiting")))
    with burning(make_cgroup("burning")), burnt(group, 200) as (_, kernels):
        assert counted(watched, row).wait_ns == pytest.approx(kernels.wait_ns, rel=0.1)


def test_involuntary_switches_are_those_the_kernel_counts(
    watched: Watched, make_cgroup: MakeGroup
) -> None:
    row = watched.watch(neighbour(group := make_cgroup("pushed")))
    with burning(make_cgroup("burning")), burnt(group, 200) as (_, kernels):
        assert counted(watched, row).involuntary == kernels.involuntary > 0


def test_nothing_is_counted_for_a_cgroup_that_is_not_watched(
    watched: Watched, make_cgroup: MakeGroup
) -> None:
    watched.watch(neighbour(make_cgroup("empty")))
    before = [counted(watched, row) for row in range(MAX_TARGETS)]
    worked(make_cgroup("unwatched"), "wake", "50")
    assert [counted(watched, row) for row in range(MAX_TARGETS)] == before


def test_row_0_is_nobodys(watched: Watched) -> None:
    assert counted(watched, 0) == Counters()


def test_a_task_that_leaves_the_cgroup_is_counted_no_more(
    watched: Watched, make_cgroup: MakeGroup
) -> None:
    row = watched.watch(neighbour(group := make_cgroup("left")))
    with task(group, "wake", "1000000") as started:
        wait_for(lambda: counted(watched, row).waits > 10)
        make_cgroup("elsewhere").take_in(started.pid)
        runs_before = accounts(started.pid).run_ns
        wait_for(lambda: accounts(started.pid).run_ns > runs_before + 1_000_000)
        after = counted(watched, row)
        runs_before = accounts(started.pid).run_ns
        wait_for(lambda: accounts(started.pid).run_ns > runs_before + 5_000_000)
        assert counted(watched, row) == after


def test_a_task_that_comes_into_the_cgroup_is_counted_from_then_on(
    watched: Watched, make_cgroup: MakeGroup
) -> None:
    row = watched.watch(neighbour(group := make_cgroup("joined")))
    with task(None, "wake", "1000000") as started:
        assert counted(watched, row).waits == 0
        group.take_in(started.pid)
        wait_for(lambda: counted(watched, row).waits > 10)


def test_a_cgroup_that_becomes_a_target_has_its_running_tasks_counted(
    watched: Watched, make_cgroup: MakeGroup
) -> None:
    group = make_cgroup("found")
    with task(group, "wake", "1000000"):
        row = watched.watch(neighbour(group))
        wait_for(lambda: counted(watched, row).waits > 10)


def test_a_process_without_a_cgroup_of_its_own_is_watched_by_its_id(watched: Watched) -> None:
    with task(None, "wake", "1000000") as one, task(None, "wake", "1000000"):
        target = Target("alone", TargetKind.ENGINE, processes=frozenset([one.pid]))
        row = watched.watch(target)
        wait_for(lambda: counted(watched, row).run_ns > 10_000_000)
        ours = accounts(one.pid).run_ns
        # the other, which runs as much in the same cgroup, would double it
        assert counted(watched, row).run_ns < 1.5 * ours + 20_000_000


def test_an_idle_cpu_is_nobodys_fault(watched: Watched, make_cgroup: MakeGroup) -> None:
    row = watched.watch(neighbour(group := make_cgroup("alone")))
    with task(group, "wake", "1000000"):
        # some wake-ups find the CPU idle: their waits are neither our own nor another's
        wait_for(
            lambda: (now := counted(watched, row)).wait_ns > now.wait_self_ns + now.wait_other_ns
        )
    assert not [each for each in culprits(watched, row) if each.command.startswith("swapper")]


def test_the_histogram_holds_every_wait_and_their_sum(
    watched: Watched, make_cgroup: MakeGroup
) -> None:
    row = watched.watch(neighbour(group := make_cgroup("summed")))
    with burning(make_cgroup("burning")):
        worked(group, "wake", "100")
    counters, histogram = counted(watched, row), watched.histogram("wait_histograms", row)
    assert (histogram.count, histogram.sum_ns) == (counters.waits, counters.wait_ns)
    assert counters.waits >= 100


def test_waits_over_the_threshold_are_counted_and_raise_edges_once_a_millisecond(
    watched: Watched, make_cgroup: MakeGroup
) -> None:
    row = watched.watch(neighbour(group := make_cgroup("edges"), wait_edge_ns=1))
    look = watched.look(row)
    with burning(make_cgroup("burning")):
        worked(group, "wake", "100")
    watched.consume()
    edges = [edge for edge in watched.edges if edge.slot == row]
    times = [edge.at_ns for edge in edges]
    assert look.counters.waits_over == look.counters.waits
    assert 0 < len(edges) <= look.counters.waits_over
    assert {edge.kind for edge in edges} == {EdgeKind.WAIT}
    # the task stayed on one CPU
    assert all(later - earlier >= 1_000_000 for earlier, later in pairwise(times))


def test_waits_under_the_threshold_raise_nothing(watched: Watched, make_cgroup: MakeGroup) -> None:
    row = watched.watch(neighbour(group := make_cgroup("calm"), wait_edge_ns=10**12))
    look = watched.look(row)
    worked(group, "wake", "50")
    watched.consume()
    assert look.counters.waits >= 50
    assert look.counters.waits_over == 0
    assert not [edge for edge in watched.edges if edge.slot == row]
