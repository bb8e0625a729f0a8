"""An engine that only keeps time: each token is due some milliseconds after the one before it.

Run as `pacer.py GAP_MS`. Writes "ready", waits for a line, writes its port as JSON and serves; a
request's body says how many tokens it wants (`max_tokens`). Gaps vary by half of GAP_MS either way.
"""

import json
import random
import socket
import sys
import threading
import time
from contextlib import suppress

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def serve(connection: socket.socket, gap_s: float) -> None:
    # a client may go whenever it likes
    with suppress(ConnectionError), connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        received = b""
        while b"\r\n\r\n" not in received:
            received += connection.recv(65536)
        head, _, body = received.partition(b"\r\n\r\n")
        fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:])
        while len(body) < int(fields[b"content-length"]):
            body += connection.recv(65536)
        connection.sendall(HEAD)
        for number in range(json.loads(body)["max_tokens"]):
            time.sleep(gap_s * random.uniform(0.5, 1.5))
            data = b'data: {"token":%d}\n\n' % number
            connection.sendall(b"%x\r\n%b\r\n" % (len(data), data))
        connection.sendall(b"0\r\n\r\n")


def main() -> None:
    gap_s = float(sys.argv[1]) / 1e3
    print("ready", flush=True)
    sys.stdin.readline()
    listener = socket.create_server(("127.0.0.1", 0), backlog=256)
    print(json.dumps(listener.getsockname()[1]), flush=True)
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=serve, args=(connection, gap_s), daemon=True).start()


if __name__ == "__main__":
    main()
