"""An engine that takes more requests in than its cgroup has memory for: killed, or kept from it."""

import re
import subprocess
import threading
import time
from collections.abc import Iterator
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
CLIENTS = 14
EVERY_S = 0.5
AT_ONCE_S = 0.05
"""Between the same requests where nothing holds them back: they overlap on a fast machine too."""

PROMPT = "a" * 200
ANSWER = 300
SHAPE = ("--layers", "32", "--width", "16", "--kv-tokens", "1000000", "--max-running", "128")
"""16 KiB of KV cache a token, so 8 MiB a request; quick to compute."""

ROOM = 40 * MIB
"""For five of the fourteen."""

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
    command = inside(group, *enter, *pin, *COMMAND, *paths, *SHAPE)
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
    """Clients that come one after the other: who was answered in full, and what went wrong."""

    answered: int = 0
    failures: list[str] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def ask(self, engine: Running, every_s: float) -> None:
        threads = [threading.Thread(target=self._one, args=(engine,)) for _ in range(CLIENTS)]
        for thread in threads:
            thread.start()
            time.sleep(every_s)
        for thread in threads:
            thread.join()

    def _one(self, engine: Running) -> None:
        why = "refused"
        with suppress(OSError, ValueError, IndexError, AssertionError), Client(engine) as client:
            client.sock.settimeout(300)
            why = "cut short"
            seen = complete(engine, client, PROMPT, ANSWER)
            why = "" if seen.chunks == ANSWER else f"{seen.chunks} chunks"
        with self._lock:
            if why:
                self.failures.append(why)
            else:
                self.answered += 1


def test_alone_it_is_killed_for_its_memory(make_cgroup: MakeGroup, tmp_path: Path) -> None:
    with limited_engine(make_cgroup("alone"), tmp_path) as limited:
        crowd = Crowd()
        crowd.ask(limited.engine, AT_ONCE_S)
        assert limited.engine.process.wait(60) == -9
        assert limited.kills == 1
    assert crowd.failures


def test_with_sits_it_is_not_and_every_request_is_answered(
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
            crowd = Crowd()
            crowd.ask(limited.engine, EVERY_S)
            assert limited.engine.process.poll() is None
            assert limited.kills == 0
            assert (crowd.answered, crowd.failures) == (CLIENTS, [])
            (short, *_) = sitsd.events("memory_short")
            assert "in cgroup" in short["detail"]["why"]
            caps = [
                each
                for each in sitsd.decisions()
                if any(change["knob"] == "max_running" for change in each["action"])
            ]
            assert caps
            assert "MiB" in caps[-1]["reason"]
