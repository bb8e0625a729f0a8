"""A running HAProxy with the configuration of docs/engines.md, and clients that ask through it."""

import json
import re
import signal
import socket
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.clients import clients as meanwhile
from tests.engines.haproxy.install import command, home, install
from tests.engines.reference_process import Client

DOCUMENT: Final = Path(__file__).parents[3] / "docs" / "engines.md"
PATIENCE_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class Server:
    """A server of the backend `engines`."""

    name: str
    port: int
    maxconn: int
    is_backup: bool = False


def configuration(
    port: int, admin: Path, servers: Sequence[Server], max_queued: int | None = 1000
) -> str:
    """The documented one at these addresses; without `max_queued` without the lines for that."""
    text = re.findall(r"```haproxy\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)[0]
    text = text.replace("/run/haproxy/admin.sock", str(admin)).replace(":8000", f":{port}")
    if max_queued is None:
        text = re.sub(r"(?m)^ +(set-var|http-request) .*\n", "", text)
    text = text.replace("int(1000)", f"int({max_queued})")
    text = re.sub(r"(?m)^    server .*\n", "", text)
    for each in servers:
        backup = " backup" if each.is_backup else ""
        text += f"    server {each.name} 127.0.0.1:{each.port} maxconn {each.maxconn}{backup}\n"
    return text


@dataclass(slots=True)
class Gate:
    """A HAProxy in master-worker mode; `port` is where clients ask."""

    process: "subprocess.Popen[bytes]"
    port: int
    admin: Path
    config: Path

    def ask(self, line: str) -> str:
        """What its runtime API answers."""
        with socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(PATIENCE_S)
            sock.connect(str(self.admin))
            sock.sendall(f"{line}\n".encode())
            said = b""
            while received := sock.recv(65536):
                said += received
        return said.decode()

    def column(self, name: str) -> dict[str, int]:
        """A column of its statistics for each server and the BACKEND."""
        head, *rows = self.ask("show stat engines 6 -1").removeprefix("# ").strip().splitlines()
        names = head.split(",")
        split = [dict(zip(names, row.split(","), strict=True)) for row in rows]
        return {row["svname"]: int(row[name] or 0) for row in split}

    @property
    def maxconn(self) -> dict[str, int]:
        """Of each server, as in force."""
        return {name: most for name, most in self.column("slim").items() if name != "BACKEND"}

    @property
    def max_queued(self) -> int:
        """As in force."""
        return int(re.findall(r"value=<(\d+)>", self.ask("get var proc.sits_max_queued"))[0])

    @property
    def worker(self) -> int:
        """The process that serves."""
        return int(re.findall(r"(?m)^Pid: (\d+)", self.ask("show info"))[0])

    def reload(self) -> None:
        """Have the master start another worker, and wait for it."""
        before = self.worker
        # a master that has just started ignores it
        until(lambda: self._reloaded(before), "the reload")

    def _reloaded(self, before: int) -> bool:
        self.process.send_signal(signal.SIGUSR2)
        ends_s = time.monotonic() + 2
        while time.monotonic() < ends_s:
            with suppress(OSError):
                if self.worker != before:
                    return True
            time.sleep(0.02)
        return False


@contextmanager
def haproxy(
    directory: Path,
    servers: Sequence[Server],
    *,
    max_queued: int | None = 1000,
    wrap: Callable[[list[str]], list[str]] = list,
) -> Iterator[Gate]:
    """Start it and wait until it serves; killed at the end."""
    admin, config, port = directory / "haproxy.sock", directory / "haproxy.cfg", free_port()
    config.write_text(configuration(port, admin, servers, max_queued))
    binary, environment = command(install(home()))
    with (directory / "haproxy.log").open("ab") as log:
        process = subprocess.Popen(
            wrap([*binary, "-W", "-f", str(config)]), env=environment, stderr=log, stdout=log
        )
    gate = Gate(process, port, admin, config)
    try:
        until(lambda: _serves(gate), "HAProxy's start")
        yield gate
    finally:
        # its workers end with the master
        process.terminate()
        try:
            process.wait(PATIENCE_S)
        finally:
            process.kill()
            process.wait()


def _serves(gate: Gate) -> bool:
    assert gate.process.poll() is None, gate.config.with_suffix(".log").read_text()
    try:
        return gate.worker > 0
    except OSError:
        return False


@dataclass(slots=True)
class Asked:
    """What became of requests: statuses, `Retry-After`, and what was cut off.

    One that waited in the queue for longer than that lets it has a 503 without `Retry-After`.
    """

    statuses: Counter[int] = field(default_factory=Counter)
    retry_after: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    ttft_s: list[float] = field(default_factory=list)

    @property
    def total(self) -> int:
        return self.statuses.total() + len(self.failures)


@contextmanager
def asking(gate: Gate, clients: int, max_tokens: int, model: str | None = None) -> Iterator[Asked]:
    """So many clients that stream one answer after another, each on a connection of its own.

    They come back when they are told to.
    """
    made, lock = Asked(), threading.Lock()

    def run(stop: threading.Event) -> None:
        while not stop.is_set():
            try:
                status, retry, ttft_s = ask_once(gate, max_tokens, model)
            except (OSError, AssertionError, ValueError, IndexError) as error:
                with lock:
                    made.failures.append(repr(error))
                stop.wait(1)
                continue
            with lock:
                made.statuses[status] += 1
                if status == 200:
                    made.ttft_s.append(ttft_s)
                else:
                    made.retry_after.append(retry)
            if status != 200:
                stop.wait(float(retry or 1))

    with meanwhile(clients, run):
        yield made


def ask_once(gate: Gate, max_tokens: int, model: str | None = None) -> tuple[int, str, float]:
    """One streamed completion: status, `Retry-After`, seconds to its first event."""
    fields: dict[str, Any] = {"prompt": "hello", "max_tokens": max_tokens}
    fields |= {"stream": True, "ignore_eos": True, "stream_options": {"include_usage": True}}
    fields |= {} if model is None else {"model": model}
    with Client(gate) as client:
        began_s = time.monotonic()
        client.send("/v1/completions", raw=json.dumps(fields).encode())
        status, headers = client.read_head()
        if status != 200:
            return status, headers.get("retry-after", ""), 0.0
        first_s, said = 0.0, b""
        while chunk := client.read_chunk():
            first_s = first_s or time.monotonic() - began_s
            said += chunk
        # HAProxy may join chunks, and an engine tokens
        *_, last, done, _ = said.split(b"\n\n")
        assert done == b"data: [DONE]"
        usage = json.loads(last.removeprefix(b"data: "))["usage"]
        assert usage["completion_tokens"] == max_tokens
        return status, "", first_s


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return int(sock.getsockname()[1])


def until(true: Callable[[], object], what: str, patience_s: float = PATIENCE_S) -> None:
    """Wait for what must come, however busy the machine is."""
    ends_s = time.monotonic() + patience_s
    while not true():
        assert time.monotonic() < ends_s, f"{what} did not come"
        time.sleep(0.01)
