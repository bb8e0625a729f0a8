"""What the guest's tests share: cgroups of their own, and processes that use the CPU in them."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from bpf.features import Features, probe
from bpf.libbpf import Libbpf

ROOT = Path("/sys/fs/cgroup")
HEAVY_ON = "6.1."
"""What takes long and differs little between kernels is tested on this one only."""

LONG_S = 5
"""A fixture that takes so long is told too."""

MakeCgroup = Callable[[str], Path]
Burn = Callable[[Path], "subprocess.Popen[bytes]"]


def pytest_addoption(parser: pytest.Parser) -> None:
    """How often the service is started and ended again."""
    parser.addoption("--rounds", type=int, default=2, help="starts and ends of the service")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Tell the console how each test went: a run can be followed, and one that hangs be found."""
    if report.when == "call" or report.failed or report.duration >= LONG_S:
        on_console(f"{report.outcome} {report.nodeid} ({report.when}, {report.duration:.0f} s)")


@pytest.fixture(scope="session")
def heavy() -> None:
    """Skip on all kernels but one."""
    if not os.uname().release.startswith(HEAVY_ON):
        pytest.skip(f"takes long, and is tested on {HEAVY_ON}x")


def wait_until(true: Callable[[], bool], what: str, within_s: float = 300) -> None:
    """Return once a condition holds; fail when it does not within a generous bound."""
    until = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < until, f"{what}: not within {within_s} s"
        time.sleep(0.05)


def on_console(line: str) -> None:
    """Write a line to the machine's console.log, which can be read while the machine runs."""
    with Path("/dev/console").open("w") as console:
        console.write(f"{line}\n")


def members(group: Path) -> list[int]:
    """Return the processes in a cgroup, those below it included."""
    return [int(pid) for at in group.rglob("cgroup.procs") for pid in at.read_text().split()]


def remove(group: Path) -> None:
    """Kill what runs in a cgroup and below, then remove it."""

    def empty() -> bool:
        for pid in members(group):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return not members(group)

    wait_until(empty, f"kill the processes in {group}")
    for below in sorted(group.rglob("*/"), reverse=True):
        below.rmdir()
    group.rmdir()


@pytest.fixture(scope="session")
def lib() -> Libbpf:
    """The guest's libbpf."""
    return Libbpf()


@pytest.fixture(scope="session")
def features(lib: Libbpf) -> Features:
    """What this kernel allows."""
    return probe(lib)


@pytest.fixture(scope="session")
def streaming(features: Features) -> None:
    """Skip what needs streams where the kernel cannot follow them."""
    if not features.can_stream:
        pytest.skip("this kernel has no bpf_loop (5.17), so streams are not followed")


@pytest.fixture
def make_cgroup() -> Iterator[MakeCgroup]:
    """Make cgroups with the cpu controller: `make("a/b")` gives b below a, on its own branch."""
    with cgroups("+cpu") as make:
        yield make


@contextmanager
def cgroups(controllers: str) -> Iterator[MakeCgroup]:
    """Makes cgroups with these controllers, as they are written to cgroup.subtree_control."""
    (ROOT / "cgroup.subtree_control").write_text(controllers)
    top = ROOT / "tests"
    # where a test run that was cut off left it
    top.mkdir(exist_ok=True)
    (top / "cgroup.subtree_control").write_text(controllers)

    def make(name: str) -> Path:
        group = top
        for part in name.split("/"):
            if group != top:
                (group / "cgroup.subtree_control").write_text(controllers)
            group /= part
            group.mkdir(exist_ok=True)
        return group

    try:
        yield make
    finally:
        remove(top)


@pytest.fixture
def burn() -> Iterator[Burn]:
    """Start processes that use all the CPU they can get, all on CPU 0, in a given cgroup."""
    started: list[subprocess.Popen[bytes]] = []

    def start(group: Path) -> subprocess.Popen[bytes]:
        loop = 'echo $$ >"$1"; while :; do :; done'
        process = subprocess.Popen(
            ["taskset", "-c", "0", "sh", "-c", loop, "burn", str(group / "cgroup.procs")]
        )
        started.append(process)
        # one that burns already is in its way, and on a starved host for long
        wait_until(lambda: process.pid in members(group), "a burning process in its cgroup")
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()


def cpu_stat(group: Path) -> dict[str, int]:
    """Return a cgroup's cpu.stat."""
    lines = (group / "cpu.stat").read_text().splitlines()
    return {name: int(value) for name, value in (line.split() for line in lines)}
