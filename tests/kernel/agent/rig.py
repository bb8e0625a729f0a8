"""A node under test: the real sitsd, a real engine in a cgroup, clients and neighbours."""

import json
import re
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

import psutil
from prometheus_client.parser import text_string_to_metric_families

from agent.client import AgentClient, UnreachableError
from bpf.loader import unload
from controller.engines.client import call
from controller.engines.page import PageReader, Step
from controller.limits.cpu import QUOTA_FILES, WEIGHT_FILES
from tests.engines.reference_process import COMMAND, Client, Running
from tests.kernel.conftest import TwinGroup

PATIENCE_S: Final = 30.0
"""How long a test waits for what must come; no result depends on how soon it does."""

ENGINE_CPU: Final = 0
"""The engine and its neighbours share one CPU, so that they are in each other's way."""

LONG_PROMPT: Final = "a" * 3_000

_ENTER: Final = 'echo $$ >"$1" && echo $$ >"$2" && shift 2 && exec "$@"'
_SITSD: Final = (sys.executable, "-c", "from agent.daemon import main; main()")

T = TypeVar("T")


def becomes(condition: Callable[[], T], patience_s: float = PATIENCE_S) -> T:
    """What `condition` returns once that is true; fails when it stays false."""
    deadline = time.monotonic() + patience_s
    while not (value := condition()):
        assert time.monotonic() < deadline, f"still {value!r} after {patience_s:g} s"
        time.sleep(0.005)
    return value


def inside(group: TwinGroup, *command: str) -> list[str]:
    """A command that begins in `group`: its sockets belong there from the first."""
    files = [str(directory / "cgroup.procs") for directory in (group.cpu, group.v2)]
    return ["/bin/sh", "-c", _ENTER, "sh", *files, *command]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return int(sock.getsockname()[1])


def limits(*groups: TwinGroup) -> dict[str, str]:
    """The text of every weight and quota file of these groups."""
    names = {*WEIGHT_FILES.values(), *QUOTA_FILES.values()}
    return {
        str(group.cpu / name): (group.cpu / name).read_text().strip()
        for group in groups
        for name in names
        if (group.cpu / name).exists()
    }


@contextmanager
def engine_in(group: TwinGroup, directory: Path, *options: str) -> Iterator[Running]:
    """The reference engine in `group` and on `ENGINE_CPU`; killed at the end."""
    admin, page = directory / "engine.sock", directory / "engine.page"
    paths = ("--port", "0", "--admin-socket", str(admin), "--page", str(page))
    pin = ("taskset", "-c", str(ENGINE_CPU))
    with subprocess.Popen(
        inside(group, *pin, *COMMAND, *paths, *options), stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            ready = re.search(r":(\d+)$", process.stdout.readline().strip())
            assert ready is not None, "the engine did not start"
            yield Running(process, int(ready[1]), admin, page)
        finally:
            process.kill()


@contextmanager
def favoured(group: TwinGroup) -> Iterator[None]:
    """Give `group` nearly all of a CPU it wants: what else this machine does is not to matter."""
    texts = {"cpu.shares": "262144", "cpu.weight": "10000"}
    (file,) = [group.cpu / name for name in texts if (group.cpu / name).exists()]
    before = file.read_text()
    file.write_text(texts[file.name])
    try:
        yield
    finally:
        file.write_text(before)


@contextmanager
def burning(*groups: TwinGroup) -> Iterator[None]:
    """A busy loop in each group, on the engine's CPU."""
    loop = ("taskset", "-c", str(ENGINE_CPU), "/bin/sh", "-c", "while :; do :; done")
    with ExitStack() as stack:
        processes = [stack.enter_context(subprocess.Popen(inside(g, *loop))) for g in groups]
        try:
            yield
        finally:
            for process in processes:
                process.kill()


@dataclass(slots=True)
class Seen:
    """One answer as its client saw it: when each event came, from when the request was sent."""

    port: int
    chunks: int
    ttft_ns: int
    status: int = 200


def complete(engine: Running, client: Client, prompt: str, max_tokens: int) -> Seen:
    """One streamed completion on an open connection."""
    port = client.sock.getsockname()[1]
    began_ns = time.monotonic_ns()
    client.send(
        "/v1/completions",
        {
            "prompt": prompt,
            "max_tokens": max_tokens,
            "stream": True,
            "ignore_eos": True,
        },
    )
    status, headers = client.read_head()
    assert headers.get("transfer-encoding") == "chunked", (status, headers)
    chunks, first_ns = 0, 0
    while chunk := client.read_chunk():
        first_ns = first_ns or time.monotonic_ns()
        chunks += chunk != b"data: [DONE]\n\n"
    return Seen(port, chunks, first_ns - began_ns, status)


@dataclass(slots=True)
class Load:
    """Clients that stream one completion after the other until they are told to stop."""

    seen: list[Seen] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    @property
    def chunks(self) -> int:
        return sum(each.chunks for each in self.seen)

    def grows_to(self, streams: int) -> None:
        """Wait for this many answers."""
        becomes(lambda: self.failures or len(self.seen) >= streams)
        assert self.failures == []


@contextmanager
def load(
    engine: Running,
    clients: int = 2,
    max_tokens: int = 24,
    prompt: str = "hello",
    pause_s: float = 0,
) -> Iterator[Load]:
    """Traffic meanwhile; at the end every answer has come in full."""
    made, stop = Load(), threading.Event()

    def run() -> None:
        try:
            with Client(engine) as client:
                while not stop.wait(pause_s if made.seen else 0):
                    made.seen.append(complete(engine, client, prompt, max_tokens))
        except (OSError, AssertionError, ValueError) as error:
            made.failures.append(repr(error))

    threads = [threading.Thread(target=run) for _ in range(clients)]
    for thread in threads:
        thread.start()
    try:
        yield made
    finally:
        stop.set()
        for thread in threads:
            thread.join()


@contextmanager
def long_beside_short(engine: Running) -> Iterator[None]:
    """Long prompts that stretch the steps of short answers, and time enough for both."""
    with (
        load(engine, clients=2, max_tokens=64) as short,
        load(engine, clients=1, max_tokens=1, prompt=LONG_PROMPT, pause_s=0.4) as long,
    ):
        yield
    assert short.failures + long.failures == []


def steps(engine: Running, wanted: Callable[[Step], bool]) -> list[int]:
    """How long the last such steps of the engine took, in ns."""
    with closing(PageReader(engine.page)) as page:
        got = becomes(page.read)
        assert got is not None
        return [step.step_ns for step in got[1] if wanted(step)]


class Sitsd:
    """A sitsd process, its admin API, its metrics and its log."""

    def __init__(self, process: "subprocess.Popen[bytes]", site: "Site") -> None:
        self.process = process
        self.site = site
        self.api = AgentClient(site.admin_socket)

    @property
    def log(self) -> str:
        return self.site.log.read_text()

    def ready(self) -> dict[str, Any]:
        """Its first status."""

        def answers() -> dict[str, Any] | None:
            assert self.process.poll() is None, self.log
            try:
                return self.api.status()
            except UnreachableError:
                return None

        status = becomes(answers)
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
        """Controller and guard."""
        return psutil.Process(self.process.pid).children()

    def guard(self) -> psutil.Process | None:
        return next((p for p in self.family() if "controller.limits.guard" in p.cmdline()), None)

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

    def write(self, targets: str, mode: str = "observe") -> None:
        """A policy with these targets."""
        self.policy.write_text(
            f"""mode = "{mode}"
[agent]
metrics_address = "127.0.0.1:{self.metrics_port}"
admin_socket = "{self.admin_socket}"
run_dir = "{self.directory / "run"}"
state_dir = "{self.directory / "state"}"
pin_dir = "{self.pin_dir}"
discovery_interval_ms = 100
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
    def sitsd(self, wrapper: tuple[str, ...] = ()) -> Iterator[Sitsd]:
        """A sitsd that answers; nothing of it is left at the end, however it ended."""
        with self.log.open("ab") as log:
            process = subprocess.Popen(self.command(wrapper=wrapper), stderr=log)
        started = Sitsd(process, self)
        family: list[psutil.Process] = []
        try:
            started.ready()
            yield started
        finally:
            if process.poll() is None:
                family = started.family()
                process.terminate()
                try:
                    process.wait(PATIENCE_S)
                finally:
                    process.kill()
                    process.wait()
            for each in psutil.wait_procs(family, PATIENCE_S)[1]:
                each.kill()

    def unload(self) -> None:
        """Take the pins away."""
        unload(self.pin_dir)


def knobs(engine: Running) -> dict[str, Any]:
    """The engine's own word on its knobs: the answer to `get`."""
    return dict(call(engine.admin, "get", 10))


def at_start(engine: Running) -> bool:
    """Whether nobody holds a knob."""
    now = knobs(engine)
    return now["owner"] is None and now["values"] == now["start"] and not now["pending"]


def gone(processes: list[psutil.Process]) -> bool:
    """Whether none of them runs any more."""
    return not any(p.is_running() and p.status() != psutil.STATUS_ZOMBIE for p in processes)
