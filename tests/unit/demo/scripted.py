"""A server that says what it is told, when it is told, and notes when it said it."""

import socket
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
LAST = b"0\r\n\r\n"
DONE = b"data: [DONE]\n\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def stream(events: int) -> list[bytes]:
    """A head, some events, the end mark: a write each, as an engine does it."""
    said = [chunk(b"data: %d\n\n" % number) for number in range(events)]
    return [HEAD, *said, chunk(DONE) + LAST]


@dataclass
class Answer:
    """Writes with a pause before each; then the connection is closed, or kept for more."""

    writes: Sequence[bytes]
    pause_s: float = 0.0
    hang: bool = False
    close: bool = True


@dataclass
class Exchange:
    """What happened with one request: when it was whole, and when each write began."""

    port: int
    request: bytes
    asked_ns: int
    said_ns: list[int] = field(default_factory=list)


class ScriptedServer:
    """Gives the same answer to every request. A thread for each connection."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._threads: list[threading.Thread] = []
        self._stop = threading.Event()
        self.address: tuple[str, int] = self._listener.getsockname()
        self.exchanges: list[Exchange] = []

    def __enter__(self) -> Self:
        self._start(self._accept)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        self._listener.close()

    def _start(self, target: object, *arguments: object) -> None:
        assert callable(target)
        thread = threading.Thread(target=target, args=arguments)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                connection, (_, port) = self._listener.accept()
            except OSError:
                return
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._start(self._serve, connection, port)

    def _serve(self, connection: socket.socket, port: int) -> None:
        connection.settimeout(0.05)
        with connection:
            while (request := self._request(connection)) is not None:
                exchange = Exchange(port, request, time.monotonic_ns())
                self.exchanges.append(exchange)
                for write in self._answer.writes:
                    time.sleep(self._answer.pause_s)
                    exchange.said_ns.append(time.monotonic_ns())
                    connection.sendall(write)
                if self._answer.hang:
                    self._stop.wait()
                if self._answer.close:
                    return

    def _request(self, connection: socket.socket) -> bytes | None:
        data = b""
        while not self._stop.is_set():
            try:
                part = connection.recv(65536)
            except TimeoutError:
                continue
            data += part
            head, found, body = data.partition(b"\r\n\r\n")
            if not part:
                return None
            if found:
                length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
                if len(body) == length:
                    return data
        return None
