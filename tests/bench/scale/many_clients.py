"""Very many clients in one process: each asks once and reads to the end.

Run as `many_clients.py PORT COUNT A_SECOND`. Writes "ready", waits for a line, connects; writes
"connected" when all have their first bytes, and at the end, as JSON, the bytes each got, by port.
"""

import json
import resource
import selectors
import socket
import sys
import time

REQUEST = b"POST /v1/completions HTTP/1.1\r\nHost: scale\r\nContent-Length: 2\r\n\r\n{}"
READ_BYTES = 65_536


class Clients:
    """Connections that are open, and what each has got."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.selector = selectors.DefaultSelector()
        self.got: dict[int, int] = {}
        self.open: dict[socket.socket, int] = {}

    def ask(self) -> None:
        connection = socket.create_connection(("127.0.0.1", self.port))
        connection.sendall(REQUEST)
        connection.setblocking(False)
        port = connection.getsockname()[1]
        self.open[connection], self.got[port] = port, 0
        self.selector.register(connection, selectors.EVENT_READ)

    def read(self, wait_s: float) -> None:
        for key, _ in self.selector.select(wait_s):
            assert isinstance(key.fileobj, socket.socket)
            data = key.fileobj.recv(READ_BYTES)
            if data:
                self.got[self.open[key.fileobj]] += len(data)
            else:
                self.selector.unregister(key.fileobj)
                del self.open[key.fileobj]
                key.fileobj.close()


def main() -> None:
    port, count, a_second = map(int, sys.argv[1:])
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    print("ready", flush=True)
    sys.stdin.readline()
    clients = Clients(port)
    began = time.monotonic()
    for number in range(count):
        clients.ask()
        clients.read(max(0.0, began + number / a_second - time.monotonic()))
    while not all(clients.got.values()):
        clients.read(0.1)
    print("connected", flush=True)
    while clients.open:
        clients.read(1.0)
    print(json.dumps(clients.got), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
