"""A burst of more requests than an engine's cgroup has memory for: it is killed, or is not."""

import re
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from controller.limits.cgroup import MOUNTINFO, cgroup_mounts
from tests.engines.reference_process import COMMAND, Client, Running
from tests.kernel.conftest import MakeGroup, TwinGroup

from .groups import ENGINE_CPU, inside
from .rig import Site
from .traffic import complete
from .waiting import becomes

pytestmark = pytest.mark.kernel

MIB = 1 << 20
PROMPT = "a" * 100
ANSWER = 150
SHAPE = ("--layers", "32", "--width", "16", "--kv-tokens", "1000000", "--max-running", "128")
"""16 KiB of KV cache a token, so 4 MiB a request; quick to compute."""

ROOM = 40 * MIB
"""For ten requests: more than `FEW`, and fewer than `MANY`, which meet however fast they are."""

FEW = 6
MANY = 24
ROUNDS = 3
MOST_ROUNDS = 60
PAUSE_S = 0.5

GIVES_BACK = ("env", "MALLOC_MMAP_THRESHOLD_=1048576")
"""What a request had goes back to the kernel, and not to a heap that grows by its gaps."""

_ENTER = 'echo $$ >"$1" && shift && exec "$@"'


@dataclass(slots=True)
class Limited:
    """An engine in a v1 memory cgroup of its own."""

    engine: Running
    directory: Path

    @property
    def used(self) -> int:
        return int((self.directory / "memory.usage_in_bytes").read_text())

    @property
    def kills(self) -> int:
        found = re.search(
            r"^oom_kill (\d+)", (self.directory / "memory.oom_control").read_text(), re.MULTILINE
        )
        assert found is not None
        return int(found[1])

    def limit(self) -> None:
        """What it has now, and room for some requests."""
        (self.directory / "memory.limit_in_bytes").write_text(str(self.used + ROOM))


@contextmanager
def limited_engine(group: TwinGroup, directory: Path) -> Iterator[Limited]:
    """The reference engine, warm, in `group` and in a memory cgroup of the same name."""
    mounts = cgroup_mounts(MOUNTINFO.read_text())
    found = [mount for kind, mount, names in mounts if kind == "cgroup" and "memory" in names]
    if not found:
        pytest.skip("the memory controller is not on cgroup v1 here; on v2 the VM suite proves it")
    memory = found[0].directory(f"{found[0].root.rstrip('/')}/{group.cpu.name}")
    memory.mkdir()
    admin, page = directory / "engine.sock", directory / "engine.page"
    paths = ("--port", "0", "--admin-socket", str(admin), "--page", str(page))
    pin = ("taskset", "-c", str(ENGINE_CPU))
    enter = ("/bin/sh", "-c", _ENTER, "sh", str(memory / "cgroup.procs"))
    command = inside(group, *enter, *pin, *GIVES_BACK, *COMMAND, *paths, *SHAPE)
    try:
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout is not None
                ready = re.search(r":(\d+)$", process.stdout.readline().strip())
                assert ready is not None, "the engine did not start"
                engine = Running(process, int(ready[1]), admin, page)
                with Client(engine) as client:
                    complete(engine, client, PROMPT, 2)
                made = Limited(engine, memory)
                made.limit()
                yield made
            finally:
                process.kill()
    finally:
        becomes(lambda: not (memory / "cgroup.procs").read_text())
        memory.rmdir()


@dataclass(slots=True)
class Crowd:
    """Who asks: first a few at a time, then all at once. The same to whichever engine."""

    engine: Running
    answered: int = 0
    failures: list[str] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def few(self, known: Callable[[], object] = lambda: True) -> None:
        """Rounds of a few requests with pauses, and more of them until something is `known`."""
        for done in range(MOST_ROUNDS):
            if self.failures or (done >= ROUNDS and known()):
                return
            self._ask(FEW)
            time.sleep(PAUSE_S)

    def burst(self) -> None:
        """All connect, then all ask."""
        self._ask(MANY)

    def _ask(self, count: int) -> None:
        connected = threading.Barrier(count)
        threads = [threading.Thread(target=self._one, args=(connected,)) for _ in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _one(self, connected: threading.Barrier) -> None:
        why = "refused"
        with suppress(OSError, ValueError, IndexError, AssertionError), Client(self.engine) as one:
            one.sock.settimeout(300)
            connected.wait(60)
            why = "cut short"
            seen = complete(self.engine, one, PROMPT, ANSWER)
            why = "" if seen.chunks == ANSWER else f"{seen.chunks} chunks"
        with self._lock:
            if why:
                self.failures.append(why)
            else:
                self.answered += 1


def test_alone_it_is_killed_by_a_burst(make_cgroup: MakeGroup, tmp_path: Path) -> None:
    with limited_engine(make_cgroup("alone"), tmp_path) as limited:
        crowd = Crowd(limited.engine)
        crowd.few()
        assert (crowd.answered, crowd.failures) == (ROUNDS * FEW, [])
        crowd.burst()
        assert limited.engine.process.wait(60) == -9
        assert limited.kills == 1
    assert crowd.failures


def test_with_sits_it_is_not_and_every_request_of_the_same_is_answered(
    make_cgroup: MakeGroup, site: Site, tmp_path: Path
) -> None:
    group = make_cgroup("watched")
    place = tmp_path / "engine"
    place.mkdir()
    with limited_engine(group, place) as limited:
        site.write(
            f"""
[engines.chat]
cgroup = "/{group.cpu.name}"
admin_socket = "{limited.engine.admin}"
slo = {{ ttft_ms = 600000, gap_ms = 30000 }}
[controller]
lease_ms = 5000
""",
            mode="control",
        )
        with site.sitsd() as sitsd:
            sitsd.following()
            crowd = Crowd(limited.engine)
            crowd.few(lambda: sitsd.api.status()["engines"][0]["memory"]["running_cap"])
            few = crowd.answered
            (memory,) = (engine["memory"] for engine in sitsd.api.status()["engines"])
            assert memory["running_cap"], memory
            crowd.burst()
            assert limited.engine.process.poll() is None
            assert limited.kills == 0
            assert (crowd.answered - few, crowd.failures) == (MANY, [])
            reasons = [
                each["reason"]
                for each in sitsd.decisions()
                if any(change["knob"] == "max_running" for change in each["action"])
            ]
            # planned ahead, or cut as it fell short, whichever comes first
            assert any(
                "memory has room for" in reason or "are left" in reason for reason in reasons
            ), reasons
