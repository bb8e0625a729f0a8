"""No freeze lasts longer than its bound, whoever of those who could end it is killed or stopped.

Judged by the frozen work itself, which notes how long it was gone, and by the kernel's own record
where it keeps one. The machine's noise is measured beside it, by a process that only sleeps and is
never frozen, so that a busy machine fails nothing.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from controller.limits.cgroup import Group, Hierarchies
from controller.limits.change import shown
from controller.limits.freezing import THAWED, freeze_change
from controller.limits.places import place_of
from controller.limits.undo import run_undo

from .conftest import Busy

pytestmark = pytest.mark.kernel

RIG = str(Path(__file__).with_name("freeze_rig.py"))
BOUNDS_MS = (20, 40, 60, 80)
SECOND_MS = 10 + 2 * 10
"""What the second line may take: its grace, and two turns of the slowest who looks (10 ms)."""

PARTS = ("agent", "guard", "controller", "freezer")


@dataclass(slots=True)
class Rig:
    """The processes that freeze, told by the pids they wrote down."""

    directory: Path
    groups: list[Group]
    one_freezer: Hierarchies
    agent: "subprocess.Popen[bytes] | None" = None

    def start(self) -> None:
        """Start the agent, which starts the others."""
        named = [f"{g.path}={b}" for g, b in zip(self.groups, BOUNDS_MS, strict=True)]
        files = [self.directory / name for name in ("undo.json", "pids", "count")]
        v1 = {"FREEZER": "v1"} if self.one_freezer.v2 is None else {}
        # At the usual priority from its first instruction on, whatever the tests run at.
        command: list[str | Path] = [
            "chrt",
            "-o",
            "0",
            sys.executable,
            RIG,
            "agent",
            *files,
            *named,
        ]
        self.agent = subprocess.Popen(command, env=os.environ | v1)

    def freezes(self) -> list[str]:
        """A line for each freeze so far: the freezer's pid and the group."""
        with suppress(FileNotFoundError):
            return (self.directory / "count").read_text().splitlines()
        return []

    def pids(self) -> dict[str, int]:
        """Who runs now, as far as was written down."""
        pids: dict[str, int] = json.loads((self.directory / "pids").read_text())
        return pids | {"freezer": int(self.freezes()[-1].split()[0])}

    def send(self, parts: tuple[str, ...], number: int) -> None:
        """Send a signal to some of them at once."""
        pids = self.pids()
        for part in parts:
            with suppress(ProcessLookupError):
                os.kill(pids[part], number)

    def await_freezes(self, count: int) -> None:
        """Until there are so many; the agent is started again if it was killed."""
        deadline = time.monotonic() + 120
        while len(self.freezes()) < count:
            assert time.monotonic() < deadline
            assert self.agent is not None
            if self.agent.poll() is not None:
                self.start()
            time.sleep(0.005)

    def end(self) -> None:
        """Kill all that can supervise, and wait for the freezer to end by itself."""
        if self.freezes():
            self.send(("agent", "guard", "controller"), signal.SIGKILL)
        if self.agent is not None:
            self.agent.kill()
            self.agent.wait()


@contextmanager
def started(directory: Path, groups: list[Group], one_freezer: Hierarchies) -> Iterator[Rig]:
    rig = Rig(directory, groups, one_freezer)
    rig.start()
    try:
        rig.await_freezes(1)
        yield rig
    finally:
        rig.end()


def work(busy: Busy, log: Path) -> Group:
    log.touch()
    mode = "noise" if log.name == "noise" else "work"
    return busy([sys.executable, RIG, mode, str(log)])


def worst_ms(log: Path) -> float:
    return max((int(line) / 1e6 for line in log.read_text().splitlines()), default=0.0)


def kernel_ms(group: Group, one_freezer: Hierarchies) -> float | None:
    """How long the group was frozen in all, where the kernel counts that (6.18, v2)."""
    file = place_of(one_freezer, group, "freezer").directory / "cgroup.stat.local"
    if not file.exists() or "frozen_usec" not in file.read_text():
        return None
    figures = dict(line.split() for line in file.read_text().splitlines())
    return int(figures["frozen_usec"]) / 1e3


@pytest.mark.parametrize(
    ("freezes", "at_once"),
    [
        pytest.param(100, (1, 2, 3), id="100, up to three at once"),
        pytest.param(1_000, (1,), id="1000, one at a time", marks=pytest.mark.slow),
        pytest.param(300, (2, 3), id="300, two or three at once", marks=pytest.mark.slow),
    ],
)
def test_no_freeze_outlasts_its_bound_whoever_is_killed_or_stopped(
    freezes: int, at_once: tuple[int, ...], busy: Busy, one_freezer: Hierarchies, tmp_path: Path
) -> None:
    chance = random.Random(freezes)
    logs = [tmp_path / f"work-{bound}" for bound in BOUNDS_MS] + [tmp_path / "noise"]
    *groups, _ = [work(busy, log) for log in logs]
    done: Counter[str] = Counter()
    with started(tmp_path, groups, one_freezer) as rig:
        while (count := len(rig.freezes())) < freezes:
            rig.await_freezes(count + chance.randrange(5, 30))
            time.sleep(chance.uniform(0, 0.05))
            parts = tuple(chance.sample(PARTS, chance.choice(at_once)))
            stops = len(parts) == 1 and chance.random() < 0.3
            rig.send(parts, signal.SIGSTOP if stops else signal.SIGKILL)
            done["stopped" if stops else f"{len(parts)} killed"] += 1
            if stops:
                time.sleep(chance.uniform(0.1, 0.5))
                rig.send(parts, signal.SIGCONT)
        rig.await_freezes(count + 10)  # all four are there again, before three are killed
        count = len(rig.freezes())
    places = [place_of(one_freezer, group, "freezer") for group in groups]
    files = [freeze_change(place).file for place in places]
    deadline = time.monotonic() + 10
    while any(shown(file, "") != THAWED[file.name] for file in files):
        assert time.monotonic() < deadline, "the freezer alone did not thaw"
        time.sleep(0.005)
    assert run_undo(tmp_path / "undo.json").complete
    *gone, noise = [worst_ms(log) for log in logs]
    over = [ms - bound for ms, bound in zip(gone, BOUNDS_MS, strict=True)]
    kernel = [kernel_ms(group, one_freezer) for group in groups]
    print(
        f"{count} freezes, {dict(done)}; gone {gone}, over {over}, noise {noise}, kernel {kernel}"
    )
    assert max(gone) > BOUNDS_MS[0] / 2, "nothing was ever frozen"
    assert max(over) <= SECOND_MS + 3 * noise
