"""An HTTP server that does what the request's body says, byte by byte; see wire.py for the steps.

Run as `script_server.py ADDRESS…`: one listening socket on a free port of each address, all in this
process. `ADDRESS+deferred` accepts connections only once their first data came. Writes the ports,
as JSON, when it is ready to serve.
"""

import base64
import itertools
import json
import os
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable


def serve(connection: socket.socket) -> None:
    with connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        received = b""
        try:
            while True:
                while b"\r\n\r\n" not in received:
                    more = connection.recv(65536)
                    if not more:
                        return
                    received += more
                head, _, received = received.partition(b"\r\n\r\n")
                lines = [line.partition(b":") for line in head.lower().split(b"\r\n")]
                headers = {name: value.strip() for name, _, value in lines}
                if headers.get(b"expect") == b"100-continue":
                    connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
                length = int(headers.get(b"content-length", b"0"))
                while len(received) < length:
                    received += connection.recv(65536)
                body, received = received[:length], received[length:]
                if head.startswith(b"GET "):
                    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello")
                    continue
                for name, *arguments in json.loads(body):
                    STEPS[name](connection, *arguments)
                    if connection.fileno() < 0:
                        return
        except (ConnectionError, TimeoutError):
            return


def send(connection: socket.socket, encoded: str, cuts: list[int], times: int) -> None:
    data = base64.b64decode(encoded) * times
    for start, end in itertools.pairwise([0, *cuts, len(data)]):
        connection.sendall(data[start:end])


def pause(_connection: socket.socket, seconds: float) -> None:
    time.sleep(seconds)


def close(connection: socket.socket) -> None:
    connection.close()


def reset(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def give_up_after(connection: socket.socket, milliseconds: int) -> None:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)


def die(_connection: socket.socket) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


STEPS: dict[str, Callable[..., None]] = {
    "send": send,
    "pause": pause,
    "close": close,
    "reset": reset,
    "give_up_after": give_up_after,
    "die": die,
}


def accept(listener: socket.socket) -> None:
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=serve, args=(connection,), daemon=True).start()


def main() -> None:
    print("ready", flush=True)
    sys.stdin.readline()
    ports = []
    for argument in sys.argv[1:]:
        address, _, deferred = argument.partition("+")
        listener = socket.create_server(
            (address, 0),
            family=socket.AF_INET6 if ":" in address else socket.AF_INET,
            backlog=128,
            dualstack_ipv6=address == "::",
        )
        if deferred:
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, 5)
        ports.append(listener.getsockname()[1])
        threading.Thread(target=accept, args=(listener,), daemon=True).start()
    print(json.dumps(ports), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
