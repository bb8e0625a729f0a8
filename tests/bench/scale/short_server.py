"""An engine of very short streams, one a connection.

Run as `short_server.py`. Writes "ready", waits for a line, writes its port and serves for ever.
"""

import socket
import sys

EVENT = b'data: {"token":"abcdefgh"}\n\n'
CHUNK = b"%x\r\n%b\r\n" % (len(EVENT), EVENT)
CHUNKS = 2
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
ANSWER = HEAD + CHUNKS * CHUNK + b"0\r\n\r\n"


def main() -> None:
    print("ready", flush=True)
    sys.stdin.readline()
    listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
    print(listener.getsockname()[1], flush=True)
    while True:
        connection, _ = listener.accept()
        with connection:
            if connection.recv(4096):
                connection.sendall(ANSWER)


if __name__ == "__main__":
    main()
