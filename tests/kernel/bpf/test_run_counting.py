"""Runs of our programs, counted by the kernel for a second in every ten."""

import pytest

from bpf.libbpf import Runs
from bpf.run_counting import COUNTED_S, EVERY_S, RunCounting
from tests.kernel.bpf.scheduling import worked
from tests.kernel.bpf.watched import Watched

pytestmark = pytest.mark.kernel


def switches(counting: RunCounting) -> Runs:
    return counting.runs()["switch_tasks"]


def test_runs_are_counted_within_the_time_for_it_and_not_after(watched: Watched) -> None:
    counting = RunCounting(watched.programs)
    assert counting.runs().keys() == watched.programs.programs.keys()
    counting.tick(100.0)
    worked(None, "wake", "50")
    counting.tick(100.0 + COUNTED_S / 2)
    assert switches(counting).count == 0, "shown only as a whole"
    counting.tick(100.0 + COUNTED_S)
    first = switches(counting)
    assert first.count >= 50
    assert 10 < first.ns / first.count < 100_000
    counting.tick(100.0 + COUNTED_S * 2)
    worked(None, "wake", "50")
    counting.tick(100.0 + EVERY_S - COUNTED_S)
    assert switches(counting) == first
    assert counting.counted_s == COUNTED_S


def test_what_is_counted_later_is_added(watched: Watched) -> None:
    counting = RunCounting(watched.programs)
    totals = []
    for begin_s in (0.0, EVERY_S, 2 * EVERY_S):
        counting.tick(begin_s)
        worked(None, "wake", "50")
        # a loop that was held up counts for longer, and says so
        counting.tick(begin_s + 2 * COUNTED_S)
        totals.append(switches(counting).count)
    assert totals[0] >= 50
    assert totals[1] >= totals[0] + 50
    assert totals[2] >= totals[1] + 50
    assert counting.counted_s == 3 * 2 * COUNTED_S


def test_closing_in_the_midst_leaves_nothing_open_and_may_be_done_again(watched: Watched) -> None:
    counting = RunCounting(watched.programs)
    counting.tick(0.0)
    counting.close()
    counting.close()
    assert (switches(counting).count, counting.counted_s) == (0, 0)
