"""A client that connects, asks, reads to the end and does it again.

Run as `short_clients.py PORT BYTES A_SECOND SECONDS`; each answer is to have so many bytes. Writes
"ready", waits for a line, and writes, as JSON, how often it did and in how many seconds.
"""

import json
import socket
import sys
import time

REQUEST = b"POST /v1/completions HTTP/1.1\r\nHost: scale\r\nContent-Length: 2\r\n\r\n{}"


def exchange(port: int, expected: int) -> None:
    with socket.socket() as connection:
        connection.connect(("127.0.0.1", port))
        connection.sendall(REQUEST)
        received = 0
        while data := connection.recv(4096):
            received += len(data)
    assert received == expected


def main() -> None:
    port, expected = int(sys.argv[1]), int(sys.argv[2])
    a_second, seconds = float(sys.argv[3]), float(sys.argv[4])
    print("ready", flush=True)
    sys.stdin.readline()
    began = now = time.monotonic()
    made = 0
    while now - began < seconds:
        due = began + made / a_second
        if due > now:
            time.sleep(due - now)
        exchange(port, expected)
        made += 1
        now = time.monotonic()
    print(json.dumps([made, now - began]), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
