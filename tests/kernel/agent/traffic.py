"""The engine and its clients: what they send, what they saw, and what it says of itself."""

import re
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from controller.engines.client import call
from controller.engines.page import PageReader, Step
from tests.clients import clients as meanwhile
from tests.engines.reference_process import COMMAND, Client, Running
from tests.kernel.conftest import TwinGroup

from .groups import ENGINE_CPU, inside
from .waiting import becomes

LONG_PROMPT: Final = "a" * 3_000


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
    made = Load()

    def run(stop: threading.Event) -> None:
        try:
            with Client(engine) as client:
                while not stop.wait(pause_s if made.seen else 0):
                    made.seen.append(complete(engine, client, prompt, max_tokens))
        except (OSError, AssertionError, ValueError) as error:
            made.failures.append(repr(error))

    with meanwhile(clients, run):
        yield made


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


def knobs(engine: Running) -> dict[str, Any]:
    """The engine's own word on its knobs: the answer to `get`."""
    return dict(call(engine.admin, "get", 10))


def at_start(engine: Running) -> bool:
    """Whether nobody holds a knob."""
    now = knobs(engine)
    return now["owner"] is None and now["values"] == now["start"] and not now["pending"]
