"""The controller's loop over a real v2 tree: it yields, and freezes what systemd started.

The steps are those of tests/kernel/limits/test_two_controllers.py on v1.
"""

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from agent.discovery import Discovery
from agent.targets import neighbour_target
from controller.actions import Freeze
from controller.limits.cgroup import CgroupError, cpu_group, read_hierarchies
from controller.limits.holds import MOST_TAKEN_BACK
from controller.neighbour_limits import Hold, NeighbourView, tighten
from controller.policy import parse_policy
from controller.wire import NeighbourTarget
from tests.kernel.limits.turning import (
    SETTERS,
    Turning,
    turning,
    yields_to_a_value,
    yields_to_the_first_value,
)
from tests.vm.guest.conftest import ROOT, cgroups, cpu_stat, wait_until

POLICY = """
[neighbours.batch]
slice = "sitsbatch.slice"
class = "slo-a"
min_cores = 1.0
"""
FREEZES = 3
PATIENCE_S = 400


@pytest.fixture
def loop(tmp_path: Path) -> Iterator[Turning]:
    with cgroups("+cpu +memory +io") as make:
        path = f"/{make('neighbour').relative_to(ROOT)}"
        found = read_hierarchies()
        with turning(found, cpu_group(found, path), tmp_path / "undo.json") as made:
            yield made


@pytest.mark.parametrize("kind", SETTERS)
def test_another_controller_has_its_file_within_a_second(loop: Turning, kind: str) -> None:
    try:
        SETTERS[kind](loop.limiter, loop.group)
    except CgroupError as error:
        pytest.skip(f"no such limit on this kernel: {error}")
    loop.limiter.release_all()
    yields_to_the_first_value(loop, kind, MOST_TAKEN_BACK)
    loop.limiter.reset()
    yields_to_a_value(loop, kind)


@contextmanager
def batch_unit(name: str) -> Iterator[str]:
    """A unit in a slice that burns the CPU."""
    burn = ("/bin/sh", "-c", "while :; do :; done")
    where = ("--slice=sitsbatch.slice", f"--unit={name}", "-p", "CPUWeight=100")
    subprocess.run(
        ["systemd-run", "--quiet", "--collect", *where, *burn], check=True, timeout=PATIENCE_S
    )
    try:
        yield name
    finally:
        subprocess.run(["systemctl", "kill", "--signal=KILL", name], check=False)


def batch_target() -> NeighbourTarget:
    """The one unit of the slice, as the agent tells the controller of it."""
    policy = parse_policy(POLICY, "test")
    (found,) = Discovery(policy, read_hierarchies()).look().neighbours
    return neighbour_target(found, 2, policy, policy.neighbours[0])


def freezes(loop: Turning, name: str) -> int:
    loop.hands.follow_freezes()
    return int(loop.hands.status(name)["freezes"])


def test_a_unit_is_frozen_as_its_class_allows_and_is_systemds_all_the_time(
    tmp_path: Path,
) -> None:
    found = read_hierarchies()
    with batch_unit("sits-batch.service") as unit:
        target = batch_target()
        assert (target.service_class, target.freeze_ms, target.retry_ms) == ("slo-a", 200, 50)
        assert target.cgroup is not None
        group = cpu_group(found, target.cgroup)
        its = (target.cpu_share, target.freeze_ms, target.retry_ms)
        last = Freeze(target.name, 5_000)
        view = NeighbourView(target.name, 1.0, target.min_cores, *its)
        with turning(found, group, tmp_path / "undo.json", target) as loop:
            assert loop.limiter.prepare_to_freeze(wait_ms=60_000)
            used: list[int] = []
            hold = Hold()
            ends = time.monotonic() + PATIENCE_S
            while freezes(loop, target.name) < FREEZES:
                assert time.monotonic() < ends
                # the engine always waits for more than a core
                now_ns = time.monotonic_ns()
                hold, actions = tighten([view], 1, hold, 2 * 10**9, 10**9, now_ns)
                for action in actions:
                    assert action == Freeze(target.name, target.freeze_ms)
                    used.append(cpu_stat(group.directory)["usage_usec"])
                    # one that comes too late to the freezer, in emulation, is refused by it
                    loop.hands.do(action, "test")
                time.sleep(0.01)
            # it ran between every two of them
            assert used == sorted(set(used))
            wait_until(lambda: (group.directory / "cgroup.freeze").read_text() == "0\n", "a thaw")
            assert subprocess.run(["systemctl", "is-active", unit], check=False).returncode == 0
            # and systemd can end it while it stands still
            wait_until(lambda: loop.hands.do(last, "test") is None, "a last freeze")
            subprocess.run(["systemctl", "stop", unit], check=True, timeout=PATIENCE_S)
            wait_until(lambda: not group.directory.exists(), "the unit's cgroup gone")
            loop.hands.follow_freezes()
            assert loop.limiter.check() == ()
            assert loop.limiter.held() == ()
