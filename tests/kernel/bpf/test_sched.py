"""Run-queue delay, against what the scheduler itself accounts to the same tasks."""

import os
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import cycle, pairwise
from pathlib import Path
from threading import Event, Thread

import pytest

from bpf.histogram import upper_bound_ns
from bpf.layout import Counters, EdgeKind, TargetKind
from bpf.readers import Culprit, read_culprits
from bpf.targets import Target
from tests.kernel.bpf.conftest import MAX_TARGETS
from tests.kernel.bpf.scheduling import (
    accounts,
    burning,
    burnt,
    cpu_engine,
    taken_by_others_ns,
    task,
    to_burn,
    wait_for,
    worked,
)
from tests.kernel.bpf.watched import Watched
from tests.kernel.conftest import MakeGroup

pytestmark = pytest.mark.kernel


def culprits(watched: Watched, row: int) -> list[Culprit]:
    return [each for each in read_culprits(watched.programs.map("culprits")) if each.row == row]


def counted(watched: Watched, row: int) -> Counters:
    return watched.reader.counters(row)


def test_waits_behind_a_neighbour_are_counted_as_others(
    watched: Watched, make_cgroup: MakeGroup
) -> None:
    row = watched.watch(cpu_engine(group := make_cgroup("waking")))
    with burning(make_cgroup("burning")):
        worked(group, "wake", "100")
        # who wakes up may take the CPU at once each time, and has waited for nothing then
        worked(group, "burn", "100")
    counters = counted(watched, row)
    assert counters.waits >= 50
    assert 0 < counters.wait_other_ns <= counters.wait_ns


def test_the_neighbour_that_held_the_cpu_is_named(watched: Watched, make_cgroup: MakeGroup) -> None:
    row = watched.watch(cpu_engine(group := make_cgroup("waiting")))
    with burning(burner := make_cgroup("burning")), burning(group):
        # others may hold the CPU too, on a busy machine
        wait_for(lambda: burner.cpu_id in {each.cgroup for each in culprits(watched, row)})
    found = culprits(watched, row)
    assert all(culprit.waits > 0 for culprit in found)
    assert sum(culprit.wait_ns for culprit in found) <= counted(watched, row).wait_other_ns


def test_waits_behind_ones_own_tasks_are_counted_as_self(
    watched: Watched, make_cgroup: MakeGroup
) -> None:
    row = watched.watch(cpu_engine(group := make_cgroup("crowded")))
    with burning(group):
        worked(group, "burn", "100")
    counters = counted(watched, row)
    assert 0 < counters.wait_self_ns <= counters.wait_ns
    assert group.cpu_id not in {culprit.cgroup for culprit in culprits(watched, row)}


def test_run_time_is_what_the_scheduler_accounts(watched: Watched, make_cgroup: MakeGroup) -> None:
    row = watched.watch(cpu_engine(group := make_cgroup("running")))
    taken_before_ns = taken_by_others_ns()
    # in many turns: where one switch is missed (see `worked`) only one of them is
    with burning(make_cgroup("burning")), burnt(group, 300) as (_, kernels):
        taken_ns = taken_by_others_ns() - taken_before_ns
        run_ns = counted(watched, row).run_ns
    assert 0.9 * kernels.run_ns <= run_ns <= 1.1 * kernels.run_ns + taken_ns + 20_000_000


def test_waiting_time_is_what_the_scheduler_accounts(
    watched: Watched, make_cgroup: MakeGroup
) -> None:
    row = watched.watch(cpu_engine(group := make_cgroup("waiting")))
    with burning(make_cgroup("burning")), burnt(group, 200) as (_, kernels):
        assert counted(watched, row).wait_ns == pytest.approx(kernels.wait_ns, rel=0.1)


def test_a_wait_that_goes_on_on_another_cpu_is_counted_whole(
    watched: Watched, make_cgroup: MakeGroup
) -> None:
    cpus = sorted(os.sched_getaffinity(0))
    if len(cpus) < 2:
        pytest.skip("needs two CPUs, to move a task that waits from one to the other")
    row = watched.watch(cpu_engine(group := make_cgroup("moved")))
    others, ended = make_cgroup("burning"), Event()
    with ExitStack() as stack:
        for cpu in cpus[:2]:
            stack.enter_context(burning(others, cpu))
            stack.enter_context(burning(others, cpu))
        started, before = stack.enter_context(to_burn(group, 300))
        mover = Thread(target=moved_to_and_fro, args=(started.pid, cpus[:2], ended))
        mover.start()
        started.answer()
        ended.set()
        mover.join()
        started.wait_until_it_blocks()
        kernels_ns = accounts(started.pid).wait_ns - before.wait_ns
        seen = counted(watched, row)
    assert kernels_ns > 10_000_000  # with two others on each CPU it waits for far longer
    assert seen.wait_ns == pytest.approx(kernels_ns, rel=0.05)


def moved_to_and_fro(pid: int, cpus: Sequence[int], ended: Event) -> None:
    """Most moves find it waiting: so many others are on either CPU."""
    for cpu in cycle(cpus):
        if ended.wait(0.005):
            return
        os.sched_setaffinity(pid, {cpu})


def test_involuntary_switches_are_those_the_kernel_counts(
    watched: Watched, make_cgroup: MakeGroup
) -> None:
    row = watched.watch(cpu_engine(group := make_cgroup("pushed")))
    with burning(make_cgroup("burning")), burnt(group, 200) as (_, kernels):
        assert counted(watched, row).involuntary == kernels.involuntary > 0


def test_nothing_is_counted_for_a_cgroup_that_is_not_watched(
    watched: Watched, make_cgroup: MakeGroup
) -> None:
    watched.watch(cpu_engine(make_cgroup("empty")))
    before = [counted(watched, row) for row in range(MAX_TARGETS)]
    worked(make_cgroup("unwatched"), "wake", "50")
    assert [counted(watched, row) for row in range(MAX_TARGETS)] == before


def test_who_is_woken_counts_and_not_who_wakes(
    watched: Watched, make_cgroup: MakeGroup, tmp_path: Path
) -> None:
    fifo, woken, waker = tmp_path / "fifo", make_cgroup("woken"), make_cgroup("waker")
    os.mkfifo(fifo)
    for group, other in ((woken, waker), (waker, woken)):
        row = watched.watch(cpu_engine(group))
        reads, writes = ("read", str(fifo)), ("write", str(fifo), "100")
        mine, others = (reads, writes) if group is woken else (writes, reads)
        with task(group, *mine) as one, task(other, *others) as another:
            one.answer()
            another.answer()
            one.wait_until_it_blocks()
            assert 50 <= counted(watched, row).waits <= accounts(one.pid).turns


def test_row_0_is_nobodys(watched: Watched) -> None:
    assert counted(watched, 0) == Counters()


def test_a_task_that_leaves_the_cgroup_is_counted_no_more(
    watched: Watched, make_cgroup: MakeGroup
) -> None:
    row = watched.watch(cpu_engine(group := make_cgroup("left")))
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
    row = watched.watch(cpu_engine(group := make_cgroup("joined")))
    with task(None, "wake", "1000000") as started:
        assert counted(watched, row).waits == 0
        group.take_in(started.pid)
        wait_for(lambda: counted(watched, row).waits > 10)


def test_a_cgroup_that_becomes_a_target_has_its_running_tasks_counted(
    watched: Watched, make_cgroup: MakeGroup
) -> None:
    group = make_cgroup("found")
    with task(group, "wake", "1000000"):
        row = watched.watch(cpu_engine(group))
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
    row = watched.watch(cpu_engine(group := make_cgroup("alone")))
    with task(group, "wake", "1000000"):
        # some wake-ups find the CPU idle: their waits are neither our own nor another's
        wait_for(
            lambda: (now := counted(watched, row)).wait_ns > now.wait_self_ns + now.wait_other_ns
        )
    assert not [each for each in culprits(watched, row) if each.command.startswith("swapper")]


def test_the_histogram_holds_every_wait_and_their_sum(
    watched: Watched, make_cgroup: MakeGroup
) -> None:
    row = watched.watch(cpu_engine(group := make_cgroup("summed")))
    with burning(make_cgroup("burning")):
        worked(group, "wake", "100")
    counters, histogram = counted(watched, row), watched.histogram("wait_histograms", row)
    assert (histogram.count, histogram.sum_ns) == (counters.waits, counters.wait_ns)
    assert counters.waits >= 50


def test_waits_over_the_threshold_are_counted_and_raise_edges_once_a_millisecond(
    watched: Watched, make_cgroup: MakeGroup
) -> None:
    # who takes the CPU at once has not waited, by the scheduler's clock
    edge_ns = upper_bound_ns(0)
    row = watched.watch(cpu_engine(group := make_cgroup("edges"), wait_edge_ns=int(edge_ns)))
    look = watched.look(row)
    with burning(make_cgroup("burning")):
        worked(group, "wake", "100")
        worked(group, "burn", "50")
    watched.consume()
    edges = [edge for edge in watched.edges if edge.slot == row]
    times = [edge.at_ns for edge in edges]
    at_once = watched.histogram("wait_histograms", row).slots[0]
    assert look.counters.waits_over == look.counters.waits - at_once
    assert 0 < len(edges) <= look.counters.waits_over
    assert {edge.kind for edge in edges} == {EdgeKind.WAIT}
    # the task stayed on one CPU
    assert all(later - earlier >= 1_000_000 for earlier, later in pairwise(times))


def test_waits_for_its_own_tasks_are_never_over_the_threshold(
    watched: Watched, make_cgroup: MakeGroup
) -> None:
    row = watched.watch(cpu_engine(group := make_cgroup("crowd"), wait_edge_ns=1))
    look = watched.look(row)
    with burning(group), burning(group):
        wait_for(lambda: look.counters.wait_self_ns > 50_000_000)
        seen = look.counters
    # every other wait is
    assert seen.waits_over < seen.waits


def test_waits_under_the_threshold_raise_nothing(watched: Watched, make_cgroup: MakeGroup) -> None:
    row = watched.watch(cpu_engine(group := make_cgroup("calm"), wait_edge_ns=10**12))
    look = watched.look(row)
    worked(group, "wake", "50")
    watched.consume()
    assert look.counters.waits >= 25
    assert look.counters.waits_over == 0
    assert not [edge for edge in watched.edges if edge.slot == row]
