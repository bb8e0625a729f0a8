"""Engines as the controller meets them: a peer the test speaks for, and the reference engine."""

import json
import os
import select
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from controller.engines.contract import Hello, Knob
from controller.engines.page import PageWriter
from controller.reference.engine import Engine
from controller.reference.model import Model, Shape
from controller.serving.calls import Calls
from controller.serving.server import AdminServer

PATIENCE_S: Final = 10
KNOBS: Final = {
    name: Knob(name, 1, top, top, unit)
    for name, top, unit in (
        ("max_running", 64, "requests"),
        ("max_batched_tokens", 2048, "tokens"),
        ("long_prefill_tokens", 2048, "tokens"),
        ("max_queued", 100, "requests"),
    )
}
START: Final = {name: knob.start for name, knob in KNOBS.items()}
PAGELESS: Final = Hello("test", "1.0", "first", 1, KNOBS)
STATE: Final = {"values": START, "state": "applied", "owner": None, "epoch": 0}


class Peer:
    """The engine's end of the wire, played by the test itself."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(path))
        self._listener.listen(4)
        self._listener.settimeout(PATIENCE_S)
        self._sock: socket.socket | None = None
        self._inbox = b""

    @property
    def sock(self) -> socket.socket:
        """The newest connection."""
        if self._sock is None:
            self._sock, _ = self._listener.accept()
            self._sock.settimeout(PATIENCE_S)
            self._inbox = b""
        return self._sock

    def hang_up(self) -> None:
        self.sock.close()
        self._sock = None

    def close(self) -> None:
        if self._sock is not None:
            self._sock.close()
        self._listener.close()
        self.path.unlink(missing_ok=True)

    def request(self, call: str) -> dict[str, Any]:
        """The next request, which must be `call`."""
        while b"\n" not in self._inbox:
            received = self.sock.recv(4096)
            assert received, f"closed while {call} was waited for"
            self._inbox += received
        line, self._inbox = self._inbox.split(b"\n", 1)
        request: dict[str, Any] = json.loads(line)
        assert request["call"] == call
        return request

    def asks_nothing(self) -> bool:
        return not self._inbox and not select.select([self.sock], [], [], 0)[0]

    def send(self, **fields: Any) -> None:
        self.sock.sendall(json.dumps(fields).encode() + b"\n")

    def answer(self, request: dict[str, Any], **fields: Any) -> None:
        self.send(id=request["id"], ok=True, **fields)

    def refuse(self, request: dict[str, Any], code: str, **fields: Any) -> None:
        error = {"code": code, "message": f"because of {code}"}
        self.send(id=request["id"], ok=False, error=error, **fields)


@contextmanager
def reference(directory: Path, instance: str = "first") -> Iterator[Engine]:
    """The reference engine at work in this process: its scheduler, leases, page and socket."""
    page = PageWriter(directory / "page")
    shape = Shape(layers=1, width=8, heads=1, head_size=4, mlp_width=8, head_width=8)
    engine = Engine(
        Model(shape, 0), 4096, knobs=KNOBS, max_lease_ms=10_000, page=page, deliver=lambda _: None
    )
    hello = Hello("sits-reference", "1.0", instance, os.getpid(), KNOBS, page=str(page.path))
    admin = AdminServer(directory / "e.sock", engine, Calls(engine, hello))
    admin.start()
    engine.start(admin.wake, lambda: None)
    try:
        yield engine
    finally:
        engine.stop()
        admin.stop()
        page.close()
