"""Run-queue delay on kernels without task storage, and where a switch does not tell the state."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from bpf.features import Features
from bpf.libbpf import Libbpf
from bpf.loader import Plan, load
from tests.kernel.bpf.conftest import MAX_TARGETS
from tests.kernel.bpf.scheduling import burning, burnt, cpu_engine, wait_for
from tests.kernel.bpf.watched import Watched, watching
from tests.kernel.conftest import MakeGroup

pytestmark = pytest.mark.kernel


@pytest.fixture(scope="module")
def watched(lib: Libbpf, features: Features) -> Iterator[Watched]:
    """Loaded as if this kernel were older."""
    older = replace(features, task_storage=False, prev_state=False)
    with watching(load(lib, Plan(older, MAX_TARGETS, None))) as made:
        yield made


def test_waiting_and_running_are_counted_all_the_same(
    watched: Watched, make_cgroup: MakeGroup
) -> None:
    row = watched.watch(cpu_engine(group := make_cgroup("waiting")))
    with burning(make_cgroup("burning")), burnt(group, 200) as (_, kernels):
        counters = watched.reader.counters(row)
    assert counters.wait_ns == pytest.approx(kernels.wait_ns, rel=0.1)
    assert counters.run_ns >= 0.9 * kernels.run_ns
    assert counters.involuntary == pytest.approx(kernels.involuntary, rel=0.1, abs=3)


def test_the_state_of_a_dead_thread_is_forgotten(watched: Watched, make_cgroup: MakeGroup) -> None:
    states = watched.programs.map("known_tasks_by_pid")
    watched.watch(cpu_engine(group := make_cgroup("mortal")))
    with burnt(group, 10) as (process, _):
        key = process.pid.to_bytes(4, "little")
        assert key in states.keys()  # noqa: SIM118 - a map of the kernel's, not a dict
    wait_for(lambda: key not in states.keys())  # noqa: SIM118 - as above
