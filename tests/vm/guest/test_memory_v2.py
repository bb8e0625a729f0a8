"""A neighbour that fills the memory it shares with an engine: the engine killed, or not."""

import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from agent.client import AgentClient, ClientError
from tests.engines.reference_process import COMMAND, Client, Running
from tests.kernel.agent.rig import Site
from tests.kernel.agent.traffic import complete
from tests.vm.guest.conftest import ROOT, MakeCgroup, cgroups, wait_until

MIB = 1 << 20
ROOM = 160 * MIB
PATIENCE_S = 180
ANSWER = 4

# Starts a process each 1.6 s that takes 4 MiB each fifth of a second, up to 32: none is as large
# as the engine, so the engine is the one that the kernel kills.
HOG = """
import os, sys, time
sys.stdin.readline()
while True:
    if os.fork() == 0:
        held = []
        for _ in range(8):
            held.append(bytearray(b"x") * (4 << 20))
            time.sleep(0.2)
        time.sleep(600)
    time.sleep(1.6)
"""

_ENTER = 'echo $$ >"$1"; shift; exec "$@"'


def inside(group: Path, *command: str) -> list[str]:
    return ["/bin/sh", "-c", _ENTER, "sh", str(group / "cgroup.procs"), *command]


def events(group: Path) -> dict[str, int]:
    lines = (group / "memory.events").read_text().splitlines()
    return {name: int(value) for name, value in (line.split() for line in lines)}


@dataclass(slots=True)
class Shared:
    """An engine and a hog that waits for a line, below one memory limit."""

    top: Path
    engine: Running
    hog: "subprocess.Popen[str]"

    def begin(self) -> None:
        assert self.hog.stdin is not None
        self.hog.stdin.write("\n")
        self.hog.stdin.flush()

    @property
    def killed(self) -> int:
        return sum(events(each)["oom_kill"] for each in (self.top / "engine", self.top / "hog"))


@contextmanager
def shared(make: MakeCgroup, directory: Path) -> Iterator[Shared]:
    groups = {name: make(name) for name in ("engine", "hog")}
    admin, page = directory / "engine.sock", directory / "engine.page"
    paths = ("--port", "0", "--admin-socket", str(admin), "--page", str(page))
    with (
        subprocess.Popen(
            inside(groups["engine"], *COMMAND, *paths), stdout=subprocess.PIPE, text=True
        ) as process,
        subprocess.Popen(
            inside(groups["hog"], sys.executable, "-c", HOG), stdin=subprocess.PIPE, text=True
        ) as hog,
    ):
        try:
            assert process.stdout is not None
            ready = re.search(r":(\d+)$", process.stdout.readline().strip())
            assert ready is not None, "the engine did not start"
            engine = Running(process, int(ready[1]), admin, page)
            with Client(engine) as client:
                complete(engine, client, "warm", 2)
            top = ROOT / "tests"
            used = int((top / "memory.current").read_text())
            (top / "memory.max").write_text(str(used + ROOM))
            yield Shared(top, engine, hog)
        finally:
            process.kill()
            hog.kill()


@dataclass(slots=True)
class User:
    """Asks for one answer after the other."""

    engine: Running
    answered: int = 0
    failed: list[str] = field(default_factory=list)
    done: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> "User":
        self._thread = threading.Thread(target=self._ask)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.done.set()
        self._thread.join()

    _thread: threading.Thread = field(init=False)

    def _ask(self) -> None:
        while not self.done.is_set():
            try:
                with Client(self.engine) as client:
                    client.sock.settimeout(PATIENCE_S)
                    seen = complete(self.engine, client, "hello", ANSWER)
                assert seen.chunks == ANSWER
                self.answered += 1
            except (OSError, ValueError, IndexError, AssertionError) as error:
                self.failed.append(repr(error))
                return


@contextmanager
def watched(site: Site) -> Iterator[AgentClient]:
    """sitsd, once it answers and has found the engine."""
    process = subprocess.Popen(site.command(), stderr=subprocess.DEVNULL)
    agent = AgentClient(site.admin_socket, PATIENCE_S)

    def ready() -> bool:
        assert process.poll() is None
        with suppress(ClientError):
            (engine,) = agent.status()["engines"]
            return bool(engine["admin"]["state"] == "connected")
        return False

    try:
        wait_until(ready, "sitsd", PATIENCE_S)
        yield agent
    finally:
        process.terminate()
        process.wait(PATIENCE_S)
        site.unload()


@pytest.fixture
def make() -> Iterator[MakeCgroup]:
    with cgroups("+cpu +memory") as made:
        yield made


def test_a_neighbour_that_fills_the_memory_they_share_gets_the_engine_killed(
    heavy: None, make: MakeCgroup, tmp_path: Path
) -> None:
    with shared(make, tmp_path) as both:
        both.begin()
        wait_until(lambda: both.killed > 0, "a kill", PATIENCE_S)
        assert both.engine.process.wait(PATIENCE_S) == -9


def test_with_sits_it_is_held_nobody_is_killed_and_every_answer_is_given(
    heavy: None, make: MakeCgroup, tmp_path: Path
) -> None:
    site = Site(tmp_path, Path("/sys/fs/bpf/sits-memory"))
    with shared(make, tmp_path) as both:
        site.write(
            f"""
[engines.chat]
cgroup = "/tests/engine"
admin_socket = "{both.engine.admin}"
slo = {{ ttft_ms = 600000, gap_ms = 30000 }}
[neighbours.hog]
cgroup = "/tests/hog"
[controller]
lease_ms = 5000
""",
            mode="control",
            look_every_ms=1000,
        )
        high = both.top / "hog" / "memory.high"
        with watched(site) as agent, User(both.engine) as user:
            both.begin()
            wait_until(lambda: high.read_text().strip() != "max", "a hold", PATIENCE_S)
            held = int(high.read_text())
            before = user.answered
            time.sleep(15)  # ten times as long as it took to take the last quarter
            wait_until(lambda: user.answered > before + 1, "answers", PATIENCE_S)
            assert both.killed == 0
            assert both.engine.process.poll() is None
            assert user.failed == []
            (short, *_) = [
                each
                for each in agent.journal(limit=1000)["events"]
                if each["kind"] == "memory_short"
            ]
            print(held >> 20, short["detail"]["why"], user.answered, os.uname().release)
        # it ends: what it held is as it was
        assert high.read_text().strip() == "max"
