"""A running reference engine for tests, with raw access to its wire."""

import json
import re
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

COMMAND = (sys.executable, "-c", "from controller.reference.server import main; main()")
STOP_S = 10


@dataclass(frozen=True, slots=True)
class Running:
    process: subprocess.Popen[str]
    port: int
    admin: Path
    page: Path


@contextmanager
def reference_engine(*options: str, admin: Path | None = None) -> Iterator[Running]:
    """Start the engine with `options` on a free port; stopped, and its end checked, at exit."""
    with tempfile.TemporaryDirectory() as made:
        admin = admin or Path(made) / "admin.sock"
        page = Path(made) / "page"
        paths = ("--port", "0", "--admin-socket", str(admin), "--page", str(page))
        with subprocess.Popen([*COMMAND, *paths, *options], stdout=subprocess.PIPE, text=True) as (
            process
        ):
            try:
                assert process.stdout is not None
                ready = re.search(r":(\d+)$", process.stdout.readline().strip())
                assert ready is not None, "the engine did not start"
                yield Running(process, int(ready[1]), admin, page)
            finally:
                process.terminate()
                try:
                    process.wait(STOP_S)
                except subprocess.TimeoutExpired:
                    process.kill()
                    raise


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes
    chunks: tuple[bytes, ...] = ()

    def json(self) -> Any:
        return json.loads(self.body)

    def events(self) -> list[Any]:
        """Every event but the last, `[DONE]`; a chunk must hold exactly one."""
        *events, done = self.chunks
        assert done == b"data: [DONE]\n\n"
        for event in events:
            assert event.startswith(b"data: ")
            assert event.find(b"\n\n") == len(event) - 2
        return [json.loads(event[6:]) for event in events]


class Listens(Protocol):
    """Whatever serves at a port of this machine."""

    @property
    def port(self) -> int: ...


class Client:
    """One HTTP connection that shows the chunks as they were framed."""

    def __init__(self, engine: Listens) -> None:
        self.sock = socket.create_connection(("127.0.0.1", engine.port), timeout=30)
        self._file = self.sock.makefile("rb")

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._file.close()
        self.sock.close()

    def send(self, path: str, fields: object = None, *, raw: bytes | None = None) -> None:
        body = b"" if fields is None else json.dumps(fields).encode()
        body = body if raw is None else raw
        method = "POST" if body else "GET"
        head = f"{method} {path} HTTP/1.1\r\nhost: here\r\ncontent-length: {len(body)}\r\n"
        head += "content-type: application/json\r\n" if body else ""
        self.sock.sendall(head.encode() + b"\r\n" + body)

    def read(self) -> Answer:
        status, headers = self.read_head()
        if headers.get("transfer-encoding") != "chunked":
            return Answer(status, headers, self._file.read(int(headers["content-length"])))
        chunks = []
        while chunk := self.read_chunk():
            chunks.append(chunk)
        return Answer(status, headers, b"".join(chunks), tuple(chunks))

    def read_head(self) -> tuple[int, dict[str, str]]:
        status = int(self._file.readline().split()[1])
        headers = {}
        while (line := self._file.readline()) != b"\r\n":
            assert line
            name, _, value = line.decode().partition(":")
            headers[name] = value.strip()
        return status, headers

    def read_chunk(self) -> bytes:
        size = int(self._file.readline(), 16)
        data = self._file.read(size)
        assert self._file.read(2) == b"\r\n"
        return data

    def ask(self, path: str, fields: object = None, *, raw: bytes | None = None) -> Answer:
        self.send(path, fields, raw=raw)
        return self.read()
