"""What happens to the machine while programs count: a CPU goes, the clock steps, all stands still,
cgroups come and go.
"""

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bpf.layout import Health
from bpf.libbpf import Libbpf
from bpf.readers import HistogramReader
from bpf.targets import TargetTable
from tests.vm.guest.conftest import HEAVY_ON, Burn, MakeCgroup, wait_until
from tests.vm.guest.test_bpf import (
    Load,
    Server,
    ask,
    counters,
    health,
    server,
    start,
    watch,
)

__all__ = ["server", "start"]

CPU = Path("/sys/devices/system/cpu/cpu1/online")
STEP_S = 3600
STOOD_STILL_S = 2.0
GROUPS = 10_000 if os.uname().release.startswith(HEAVY_ON) else 1_000


@contextmanager
def cpu_unplugged() -> Iterator[None]:
    """The machine with one CPU less than it can have."""
    CPU.write_text("0")
    try:
        yield
    finally:
        CPU.write_text("1")


@contextmanager
def clock_stepped(seconds: int) -> Iterator[None]:
    """The wall clock set to another time."""
    real, steady = time.time(), time.monotonic()
    time.clock_settime(time.CLOCK_REALTIME, real + seconds)
    try:
        yield
    finally:
        time.clock_settime(time.CLOCK_REALTIME, real + time.monotonic() - steady)


def test_a_cpu_that_is_possible_and_offline_loses_no_count(
    start: Load, make_cgroup: MakeCgroup, burn: Burn, lib: Libbpf
) -> None:
    engine = make_cgroup("engine")
    with cpu_unplugged():
        assert os.cpu_count() == 1
        programs = start()
        assert programs.cpus == 2
        watch(programs, engine)
        burners = [burn(engine), burn(engine)]
        wait_until(lambda: counters(programs).waits > 10, "waits with one CPU")
        waits = counters(programs).waits
    # now on both, and what the one counted is still there
    for burner in burners:
        os.sched_setaffinity(burner.pid, {1})
    wait_until(lambda: counters(programs).waits > waits + 10, "waits on the CPU that came")
    for burner in burners:
        burner.kill()
        burner.wait()
    row = TargetTable(programs).rows["engine"]
    histogram = HistogramReader(lib, programs.maps["wait_histograms"], programs.cpus).read(row)
    seen = counters(programs)
    assert (histogram.count, histogram.sum_ns) == (seen.waits, seen.wait_ns)
    before = seen.waits
    with cpu_unplugged():
        assert counters(programs).waits >= before
    assert health(programs) == Health()


@pytest.mark.usefixtures("streaming")
@pytest.mark.parametrize("seconds", [STEP_S, -STEP_S])
def test_a_step_of_the_clock_is_in_no_time_that_is_measured(
    start: Load, server: Server, seconds: int
) -> None:
    programs = start()
    watch(programs, server.cgroup, server.port)
    began = time.monotonic()
    with server.connection() as client:
        client.request("POST", "/40", body=b"{}")
        response = client.getresponse()
        assert response.read(1)
        with clock_stepped(seconds):
            response.read()
            assert ask(client, 3) == 3
        assert ask(client, 3) == 3
    wait_until(lambda: counters(programs).ends_complete == 3, "the streams' ends")
    took_ns = (time.monotonic() - began) * 1e9
    seen = counters(programs)
    assert (seen.chunks, seen.gaps) == (46, 43)
    assert 0 < seen.ttft_sum_ns + seen.gap_sum_ns < took_ns


@pytest.mark.usefixtures("streaming")
def test_an_engine_that_stood_still_has_one_long_gap_and_loses_nothing(
    start: Load, server: Server
) -> None:
    programs = start()
    watch(programs, server.cgroup, server.port)
    pids = [int(pid) for pid in (server.cgroup / "cgroup.procs").read_text().split()]
    with server.connection() as client:
        client.request("POST", "/40", body=b"{}")
        response = client.getresponse()
        read = response.read(1)
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        time.sleep(STOOD_STILL_S)
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
        assert (read + response.read()).count(b"data:") == 40
    wait_until(lambda: counters(programs).ends_complete == 1, "the stream's end")
    seen = counters(programs)
    assert (seen.chunks, seen.gaps, seen.ends_early) == (40, 39, 0)
    assert seen.gap_sum_ns >= STOOD_STILL_S * 1e9
    assert health(programs).lost_streams == 0


def test_thousands_of_cgroups_that_come_and_go_fill_no_map(
    start: Load, make_cgroup: MakeCgroup, burn: Burn
) -> None:
    engine, others = make_cgroup("engine"), make_cgroup("others")
    programs = start()
    watch(programs, engine)
    burn(engine)
    burn(engine)
    wait_until(lambda: counters(programs).waits > 10, "waits")
    before = counters(programs)
    join = 'echo $$ >"$1/cgroup.procs"; i=0; while [ $i -lt 2000 ]; do i=$((i+1)); done'
    for number in range(GROUPS):
        # plain names: pathlib would take most of the time, where the CPU is emulated
        group = f"{others}/g{number}"
        os.mkdir(group)  # noqa: PTH102
        if number % 1000 == 0:
            # one that takes the engine's CPU, so that it is a culprit by an id that is gone after
            subprocess.run(["taskset", "-c", "0", "sh", "-c", join, "join", group], check=True)
        os.rmdir(group)  # noqa: PTH106
    assert list(others.glob("g*")) == []
    wait_until(lambda: counters(programs).waits > before.waits, "waits after that")
    assert health(programs) == Health()
    assert TargetTable(programs).rows.keys() == {"engine"}
