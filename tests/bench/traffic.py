"""Clients that make the connections of a mix, and the ends the kernel tells of."""

import re
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, Self

from bpf.layout import Event, EventKind
from tests.bench.exchange import ADDRESSES, VANISH_OVER_BYTES, Connection, Exchange, Then, all_bytes
from tests.bench.truth import Truth
from tests.kernel.bpf.watched import Watched
from tests.kernel.bpf.wire import Client, post

CLIENTS: Final = 12
PATIENCE_S: Final = 20.0

_SLOW_BYTES: Final = 20_000
_SLOW_S: Final = 0.002
_HELLO_BYTES: Final = 43
_NUMBER: Final = re.compile(rb"X-Stream: (\d+)\r\n")


class Traffic:
    """Clients at work. `truths` and `faults` grow; a fault is a client that saw other bytes."""

    def __init__(self, ports: Sequence[int], mix: Iterator[Connection]) -> None:
        self._ports = ports
        self._mix = mix
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._work) for _ in range(CLIENTS)]
        self._parked: list[Client] = []
        self.truths: dict[int, Truth] = {}
        self.faults: list[str] = []

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self,
        _type: type[BaseException] | None,
        _value: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        self.stop()
        for client in self._parked:
            client.close()

    @property
    def running(self) -> bool:
        """Whether a client is still at work."""
        return any(thread.is_alive() for thread in self._threads)

    def stop(self) -> None:
        """Begin no other connection; returns when those under way are over."""
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        while not self._stop.is_set():
            with self._lock:
                connection = next(self._mix, None)
            if connection is None:
                return
            try:
                self._run(connection)
            except (OSError, AssertionError) as error:
                numbers = [each.number for each in connection.exchanges]
                self.faults.append(f"streams {numbers}: {error!r}")

    def _run(self, connection: Connection) -> None:
        address = "::1" if ADDRESSES[connection.address] == "::1" else "127.0.0.1"
        client = Client.to(self._ports[connection.address], address, connection.receive_buffer)
        client.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if connection.vanishes:
            self._parked.append(client)
            for exchange in connection.exchanges:
                if exchange.then is Then.VANISH:
                    client.take_no_longer_packets_than(VANISH_OVER_BYTES)
                self._exchange(client, exchange, slowly=False)
            return
        with client:
            for exchange in connection.exchanges:
                self._exchange(client, exchange, connection.receive_buffer is not None)
                if connection.others and exchange.then is Then.GO_ON:
                    client.write(b"GET /health HTTP/1.1\r\nHost: test\r\n\r\n")
                    client.read(_HELLO_BYTES)

    def _exchange(self, client: Client, exchange: Exchange, slowly: bool) -> None:
        number = b"X-Stream: %d\r\n" % exchange.number
        request = post(exchange.script, number + exchange.headers)
        self.truths[exchange.number] = exchange.truth
        if exchange.cut:
            client.write(request[: exchange.cut])
        client.write(request[exchange.cut or 0 :])
        if exchange.half_close:
            client.socket.shutdown(socket.SHUT_WR)
        expected = all_bytes(exchange)[: exchange.read]
        received = b""
        while len(received) < len(expected):
            left = len(expected) - len(received)
            received += client.read(min(left, _SLOW_BYTES) if slowly else left)
            if slowly:
                time.sleep(_SLOW_S)
        assert received == expected, f"stream {exchange.number}: other bytes came"
        if exchange.then is Then.READ_TO_END:
            client.read_to_end()
        elif exchange.then is Then.RESET:
            client.reset()


@dataclass(slots=True)
class Ends:
    """The ends of the streams of a mix by their numbers, from the kernel's ring."""

    watched: Watched
    by_number: dict[int, Event] = field(default_factory=dict)
    unknown: list[Event] = field(default_factory=list)
    _numbers: dict[tuple[int, int], int] = field(default_factory=dict)

    def take(self) -> None:
        """Take what the rings hold."""
        self.watched.consume()
        for event in self.watched.events:
            key = event.stream.connection, event.stream.number
            if event.kind is EventKind.START and (found := _NUMBER.search(event.head)):
                self._numbers[key] = int(found[1])
            elif event.kind is EventKind.END:
                number = self._numbers.pop(key, None)
                if number is None or number in self.by_number:
                    self.unknown.append(event)
                else:
                    self.by_number[number] = event
        self.watched.events.clear()
        self.watched.edges.clear()

    def follow(self, traffic: Traffic, every_s: float = 0.02) -> None:
        """Take the ends of all of a mix: returns when each has its own, or none comes any more."""
        while traffic.running:
            self.take()
            time.sleep(every_s)
        self._wait(lambda: traffic.truths.keys() <= self.by_number.keys())

    def _wait(self, done: Callable[[], bool]) -> None:
        deadline, seen = time.monotonic() + PATIENCE_S, -1
        while not done() and time.monotonic() < deadline:
            self.take()
            if len(self.by_number) != seen:
                seen, deadline = len(self.by_number), time.monotonic() + PATIENCE_S / 4
            time.sleep(0.02)
        self.take()
