"""A tiny streaming server: each POST is answered with as many events as its path says.

`python -m tests.vm.guest.sse_server` prints its port. `POST /7` gives seven events, each one HTTP
chunk and one write, after a head of its own. With `--defer` a connection begins with the packet
that carries its request, as it does when the client's last packet of the handshake is lost.
"""

import socket
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Answer(BaseHTTPRequestHandler):
    """Streams events in chunks and keeps the connection."""

    protocol_version = "HTTP/1.1"
    wbufsize = 0

    def do_POST(self) -> None:
        """Answer one request."""
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for number in range(int(self.path[1:])):
            time.sleep(0.005)
            event = b"data: %d\n\n" % number
            self.wfile.write(b"%x\r\n%s\r\n" % (len(event), event))
        self.wfile.write(b"0\r\n\r\n")

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base's name
        """Say nothing."""


if __name__ == "__main__":
    with ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        if "--defer" in sys.argv:
            server.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, 30)
        print(server.server_port, flush=True)
        server.serve_forever()
