import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from controller.limits import cgroup, cpu
from controller.limits.cgroup import Group
from controller.limits.guard import start_guard
from controller.limits.limiter import Limiter

from .conftest import MakeGroup

pytestmark = pytest.mark.kernel

HOLDER = Path(__file__).with_name("holder.py")
TIMEOUT_MS = 300

Process = subprocess.Popen[bytes]


@pytest.fixture
def groups(make_group: MakeGroup) -> list[Group]:
    """Three groups with originals of their own."""
    found = [make_group(name) for name in ("engine", "neighbour-1", "neighbour-2")]
    for group, weight, cores in zip(found, (200, 100, 50), (None, 1.5, 1.0), strict=True):
        cpu.write_weight(group, weight)
        cpu.write_quota(group, cores)
    return found


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "undo.json"


def texts(groups: list[Group]) -> list[str]:
    names = (cpu.WEIGHT_FILES, cpu.QUOTA_FILES)
    return [
        cgroup.read(group.directory / name[group.version]) for group in groups for name in names
    ]


def becomes(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 10
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True


@contextmanager
def held(
    mode: str, path: Path, groups: list[Group], timeout_ms: int = TIMEOUT_MS
) -> Iterator[tuple[Process, Process, int]]:
    """A guard, a holder in `mode`, and the pipe's end that the agent would hold."""
    guard, write_fd = start_guard(path, timeout_ms)
    command = (sys.executable, str(HOLDER), mode, str(path), str(write_fd))
    with guard:
        try:
            with subprocess.Popen(
                (*command, *(group.path for group in groups)),
                stdout=subprocess.PIPE,
                pass_fds=(write_fd,),
            ) as holder:
                try:
                    assert holder.stdout is not None
                    assert holder.stdout.readline() == b"r\n"
                    yield guard, holder, write_fd
                finally:
                    holder.kill()
        finally:
            os.close(write_fd)
            guard.wait(10)


@pytest.mark.parametrize("moment", range(25))
def test_a_holder_killed_at_a_random_moment_leaves_every_original(
    groups: list[Group], path: Path, moment: int
) -> None:
    originals = texts(groups)
    with held("busy", path, groups) as (guard, holder, _):
        time.sleep(random.Random(moment).uniform(0, 0.05))
        holder.kill()
    assert guard.returncode == 0
    assert texts(groups) == originals
    assert not path.exists()


@pytest.mark.parametrize("which", ["the same file", "another file"])
def test_a_holder_killed_between_record_and_write_leaves_every_original(
    groups: list[Group], path: Path, which: str
) -> None:
    originals = texts(groups)
    chosen = groups[:1] if which == "the same file" else groups
    with held("killed", path, chosen, timeout_ms=60_000) as (guard, holder, _):
        assert holder.wait(10) == -signal.SIGKILL
        assert cpu.read_weight(groups[0]) == 300
        assert '"second"' in path.read_text()
    assert guard.returncode == 0
    assert texts(groups) == originals
    assert not path.exists()


def test_signals_that_stop_services_do_not_keep_the_guard_from_its_work(
    groups: list[Group], path: Path
) -> None:
    originals = texts(groups)
    with held("steady", path, groups) as (guard, holder, _):
        assert becomes(path.exists)
        for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            guard.send_signal(each)
        holder.kill()
    assert texts(groups) == originals


def test_a_dead_controller_is_undone_though_the_agent_lives(
    groups: list[Group], path: Path
) -> None:
    originals = texts(groups)
    with held("steady", path, groups) as (guard, holder, _):
        assert becomes(lambda: cpu.read_weight(groups[0]) == 500)
        holder.kill()
        assert becomes(lambda: texts(groups) == originals)
        assert guard.poll() is None
    assert guard.returncode == 0


def test_a_holder_that_beats_keeps_its_limits(groups: list[Group], path: Path) -> None:
    with held("steady", path, groups, timeout_ms=1_500):
        assert becomes(lambda: cpu.read_weight(groups[0]) == 500)
        seen = set()
        for _ in range(200):
            seen.add(cpu.read_weight(groups[0]))
            time.sleep(0.015)
    assert seen == {500}


def test_a_stopped_holder_is_undone_and_when_continued_applies_its_limit_afresh(
    groups: list[Group], path: Path
) -> None:
    originals = texts(groups)
    with held("steady", path, groups) as (_, holder, _):
        assert becomes(lambda: cpu.read_weight(groups[0]) == 500)
        holder.send_signal(signal.SIGSTOP)
        assert becomes(lambda: texts(groups) == originals)
        holder.send_signal(signal.SIGCONT)
        assert becomes(lambda: cpu.read_weight(groups[0]) == 500)
        holder.kill()
        assert holder.stdout is not None
        assert set(holder.stdout.readlines()) == {b"Lapsed\n"}
    assert texts(groups) == originals


def test_a_stopped_holder_yields_to_somebody_who_wrote_meanwhile(
    groups: list[Group], path: Path
) -> None:
    with held("steady", path, groups) as (_, holder, _):
        assert becomes(lambda: cpu.read_weight(groups[0]) == 500)
        holder.send_signal(signal.SIGSTOP)
        cpu.write_weight(groups[0], 777)
        assert becomes(lambda: not path.exists())
        holder.send_signal(signal.SIGCONT)
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"Foreign\n"
        time.sleep(0.1)
        assert cpu.read_weight(groups[0]) == 777
        assert not path.exists()
    assert cpu.read_weight(groups[0]) == 777


def test_a_holder_stopped_with_the_list_locked_and_killed_after_its_write_is_undone(
    groups: list[Group], path: Path
) -> None:
    originals = texts(groups)
    with held("stopped", path, groups) as (guard, holder, _):
        assert becomes(lambda: path.exists() and '"second"' in path.read_text())
        assert becomes(lambda: texts(groups) == originals)
        assert '"second"' in path.read_text()
        holder.send_signal(signal.SIGCONT)
        assert holder.wait(10) == -signal.SIGKILL
        assert becomes(lambda: texts(groups) == originals and not path.exists())
        assert guard.poll() is None


@pytest.mark.parametrize("moment", range(8))
def test_a_holder_stopped_at_a_random_moment_is_undone(
    groups: list[Group], path: Path, moment: int
) -> None:
    originals = texts(groups)
    with held("busy", path, groups) as (guard, holder, _):
        time.sleep(random.Random(moment).uniform(0.02, 0.05))
        holder.send_signal(signal.SIGSTOP)
        assert becomes(lambda: texts(groups) == originals)
    assert guard.returncode == 0
    assert texts(groups) == originals
    assert not path.exists()


def test_a_guard_whose_stderr_is_gone_works_all_the_same(groups: list[Group], path: Path) -> None:
    originals = texts(groups)
    Limiter(path).set_weight(groups[0], 500, "a test")
    (read_fd, write_fd), (gone_fd, stderr_fd) = os.pipe(), os.pipe()
    os.close(gone_fd)
    options = ("--undo", str(path), "--fd", str(read_fd), "--timeout-ms", "60000")
    with subprocess.Popen(
        (sys.executable, "-m", "controller.limits.guard", *options),
        stdout=subprocess.DEVNULL,
        stderr=stderr_fd,
        pass_fds=(read_fd,),
    ) as guard:
        for fd in (read_fd, write_fd, stderr_fd):
            os.close(fd)
    assert guard.returncode == 0
    assert texts(groups) == originals
