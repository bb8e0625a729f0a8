"""What the bench reads of a process's programs, against our own handle on them."""

import os

import pytest

from bpf.libbpf import count_runs, program_runs
from tests.bench.cost.counting import counts, since
from tests.kernel.bpf.scheduling import worked
from tests.kernel.bpf.watched import Watched

pytestmark = pytest.mark.kernel


def test_runs_are_found_by_tracepoint_and_are_those_of_the_program_there(watched: Watched) -> None:
    programs = watched.programs
    fd = count_runs(programs.lib)
    try:
        before = counts(os.getpid())
        mine_before = program_runs(programs.lib, programs.programs["switch_tasks"])
        worked(None, "wake", "50")
    finally:
        os.close(fd)
    # nothing is counted any more: both readings are of the same
    found = since(before, counts(os.getpid()))
    mine = program_runs(programs.lib, programs.programs["switch_tasks"])
    ran = found.by_tracepoint["sched_switch"]
    assert 50 <= mine.count - mine_before.count <= ran.count
    assert found.most >= ran.count
    cost_ns = found.ns("sched_switch")
    assert cost_ns is not None
    assert 10 < cost_ns < 100_000
