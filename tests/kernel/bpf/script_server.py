"""An HTTP server that does what the request's body says, byte by byte; see wire.py for the steps.

Run as `script_server.py ADDRESS…`: one listening socket on a free port of each address, all in this
process; on a port of one's choice with `IPV4:PORT`. `ADDRESS+SECONDS` accepts connections only once
their first data came, for so long; `ADDRESS+FILE` speaks TLS with the key and certificate in that
file. Writes the ports, as JSON, when it is ready to serve. A script may have it write more, a line
of JSON each time.
"""

import base64
import fcntl
import itertools
import json
import os
import select
import signal
import socket
import ssl
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


def insist(connection: socket.socket, encoded: str) -> None:
    """Write without ever being blocked in it; says how often there was no room at all."""
    data, refused = memoryview(base64.b64decode(encoded)), 0
    connection.setblocking(False)
    while data:
        try:
            data = data[connection.send(data) :]
        except BlockingIOError:
            refused += 1
            select.select([], [connection], [])
    connection.setblocking(True)
    say(refused=refused)


def buffer(connection: socket.socket, size: int) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, size)


def unsent(connection: socket.socket) -> int:
    """Bytes written and not sent yet (SIOCOUTQNSD, include/uapi/linux/sockios.h)."""
    return int.from_bytes(fcntl.ioctl(connection, 0x894B, bytes(4)), sys.byteorder)


def report(connection: socket.socket) -> None:
    """Wait until all has left; says how that went and what TCP_INFO tells then."""
    waited_from_ns, waited = time.monotonic_ns(), unsent(connection)
    while unsent(connection):
        time.sleep(0.0005)
    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 200)
    # include/uapi/linux/tcp.h, struct tcp_info: segments, and microseconds
    (total_retrans,) = struct.unpack_from("=I", info, 100)
    busy, rwnd, sndbuf = struct.unpack_from("=3Q", info, 168)
    say(
        unsent=waited,
        waited_from_ns=waited_from_ns,
        left_ns=time.monotonic_ns(),
        total_retrans=total_retrans,
        busy_us=busy,
        rwnd_limited_us=rwnd,
        sndbuf_limited_us=sndbuf,
    )


def say(**facts: int) -> None:
    print(json.dumps(facts), flush=True)


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
    "insist": insist,
    "buffer": buffer,
    "report": report,
    "pause": pause,
    "close": close,
    "reset": reset,
    "give_up_after": give_up_after,
    "die": die,
}


def accept(listener: socket.socket, tls: ssl.SSLContext | None) -> None:
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=welcome, args=(connection, tls), daemon=True).start()


def welcome(connection: socket.socket, tls: ssl.SSLContext | None) -> None:
    serve(tls.wrap_socket(connection, server_side=True) if tls else connection)


def main() -> None:
    print("ready", flush=True)
    sys.stdin.readline()
    ports = []
    for argument in sys.argv[1:]:
        where, _, how = argument.partition("+")
        address, _, port = where.partition(":") if "." in where else (where, "", "")
        tls = None
        listener = socket.create_server(
            (address, int(port or 0)),
            family=socket.AF_INET6 if ":" in address else socket.AF_INET,
            backlog=128,
            dualstack_ipv6=address == "::",
        )
        if how.isdigit():
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, int(how))
        elif how:
            tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            tls.load_cert_chain(how)
        ports.append(listener.getsockname()[1])
        threading.Thread(target=accept, args=(listener, tls), daemon=True).start()
    print(json.dumps(ports), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
