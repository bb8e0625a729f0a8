"""A running tritonserver for tests, and clients that load it."""

import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.engines.triton.install import backends, home, install, server

MODELS: Final = Path(__file__).with_name("models")
CODE: Final = MODELS / "batcher" / "1"
"""Both models run the same code."""

START_MS: Final = 2.5
"""The window of `batcher`."""

READY_S: Final = 60.0
STOP_S: Final = 10.0


@dataclass(slots=True)
class Server:
    """`address` is gRPC's, on a Unix socket; traffic goes to `port`, which speaks HTTP."""

    directory: Path
    address: str
    port: int
    metrics_port: int
    options: tuple[str, ...]
    wrap: Callable[[list[str]], list[str]]
    process: subprocess.Popen[bytes] | None = None

    @property
    def metrics(self) -> str:
        return f"http://127.0.0.1:{self.metrics_port}/metrics"

    def start(self) -> None:
        """Start it, and wait until its models are ready."""
        root = install(home())
        made = server(root)
        arguments = [
            str(made / "bin" / "tritonserver"),
            f"--model-repository={self.directory / 'models'}",
            f"--backend-directory={backends(root)}",
            f"--cache-directory={made / 'caches'}",
            # without it every load starts the model once more, to ask what it left out
            "--disable-auto-complete-config",
            "--exit-timeout-secs=2",
            f"--grpc-address=unix:{self.directory / 'grpc'}",
            "--grpc-port=1",
            "--http-address=127.0.0.1",
            f"--http-port={self.port}",
            "--metrics-address=127.0.0.1",
            f"--metrics-port={self.metrics_port}",
            "--allow-gpu-metrics=false",
            "--allow-cpu-metrics=false",
            f"--backend-config=python,shm-region-prefix-name={self._shared}",
            "--backend-config=python,shm-default-byte-size=1048576",
            *self.options,
        ]
        environment = os.environ | {
            # the backend's stub finds its packages by the first python3 there
            "PATH": f"{root / 'bin'}:{os.environ['PATH']}",
            "OPENBLAS_NUM_THREADS": "1",
        }
        with (self.directory / "log").open("ab") as log:
            self.process = subprocess.Popen(
                self.wrap(arguments),
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,
            )
        deadline = time.monotonic() + READY_S
        while not self.is_ready():
            assert self.process.poll() is None, self.log()
            assert time.monotonic() < deadline, self.log()
            time.sleep(0.05)

    def is_ready(self) -> bool:
        """Whether every model answers."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        try:
            connection.request("GET", "/v2/health/ready")
            return connection.getresponse().status == 200
        except OSError:
            return False
        finally:
            connection.close()

    def stop(self) -> None:
        """End it, its backends with it."""
        if self.process is None:
            return
        self.process.terminate()
        try:
            self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise
        self._clean()

    def kill(self) -> None:
        """End it and its backends at once, as a crash would."""
        assert self.process is not None
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(STOP_S)
        self.process = None
        self._clean()

    def log(self) -> str:
        """The end of what it said."""
        return (self.directory / "log").read_text(errors="replace")[-4000:]

    def _clean(self) -> None:
        """What its backends leave in shared memory where they end before it."""
        for left in Path("/dev/shm").glob(f"{self._shared}*"):
            left.unlink(missing_ok=True)

    @property
    def _shared(self) -> str:
        return f"sits_triton_{self.port}_"


@contextmanager
def triton_server(
    directory: Path,
    *options: str,
    window_ms: float = START_MS,
    wrap: Callable[[list[str]], list[str]] = list,
) -> Iterator[Server]:
    """A server with copies of the models below `directory`; nothing of it is left at the end.

    It is started by the command that `wrap` makes of its own.
    """
    shutil.copytree(MODELS, directory / "models")
    config = directory / "models" / "batcher" / "config.pbtxt"
    config.write_text(config.read_text().replace(_delay(START_MS), _delay(window_ms)))
    shutil.copytree(CODE, directory / "models" / "lanes" / "1")
    # the server adds the port to the socket's name
    address = f"unix:{directory / 'grpc'}:1"
    options = options or ("--model-control-mode=explicit", "--load-model=*")
    running = Server(directory, address, _free_port(), _free_port(), options, wrap)
    try:
        running.start()
        yield running
    finally:
        running.stop()


@dataclass(slots=True)
class Traffic:
    """Requests of some clients that each ask again as soon as they were answered."""

    port: int
    model: str
    answered: list[tuple[float, float, float]] = field(default_factory=list)
    """Of each answer: when it was asked for, how long that took (s), and its batch's size."""
    failed: list[str] = field(default_factory=list)
    _stopping: threading.Event = field(default_factory=threading.Event)

    def run(self, pause_s: float) -> None:
        """One client."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        while not self._stopping.is_set():
            asked = time.monotonic()
            try:
                size = ask(connection, self.model)
                self.answered.append((asked, time.monotonic() - asked, size))
            except (OSError, AssertionError, http.client.HTTPException) as error:
                self.failed.append(repr(error))
                connection.close()
            self._stopping.wait(pause_s)
        connection.close()

    def stop(self) -> None:
        self._stopping.set()


@contextmanager
def traffic(port: int, model: str, clients: int, pause_s: float = 0.01) -> Iterator[Traffic]:
    """Load, while the block runs; every request has its answer at the end."""
    load = Traffic(port, model)
    threads = [threading.Thread(target=load.run, args=(pause_s,)) for _ in range(clients)]
    for thread in threads:
        thread.start()
    try:
        yield load
    finally:
        load.stop()
        for thread in threads:
            thread.join()


def ask(connection: http.client.HTTPConnection, model: str) -> float:
    """One request of one item, answered as a stream; the size of the batch it was computed in."""
    body = json.dumps({"IN": [0.5] * 16})
    connection.request("POST", f"/v2/models/{model}/generate_stream", body)
    response = connection.getresponse()
    text = response.read()
    assert response.status == 200, text[:200]
    return float(json.loads(text.removeprefix(b"data: "))["OUT"][0])


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return int(sock.getsockname()[1])


def _delay(window_ms: float) -> str:
    return f"max_queue_delay_microseconds: {round(window_ms * 1000)}"
