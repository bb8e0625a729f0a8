"""Connections for a WSGI application: few at a time, each with its thread and its deadline.

One request a connection. A client that says nothing, or too slowly, holds only its own connection:
it is closed after a while, and at once when another needs its place.
"""

import json
import logging
import selectors
import socket
import socketserver
import ssl
import threading
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from http import HTTPStatus
from io import BytesIO
from pathlib import Path
from typing import IO, Any, ClassVar, Final, cast
from wsgiref.simple_server import ServerHandler, WSGIRequestHandler, WSGIServer
from wsgiref.types import WSGIApplication

from agent.peers import PEER, peer_at
from agent.tls import Tls

MAX_CONNECTIONS: Final = 16
REQUEST_S: Final = 5.0
"""How long a client may take to send its request, and again to take the answer."""

BACKLOG: Final = 128
"""How many may wait to be let in."""

POLL_S: Final = 0.1
"""How often the server looks for clients to give up, while it has any."""

MAX_BODY_BYTES: Final = 64 * 1024
"""The longest body that is taken in, where nothing else is said."""

_MAX_LINE_BYTES: Final = 64 * 1024
_READS_AT_END: Final = 16
_BUSY: Final = b"HTTP/1.0 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n"
_LOG: Final = logging.getLogger("sits.http")


@dataclass(slots=True)
class _Connection:
    """A connection, the thread that answers it, and until when its request must have come."""

    thread: threading.Thread
    deadline: float | None


class Server(WSGIServer):
    """Answers on a socket that already listens."""

    def __init__(
        self,
        sock: socket.socket,
        app: WSGIApplication,
        name: str,
        port: int,
        socket_file: tuple[Path, int] | None = None,
        max_body: int = MAX_BODY_BYTES,
        tls: Tls | None = None,
    ) -> None:
        # Past the base classes that make a socket of their own and look up its name in DNS.
        socketserver.BaseServer.__init__(self, sock.getsockname(), _Handler)
        sock.setblocking(False)
        self.socket = sock
        self.server_name = name
        self.server_port = port
        self.setup_environ()
        self.app = app
        self.max_body = max_body
        self._tls = tls
        self._socket_file = socket_file
        self._connections: dict[socket.socket, _Connection] = {}
        self._refused: dict[socket.socket, float] = {}
        self._lock = threading.Lock()
        self._stopping = False
        self._woken, self._wake = socket.socketpair()

    def serve_forever(self, poll_interval: float = POLL_S) -> None:
        """Answer until `shutdown`. Without a client it sleeps until one comes."""
        with selectors.DefaultSelector() as selector:
            selector.register(self.socket, selectors.EVENT_READ)
            selector.register(self._woken, selectors.EVENT_READ)
            while not self._stopping:
                # only this thread lets clients in: none can come while it sleeps
                waits = bool(self._connections or self._refused)
                ready = selector.select(poll_interval if waits else None)
                if self._stopping:
                    return
                if any(key.fileobj is self.socket for key, _ in ready):
                    self._let_in()
                self.service_actions()

    def _let_in(self) -> None:
        try:
            request, address = self.get_request()
        except OSError:
            return  # it left before, or there is no room for it
        try:
            self.process_request(request, address)
        except Exception:
            self.handle_error(request, address)
            self.shutdown_request(request)

    def shutdown(self) -> None:
        """Have `serve_forever` end soon; whoever calls it waits for its thread."""
        self._stopping = True
        self._wake.send(b".")

    def get_request(self) -> tuple[socket.socket, Any]:
        """The next connection, and an address that wsgiref understands."""
        try:
            sock, address = self.socket.accept()
        except BlockingIOError:
            raise  # the client left before it was let in
        except OSError as error:
            _LOG.warning("could not accept a connection: %s", error)
            time.sleep(POLL_S)  # it fails again at once when, say, no file descriptor is left
            raise
        if self._tls is not None:
            with ExitStack() as undo:
                undo.callback(sock.close)
                sock = self._tls.wrap(sock)
                undo.pop_all()
        return sock, address or ("unix", 0)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread, if need be in place of the client that has been silent longest."""
        thread = threading.Thread(
            target=self._serve, args=(request, client_address), name="http client", daemon=True
        )
        with self._lock:
            room = len(self._connections) < MAX_CONNECTIONS or self._evict()
            if room:
                self._connections[request] = _Connection(thread, time.monotonic() + REQUEST_S)
        if room:
            thread.start()
        else:
            self._refuse(request)

    def heard(self, request: Any) -> None:
        """The request has come in full: the connection has its place until it is answered."""
        with self._lock:
            if request in self._connections:
                self._connections[request].deadline = None

    def service_actions(self) -> None:
        """Close what has been silent for too long, and what has its refusal."""
        now = time.monotonic()
        for sock, until in list(self._refused.items()):
            if until < now or _has_ended(sock):
                self._forget(sock)
        with self._lock:
            for sock, connection in self._connections.items():
                if connection.deadline is not None and connection.deadline < now:
                    _hang_up(sock)

    def server_close(self) -> None:
        """Close everything: at once what owes a request, the rest when it has its answer."""
        with self._lock:
            threads = [connection.thread for connection in self._connections.values()]
            for sock, connection in self._connections.items():
                if connection.deadline is not None:
                    _hang_up(sock)
        for thread in threads:
            thread.join(REQUEST_S)
        for sock in list(self._refused):
            self._forget(sock)
        for sock in (self.socket, self._woken, self._wake):
            sock.close()
        if self._socket_file is not None:
            path, inode = self._socket_file
            self._socket_file = None
            if path.exists() and path.stat().st_ino == inode:
                path.unlink(missing_ok=True)

    def shutdown_request(self, request: Any) -> None:
        """Close, taking first what nobody read: with that left, the answer would be lost."""
        with self._lock:
            self._connections.pop(request, None)
        with suppress(OSError, ValueError):
            request.setblocking(False)
            if isinstance(request, ssl.SSLSocket):
                request.unwrap()  # tells the client that this is the end, and does not wait
        with suppress(OSError):
            request.shutdown(socket.SHUT_WR)
            for _ in range(_READS_AT_END):
                if not request.recv(MAX_BODY_BYTES):
                    break
        request.close()

    def _serve(self, request: Any, client_address: Any) -> None:
        try:
            if isinstance(request, ssl.SSLSocket):
                # here and not where it is accepted: a client may take its time
                request.settimeout(REQUEST_S)
                request.do_handshake()
            self.finish_request(request, client_address)
        except OSError as error:
            _LOG.debug("a client went away: %s", error)
        except Exception:
            self.handle_error(request, client_address)
        finally:
            self.shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log what went wrong; the caller closes the connection."""
        _LOG.exception("could not answer a client")

    def _refuse(self, sock: socket.socket) -> None:
        """Say that there is no room, and wait for the client to hear it.

        Closed at once, a client still about to send its request would meet an error before it has
        read why. Only the server's own thread comes here and to `service_actions`.
        """
        if len(self._refused) >= BACKLOG:
            self._forget(next(iter(self._refused)))
        self._refused[sock] = time.monotonic() + REQUEST_S
        with suppress(OSError):
            sock.setblocking(False)
            sock.sendall(_BUSY)
            sock.shutdown(socket.SHUT_WR)

    def _forget(self, sock: socket.socket) -> None:
        del self._refused[sock]
        sock.close()

    def _evict(self) -> bool:
        """Close the connection that has owed its request longest; False if none does."""
        for sock, connection in self._connections.items():
            if connection.deadline is not None:
                _hang_up(sock)
                del self._connections[sock]
                return True
        return False


class _Handler(WSGIRequestHandler):
    """Reads one request in full, then lets the application answer it."""

    server: Server
    timeout: ClassVar[float] = REQUEST_S
    default_request_version = "HTTP/1.0"
    server_version = "sitsd"
    sys_version = ""

    def handle(self) -> None:
        self.raw_requestline = self.rfile.readline(_MAX_LINE_BYTES + 1)
        if len(self.raw_requestline) > _MAX_LINE_BYTES:
            self.requestline = self.request_version = self.command = ""
            self.send_error(HTTPStatus.REQUEST_URI_TOO_LONG)
            return
        if not self.parse_request():
            return
        body = self._body()
        self.server.heard(self.request)
        out = cast(IO[bytes], self.wfile)
        run = _Run(BytesIO(body), out, self.get_stderr(), self.get_environ())
        run.request_handler = self
        run.run(self.server.app)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Refuse what is not HTTP, in the API's form."""
        content = json.dumps({"error": (message or HTTPStatus(code).phrase).lower()}) + "\n"
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content.encode())

    def get_environ(self) -> dict[str, Any]:
        """CGI's variables, and who is at the other end of a Unix socket."""
        environ = super().get_environ()
        if self.request.family == socket.AF_UNIX:
            environ[PEER] = peer_at(self.request)
        return environ

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        _LOG.debug(format, *args)

    def _body(self) -> bytes:
        """The body if it is of a size to be answered; the application sees the length of any."""
        length = self.headers.get("content-length", "")
        if not (length.isascii() and length.isdigit() and len(length) < 10):
            return b""
        return self.rfile.read(int(length)) if int(length) <= self.server.max_body else b""


class _Run(ServerHandler):
    """An application run for one request; what it raises goes to the log."""

    request_handler: _Handler
    server_software = "sitsd"

    def log_exception(self, exc_info: Any) -> None:
        _LOG.error("could not answer a client", exc_info=exc_info)


def _has_ended(sock: socket.socket) -> bool:
    """Whether the client has closed its end; what it sent before is of no interest any more."""
    try:
        for _ in range(_READS_AT_END):
            if not sock.recv(MAX_BODY_BYTES):
                return True
    except BlockingIOError:
        return False
    except OSError:
        return True
    return False


def _hang_up(sock: socket.socket) -> None:
    with suppress(OSError):
        # of the socket itself: TLS would first take its state away from the thread that reads it
        socket.socket.shutdown(sock, socket.SHUT_RDWR)
