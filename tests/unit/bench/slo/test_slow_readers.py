import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from demo.client import REFERENCE_PROMPT
from tests.bench.slo.slow_readers import SlowReaders

ANSWER = b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n" + b"x" * 300_000


class Server:
    """Answers each connection whole, and counts them."""

    def __init__(self, listener: socket.socket) -> None:
        self.port = listener.getsockname()[1]
        self.asked = 0
        self.answered = threading.Event()
        self._listener = listener
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection:
                connection.recv(65536)
                self.asked += 1
                connection.sendall(ANSWER)
            self.answered.set()

    def end(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()


@contextmanager
def serving() -> Iterator[Server]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        # little lies in the kernel: what is not read is not sent
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16_384)
        server = Server(listener)
        try:
            yield server
        finally:
            server.end()


@pytest.fixture
def server() -> Iterator[Server]:
    with serving() as server:
        yield server


def readers(server: Server, *, at_once: bool) -> SlowReaders:
    return SlowReaders(server.port, 1, REFERENCE_PROMPT, at_once=at_once)


def test_who_reads_at_once_has_it_all_before_the_stop_and_asks_no_second_time(
    server: Server,
) -> None:
    with readers(server, at_once=True) as clients:
        assert server.answered.wait(20)
    assert (server.asked, clients.account()["slow_failed"]) == (1, [])


def test_who_reads_slowly_keeps_the_server_sending_until_the_stop(server: Server) -> None:
    with readers(server, at_once=False) as clients:
        assert not server.answered.wait(1)
        clients.stop()
        assert server.answered.wait(20)
    assert clients.account() == {"slow_readers": 1, "slow_failed": []}
