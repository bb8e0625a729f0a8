"""sitsd under test: where it lives, and all that can be asked of it."""

import json
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import psutil
from prometheus_client.parser import text_string_to_metric_families

from agent.client import AgentClient, UnreachableError
from bpf.loader import unload

from .waiting import PATIENCE_S, becomes

_SITSD: Final = (sys.executable, "-c", "from agent.sitsd import main; main()")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return int(sock.getsockname()[1])


class Sitsd:
    """A sitsd process, its admin API, its metrics and its log."""

    def __init__(self, process: "subprocess.Popen[bytes]", site: "Site") -> None:
        self.process = process
        self.site = site
        self.api = AgentClient(site.admin_socket)

    @property
    def log(self) -> str:
        return self.site.log.read_text()

    def ready(self, patience_s: float = PATIENCE_S) -> dict[str, Any]:
        """Its first status."""

        def answers() -> dict[str, Any] | None:
            assert self.process.poll() is None, self.log
            try:
                return self.api.status()
            except UnreachableError:
                return None

        status = becomes(answers, patience_s)
        assert status is not None
        return status

    def status(self, fits: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
        """The first status that `fits`; fails with the last one and the log when none does."""
        deadline = time.monotonic() + PATIENCE_S
        while not fits(status := self.api.status()):
            assert time.monotonic() < deadline, f"{json.dumps(status, indent=1)}\n{self.log}"
            time.sleep(0.02)
        return status

    def engine(self, fits: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
        """The engine's part of the first status where it `fits`."""
        status: dict[str, Any] = self.status(lambda status: fits(status["engines"][0]))
        return dict(status["engines"][0])

    def following(self) -> dict[str, Any]:
        """The engine once it is found with its port, and its admin socket answers."""
        return self.engine(
            lambda e: e["found"] and e["ports"] and e["admin"]["state"] == "connected"
        )

    def events(self, kind: str) -> list[dict[str, Any]]:
        """What the journal tells of this kind, newest first."""
        return [e for e in self.api.journal(limit=1000)["events"] if e["kind"] == kind]

    def decisions(self) -> list[dict[str, Any]]:
        return list(self.api.journal(limit=1000)["decisions"])

    def metrics(self) -> Mapping[tuple[str, tuple[tuple[str, str], ...]], float]:
        """Every sample of a scrape, by name and labels."""
        return {
            (sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for family in text_string_to_metric_families(self.get("/metrics")[1])
            for sample in family.samples
        }

    def metric(self, name: str, **labels: str) -> float:
        return self.metrics()[name, tuple(sorted(labels.items()))]

    def get(self, path: str) -> tuple[int, str]:
        """Status and text at the metrics address."""
        try:
            with urllib.request.urlopen(self.site.url + path, timeout=10) as answer:
                return int(answer.status), answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return int(error.code), error.read().decode()

    def family(self) -> list[psutil.Process]:
        """Controller and guard, and who looks for GPUs, which ends where there are none."""
        return psutil.Process(self.process.pid).children()

    def child(self, module: str) -> psutil.Process | None:
        """Its process that runs this module."""
        for each in self.family():
            with suppress(psutil.NoSuchProcess):
                if module in each.cmdline():
                    return each
        return None

    def guard(self) -> psutil.Process | None:
        return self.child("controller.limits.guard")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def end(self) -> int:
        """SIGTERM; the exit status."""
        self.process.terminate()
        return self.process.wait(PATIENCE_S)


@dataclass(slots=True)
class Site:
    """Where a sitsd lives: its policy, sockets, state and pins, over any number of starts."""

    directory: Path
    pin_dir: Path
    metrics_port: int = field(default_factory=free_port)

    @property
    def admin_socket(self) -> Path:
        return self.directory / "run" / "admin.sock"

    @property
    def undo(self) -> Path:
        return self.directory / "run" / "undo.json"

    @property
    def log(self) -> Path:
        return self.directory / "sitsd.log"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.metrics_port}"

    @property
    def policy(self) -> Path:
        return self.directory / "policy.toml"

    def write(self, targets: str, mode: str = "observe", look_every_ms: int = 100) -> None:
        """A policy with these targets."""
        self.policy.write_text(
            f"""mode = "{mode}"
[agent]
metrics_address = "127.0.0.1:{self.metrics_port}"
admin_socket = "{self.admin_socket}"
run_dir = "{self.directory / "run"}"
state_dir = "{self.directory / "state"}"
pin_dir = "{self.pin_dir}"
discovery_interval_ms = {look_every_ms}
{targets}
"""
        )

    def command(self, *options: str, wrapper: tuple[str, ...] = ()) -> list[str]:
        return [*wrapper, *_SITSD, "--policy", str(self.policy), *options]

    def run(self, *options: str) -> "subprocess.CompletedProcess[str]":
        """A run of sitsd that ends by itself."""
        return subprocess.run(
            self.command(*options), capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )

    @contextmanager
    def sitsd(
        self, wrapper: tuple[str, ...] = (), patience_s: float = PATIENCE_S
    ) -> Iterator[Sitsd]:
        """A sitsd that answers; nothing of it is left at the end, however it ended."""
        with self.log.open("ab") as log:
            process = subprocess.Popen(self.command(wrapper=wrapper), stderr=log)
        started = Sitsd(process, self)
        family: list[psutil.Process] = []
        try:
            started.ready(patience_s)
            yield started
        finally:
            if process.poll() is None:
                family = started.family()
                process.terminate()
                try:
                    process.wait(patience_s)
                finally:
                    process.kill()
                    process.wait()
            for each in psutil.wait_procs(family, PATIENCE_S)[1]:
                each.kill()

    def unload(self) -> None:
        """Take the pins away."""
        unload(self.pin_dir)


def gone(processes: list[psutil.Process]) -> bool:
    """Whether none of them runs any more."""
    return not any(p.is_running() and p.status() != psutil.STATUS_ZOMBIE for p in processes)
