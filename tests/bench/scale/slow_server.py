"""An engine of very many streams: each gets an event every GAP_S, until all are told to end.

Run as `slow_server.py GAP_S`. Writes "ready", waits for a line, writes its port and serves. On
another line it ends every stream and writes, as JSON, how many events each got, by client's port.
"""

import json
import resource
import selectors
import socket
import sys
import time
from collections import deque

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
EVENT = b'data: {"token":"abcdefgh"}\n\n'
CHUNK = b"%x\r\n%b\r\n" % (len(EVENT), EVENT)
LAST = b"0\r\n\r\n"
REQUEST_END = b"\r\n\r\n{}"


class Server:
    """Streams in the order in which their next event is due, which is that of the last one."""

    def __init__(self, gap_s: float) -> None:
        self.gap_s = gap_s
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
        self.listener.setblocking(False)
        self.selector = selectors.DefaultSelector()
        self.selector.register(self.listener, selectors.EVENT_READ, self.accept)
        self.selector.register(sys.stdin, selectors.EVENT_READ, self.stop)
        self.due: deque[tuple[float, socket.socket]] = deque()
        self.events: dict[socket.socket, int] = {}
        self.ports: dict[socket.socket, int] = {}
        self.stopping = False

    def accept(self, _: object) -> None:
        try:
            while True:
                connection, (_, port) = self.listener.accept()
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self.ports[connection] = port
                self.selector.register(connection, selectors.EVENT_READ, self.begin)
        except BlockingIOError:
            return

    def begin(self, connection: object) -> None:
        assert isinstance(connection, socket.socket)
        self.selector.unregister(connection)
        received = b""
        while not received.endswith(REQUEST_END):
            received += connection.recv(4096)
        connection.sendall(HEAD + CHUNK)
        self.events[connection] = 1
        self.due.append((time.monotonic() + self.gap_s, connection))

    def stop(self, _: object) -> None:
        self.stopping = True

    def run(self) -> None:
        while not self.stopping:
            now = time.monotonic()
            while self.due and self.due[0][0] <= now:
                due, connection = self.due.popleft()
                connection.sendall(CHUNK)
                self.events[connection] += 1
                self.due.append((due + self.gap_s, connection))
            wait = max(0.0, self.due[0][0] - time.monotonic()) if self.due else None
            for key, _ in self.selector.select(wait):
                key.data(key.fileobj)

    def end(self) -> dict[int, int]:
        told = {}
        for connection, events in self.events.items():
            connection.sendall(LAST)
            told[self.ports[connection]] = events
            connection.close()
        return told


def main() -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    print("ready", flush=True)
    sys.stdin.readline()
    server = Server(float(sys.argv[1]))
    print(server.listener.getsockname()[1], flush=True)
    server.run()
    sys.stdin.readline()
    print(json.dumps(server.end()), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
