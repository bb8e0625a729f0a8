"""What each program does on this kernel, by value: against the scheduler's own accounts, the
clients' own clocks and the network's own counts.

Most are the host's tests, run here on another kernel. What netem and a late handshake are needed
for is in test_netem.py and test_bpf.py.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

import pytest

from tests.kernel.bpf.child import child
from tests.kernel.bpf.conftest import engine, flow, watched
from tests.kernel.bpf.scheduling import CPU, accounts, burning, burnt, cpu_engine
from tests.kernel.bpf.test_network import (
    test_a_reset_by_the_client_is_one_received,
    test_a_reset_by_the_engine_is_one_sent,
)
from tests.kernel.bpf.test_sched import (
    test_a_wait_that_goes_on_on_another_cpu_is_counted_whole,
    test_who_is_woken_counts_and_not_who_wakes,
)
from tests.kernel.bpf.test_socket import (
    test_a_request_waits_until_the_engine_reads_it,
    test_every_write_is_counted,
    writer,
)
from tests.kernel.bpf.test_stream_ends import (
    test_a_server_that_closes_in_mid_stream_ended_it,
    test_a_stream_whose_closing_was_missed_ends_with_its_socket,
    unnoticed,
)
from tests.kernel.bpf.test_stream_times import (
    test_gaps_are_at_least_the_servers_pauses_and_together_at_most_the_clients_wait,
    test_ttft_is_at_least_the_servers_pause_and_at_most_the_clients_wait,
)
from tests.kernel.bpf.watched import Watched
from tests.kernel.conftest import MakeGroup, make_cgroup
from tests.vm.guest import test_bpf, test_netem

__all__ = ["engine", "flow", "make_cgroup", "unnoticed", "watched", "writer"]

FORKS = 20


def test_turns_waits_run_time_and_preemptions_are_the_schedulers(
    watched: Watched, make_cgroup: MakeGroup
) -> None:
    row = watched.watch(cpu_engine(group := make_cgroup("pushed")))
    with burning(make_cgroup("burning")), burnt(group, 200) as (_, kernels):
        seen = watched.reader.counters(row)
    assert kernels.involuntary > 0
    assert seen.involuntary == kernels.involuntary
    assert seen.waits == pytest.approx(kernels.turns, abs=1)
    assert seen.wait_ns == pytest.approx(kernels.wait_ns, rel=0.1)
    # the scheduler leaves out the time of interrupts
    assert 0.9 * kernels.run_ns <= seen.run_ns <= 1.25 * kernels.run_ns


def test_processes_that_are_new_wait_for_their_first_turn(
    watched: Watched, make_cgroup: MakeGroup
) -> None:
    row = watched.watch(cpu_engine(group := make_cgroup("forking")))
    with child("task.py", "fork", str(FORKS), group=group, cpu=CPU) as started:
        started.wait_until_it_blocks()
        before = accounts(started.pid).turns
        started.tell()
        children = int(started.answer())
        started.answer()
        started.wait_until_it_blocks()
        turns = children + accounts(started.pid).turns - before
        waits = watched.reader.counters(row).waits
    assert children >= FORKS
    # without those of new processes it would be half
    assert waits == pytest.approx(turns, rel=0.1)


PROVED: Final[Mapping[str, tuple[Callable[..., Any], ...]]] = {
    "switch_tasks": (
        test_turns_waits_run_time_and_preemptions_are_the_schedulers,
        test_who_is_woken_counts_and_not_who_wakes,
        test_processes_that_are_new_wait_for_their_first_turn,
        test_a_wait_that_goes_on_on_another_cpu_is_counted_whole,
    ),
    "stream_in": (
        test_ttft_is_at_least_the_servers_pause_and_at_most_the_clients_wait,
        test_bpf.test_a_request_that_completes_the_handshake_is_counted_like_the_next,
    ),
    "stream_out": (
        test_bpf.test_a_stream_is_counted_exactly,
        test_gaps_are_at_least_the_servers_pauses_and_together_at_most_the_clients_wait,
    ),
    "socket_state": (test_a_server_that_closes_in_mid_stream_ended_it,),
    "socket_gone": (test_a_stream_whose_closing_was_missed_ends_with_its_socket,),
    "retransmit": (
        test_netem.test_segments_sent_again_are_those_the_kernel_and_the_socket_count,
        test_netem.test_loss_probes_are_told_from_timeouts,
    ),
    "synack": (test_netem.test_synacks_sent_again_are_apart_and_exactly_the_kernels,),
    "reset_sent": (test_a_reset_by_the_engine_is_one_sent,),
    "reset_received": (test_a_reset_by_the_client_is_one_received,),
    "engine_read": (test_a_request_waits_until_the_engine_reads_it,),
    "engine_write": (test_every_write_is_counted,),
}
"""Each program, and the tests of what it counts."""


def test_every_program_that_is_loaded_has_its_effect_proved(watched: Watched) -> None:
    assert watched.programs.programs.keys() <= PROVED.keys()
