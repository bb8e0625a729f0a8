import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from controller.limits.cgroup import cpu_group, read_hierarchies
from controller.limits.cpu import DEFAULT_WEIGHT, read_weight
from demo.rig import NEIGHBOURS, Cores, choose_cores

ROOT = Path(__file__).parents[3]
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="makes cgroups, which only root may")

RUN = """
import sys, time
from pathlib import Path
from demo.rig import Rig, RigError

name, run_root, what = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
try:
    with Rig(name, run_root) as rig:
        if what != "nothing":
            processes = rig.start_neighbours()
            agent = rig.start("agent", ["sleep", "60"], rig.cores.agent, rig.groups.procs("agent"))
            rig.log("mounts").write_text(Path("/proc/self/mountinfo").read_text())
            print(*[each.pid for each in [*processes, agent]], flush=True)
            while True:
                time.sleep(1)
except KeyboardInterrupt:
    print("interrupted")
except RigError as error:
    sys.exit(f"rig: {error}")
"""


class Place:
    """A name and a run directory of a rig that is nobody else's."""

    def __init__(self, run_root: Path) -> None:
        self.name = f"sits-demo-test-{os.getpid()}"
        self.run_root = run_root
        mounts = (read_hierarchies().v1_cpu, read_hierarchies().v2)
        self.groups = [mount.point / self.name for mount in mounts if mount is not None]
        self._rigs: list[subprocess.Popen[str]] = []

    def start(self, what: str) -> subprocess.Popen[str]:
        rig = subprocess.Popen(
            [sys.executable, "-c", RUN, self.name, str(self.run_root), what],
            cwd=ROOT,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self._rigs.append(rig)
        return rig

    def clear(self) -> None:
        """End every rig, and have one more remove what they left."""
        for rig in self._rigs:
            with rig:
                rig.kill()
        with self.start("nothing") as last:
            last.communicate()

    def started(self) -> tuple[subprocess.Popen[str], list[int]]:
        """A rig with its neighbours and an agent running, and their process ids."""
        rig = self.start("everything")
        assert rig.stdout is not None
        line = rig.stdout.readline()
        assert line, rig.communicate()[1]
        return rig, [int(word) for word in line.split()]

    def left(self) -> list[Path]:
        return [each for each in (*self.groups, *self.run_root.iterdir()) if each.exists()]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    found = Place(tmp_path)
    yield found
    found.clear()


def until(holds: Callable[[], bool]) -> bool:
    end = time.monotonic() + 10
    while not (done := holds()) and time.monotonic() < end:
        time.sleep(0.01)
    return done


def runs(pid: int) -> bool:
    with suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def killed(place: Place) -> list[int]:
    """A rig ended by a signal nobody can catch; the processes it had."""
    rig, pids = place.started()
    rig.kill()
    rig.communicate()
    return pids


@pytest.mark.parametrize(
    ("available", "cores"),
    [
        ({0}, Cores(0, 0, (0,))),
        ({0, 1}, Cores(1, 0, (0,))),
        ({2, 5, 7}, Cores(7, 2, (5,))),
        (range(8), Cores(7, 0, (1, 2, 3, 4, 5, 6))),
    ],
)
def test_the_engine_shares_no_core_with_the_client_where_there_are_two(
    available: set[int], cores: Cores
) -> None:
    assert choose_cores(available) == cores


@needs_root
@pytest.mark.kernel
def test_processes_are_in_their_groups_on_their_cores(place: Place) -> None:
    rig, pids = place.started()
    cores = choose_cores(os.sched_getaffinity(0))
    names = [f"neighbour-{number}" for number in range(1, NEIGHBOURS + 1)]
    assert until(
        lambda: all(os.sched_getaffinity(pid) == {cores.engine} for pid in pids[:NEIGHBOURS])
    )
    homes = [
        (directory / name / "cgroup.procs", str(pid))
        for directory in place.groups
        for name, pid in zip([*names, "agent"], pids, strict=True)
    ]
    assert until(lambda: all(file.read_text().split() == [pid] for file, pid in homes))
    for name in ("engine", *names):
        group = cpu_group(read_hierarchies(), f"/{place.name}/{name}")
        assert read_weight(group) == DEFAULT_WEIGHT
    rig.send_signal(signal.SIGINT)
    rig.communicate()


@needs_root
@pytest.mark.kernel
def test_an_interrupted_rig_leaves_nothing(place: Place) -> None:
    rig, pids = place.started()
    rig.send_signal(signal.SIGINT)
    assert rig.communicate(timeout=20) == ("interrupted\n", "")
    assert not any(map(runs, pids))
    assert place.left() == []


@needs_root
@pytest.mark.kernel
def test_the_processes_of_a_killed_rig_end_with_it(place: Place) -> None:
    pids = killed(place)
    assert until(lambda: not any(map(runs, pids)))


@needs_root
@pytest.mark.kernel
def test_the_next_rig_removes_what_a_killed_one_left(place: Place) -> None:
    killed(place)
    assert place.left() != []
    _, error = place.start("nothing").communicate(timeout=20)
    assert error == ""
    assert place.left() == []


@needs_root
@pytest.mark.kernel
def test_the_next_rig_ends_what_still_runs_in_a_group(place: Place) -> None:
    killed(place)
    survivor = subprocess.Popen(["sleep", "60"])
    for directory in place.groups:
        (directory / "engine" / "cgroup.procs").write_text(str(survivor.pid))
    place.start("nothing").communicate(timeout=20)
    assert survivor.wait(10) == -signal.SIGKILL
    assert place.left() == []


@needs_root
@pytest.mark.kernel
def test_a_second_rig_leaves_the_first_alone(place: Place) -> None:
    rig, pids = place.started()
    second = place.start("nothing")
    _, error = second.communicate(timeout=20)
    assert (second.returncode, "another" in error) == (1, True)
    assert all(map(runs, pids))
    rig.send_signal(signal.SIGINT)
    rig.communicate()


@needs_root
@pytest.mark.kernel
def test_its_mounts_are_seen_by_nobody_else(place: Place) -> None:
    rig, _ = place.started()
    point = str(place.run_root / place.name / "bpf")
    assert until((place.run_root / place.name / "mounts.log").exists)
    assert point in (place.run_root / place.name / "mounts.log").read_text()
    assert point not in Path("/proc/self/mountinfo").read_text()
    rig.send_signal(signal.SIGINT)
    rig.communicate()
