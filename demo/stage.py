"""The engine on the rig and what is done with it: plans the client sends, neighbours beside it."""

import http.client
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from demo.client import (
    REFERENCE_PROMPT,
    Lateness,
    PromptText,
    Record,
    began_file,
    plan_lines,
    read_results,
)
from demo.rig import ENDS_WITHIN_S, Rig, RigError
from demo.trace import Request

HOST: Final = "127.0.0.1"
ENGINE_OPTIONS: Final = ("--max-batched-tokens=256", "--max-context=2048")
"""A step of 256 tokens is short beside the gap that the SLO allows."""

WATCH_EVERY_S: Final = 0.2


@dataclass(frozen=True, slots=True)
class Place:
    """Where an engine is to serve, and the directory it may write to."""

    port: int
    admin_socket: Path
    page: Path
    run_dir: Path


@dataclass(frozen=True, slots=True)
class EngineKind:
    """An engine that the rig can run: `command` makes its command line from place and options."""

    command: Callable[[Place, Sequence[str]], Sequence[str]]
    prompt: PromptText
    ready_within_s: float
    ends_within_s: float


def _reference_command(place: Place, options: Sequence[str]) -> Sequence[str]:
    return [
        str(Path(sys.executable).with_name("sits-reference-engine")),
        f"--host={HOST}",
        f"--port={place.port}",
        f"--admin-socket={place.admin_socket}",
        f"--page={place.page}",
        *options,
    ]


REFERENCE: Final = EngineKind(_reference_command, REFERENCE_PROMPT, 30.0, ENDS_WITHIN_S)


@dataclass(frozen=True, slots=True)
class Sent:
    """What came of a plan: records in the plan's order, and how late the client was."""

    records: Sequence[Record]
    late: Lateness


class Neighbours:
    """The CPU-burning neighbours, running until `stop`."""

    def __init__(self, rig: Rig) -> None:
        self._rig = rig
        self._processes = rig.start_neighbours()

    def cpu_s(self) -> float:
        """CPU time they have used together."""
        times = [psutil.Process(each.pid).cpu_times() for each in self._processes]
        return sum(each.user + each.system for each in times)

    def stop(self) -> None:
        """End them, if that has not been done."""
        while self._processes:
            self._rig.stop(self._processes.pop(), signal.SIGKILL)


class Stage:
    """An engine that runs on `rig`."""

    def __init__(
        self,
        rig: Rig,
        options: Sequence[str] = ENGINE_OPTIONS,
        kind: EngineKind = REFERENCE,
    ) -> None:
        """`options` are those of the engine's own command."""
        self.rig = rig
        self.kind = kind
        self.admin_socket = rig.run_dir / "engine.sock"
        self.page = rig.run_dir / "engine.page"
        self._options = tuple(options)
        self._engine: subprocess.Popen[bytes] | None = None
        self.port = free_port()

    def start_engine(self) -> None:
        """Start the engine in its cgroup; returns when it serves."""
        place = Place(self.port, self.admin_socket, self.page, self.rig.run_dir)
        engine = self.rig.start(
            "engine",
            self.kind.command(place, self._options),
            (self.rig.cores.engine,),
            self.rig.groups.procs("engine"),
        )
        self._engine = engine
        until = time.monotonic() + self.kind.ready_within_s
        while not _healthy(self.port):
            if engine.poll() is not None:
                raise RigError(f"the engine ended at once:\n{self.rig.failure('engine')}")
            if time.monotonic() > until:
                raise RigError(f"the engine does not serve after {self.kind.ready_within_s:g} s")
            time.sleep(0.05)

    def stop_engine(self, by: signal.Signals = signal.SIGTERM) -> None:
        """Stop it, if it was started, and what processes of it are left."""
        if self._engine is not None:
            self.rig.stop(self._engine, by, self.kind.ends_within_s)
            self.rig.groups.end_all("engine")
            self._engine = None

    def send(
        self,
        name: str,
        plan: Sequence[Request],
        during: Callable[[float], None] = lambda _: None,
        *,
        keep_alive: bool = False,
        every_s: float = WATCH_EVERY_S,
    ) -> Sent:
        """Have the client send `plan`; returns when every request has ended.

        `during` is called every `every_s` with the seconds since the plan began, not before.
        """
        plan_file = self.rig.run_dir / f"{name}.plan"
        out = self.rig.run_dir / f"{name}.jsonl"
        plan_file.write_text("".join(plan_lines(plan)))
        began_file(out).unlink(missing_ok=True)  # of an earlier plan of that name
        cpu = self.rig.cores.client
        command = [sys.executable, "-m", "demo.client", f"--host={HOST}", f"--port={self.port}"]
        command += [f"--plan={plan_file}", f"--out={out}", f"--cpu={cpu}"]
        prompt = self.kind.prompt
        command += [f"--prompt-unit={prompt.unit}", f"--prompt-free={prompt.free}"]
        command += ["--keep-alive"] if keep_alive else []
        client = self.rig.start("client", command, (cpu,))
        try:
            while client.poll() is None:
                elapsed_s = _elapsed_s(began_file(out))
                if elapsed_s is not None and elapsed_s >= 0:
                    during(elapsed_s)
                time.sleep(every_s)
        finally:
            self.rig.stop(client, signal.SIGKILL)
        if client.returncode:
            raise RigError(f"the client failed:\n{self.rig.failure('client')}")
        return Sent(*read_results(out))

    @contextmanager
    def neighbours(self) -> Iterator[Neighbours]:
        """Neighbours run inside this context."""
        neighbours = Neighbours(self.rig)
        try:
            yield neighbours
        finally:
            neighbours.stop()


def _elapsed_s(began: Path) -> float | None:
    """Seconds since the plan of that file began; None while the client is not ready."""
    text = began.read_text() if began.exists() else ""
    return (time.monotonic_ns() - int(text)) / 1e9 if text else None


def free_port() -> int:
    """A TCP port that nobody listens at now."""
    with socket.create_server((HOST, 0)) as server:
        port: int = server.getsockname()[1]
        return port


def _healthy(port: int) -> bool:
    connection = http.client.HTTPConnection(HOST, port, timeout=1)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
