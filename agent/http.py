"""Serving WSGI applications: the admin API on a Unix socket, the metrics over TCP.

One request a connection, a bounded number of connections, each answered by a thread of its own.
A client that says nothing, or too slowly, holds only its own connection: it is closed after a
while, and at once when another needs its place.
"""

import grp
import json
import logging
import os
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from io import BytesIO
from pathlib import Path
from types import TracebackType
from typing import IO, Any, ClassVar, Final, cast
from wsgiref.simple_server import ServerHandler, WSGIRequestHandler, WSGIServer
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from prometheus_client import make_wsgi_app
from prometheus_client.registry import Collector

MAX_CONNECTIONS: Final = 16
REQUEST_S: Final = 5.0
"""How long a client may take to send its request, and again to take the answer."""

ADMIN_GROUP: Final = "sits"
"""Who may use the admin socket besides its owner."""

_MAX_LINE_BYTES: Final = 64 * 1024
_MAX_BODY_BYTES: Final = 64 * 1024
_READS_AT_END: Final = 16
_POLL_S: Final = 0.2
_BUSY: Final = b"HTTP/1.0 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n"
_LOG: Final = logging.getLogger("sits.http")

Healthz = Callable[[], tuple[bool, dict[str, Any]]]
"""Whether all is well, and fields for the answer."""


class HttpError(OSError):
    """A server could not be set up."""


def answer_json(
    start_response: StartResponse,
    status: int,
    answer: Mapping[str, Any],
    headers: Sequence[tuple[str, str]] = (),
) -> Iterable[bytes]:
    """`answer` as one line of JSON; `ValueError` if it holds a NaN or an infinity."""
    content = json.dumps(answer, separators=(",", ":"), allow_nan=False).encode() + b"\n"
    return _answer(start_response, status, "application/json", content, headers)


def metrics_app(registry: Collector, healthz: Healthz) -> WSGIApplication:
    """`/metrics` (Prometheus), `/healthz` (200 or 503) and a line at `/` that names them."""
    metrics: WSGIApplication = make_wsgi_app(registry)

    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        path, method = environ.get("PATH_INFO"), environ.get("REQUEST_METHOD")
        if path == "/metrics":
            return metrics(environ, start_response)
        if path not in ("/", "/healthz"):
            return _text(start_response, 404, "not found; there is /metrics and /healthz\n")
        if method not in ("GET", "HEAD"):
            return _text(start_response, 405, f"{path} takes GET\n", [("Allow", "GET, HEAD")])
        if path == "/":
            body = _text(start_response, 200, "sitsd: /metrics /healthz\n")
        else:
            ok, fields = healthz()
            body = answer_json(start_response, 200 if ok else 503, {"ok": ok, **fields})
        return body if method == "GET" else []

    return app


class HttpServer:
    """Serves one application from its own thread. It listens once made; `start` begins to answer.

    `address` is where, for people; `port` is the real one, None on a Unix socket.
    """

    def __init__(self, server: "_Server", address: str, port: int | None) -> None:
        self.address = address
        self.port = port
        self._server = server
        self._thread = threading.Thread(
            target=server.serve_forever, args=(_POLL_S,), name=f"http {address}", daemon=True
        )

    def start(self) -> None:
        """Begin to answer. Once only."""
        self._thread.start()

    def stop(self) -> None:
        """Close the socket and every connection, and wait for their threads. Again is harmless."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()

    def __enter__(self) -> "HttpServer":
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


def tcp_server(host: str, port: int, app: WSGIApplication) -> HttpServer:
    """Listen on `host` (a name, an IPv4 or IPv6 address without brackets); port 0: any free one."""
    shown = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        sock = socket.socket(family, kind, protocol)
    except (OSError, UnicodeError) as error:
        raise HttpError(_could_not(f"listen on '{shown}'", error)) from None
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen(MAX_CONNECTIONS)
    except OSError as error:
        sock.close()
        raise HttpError(_could_not(f"listen on '{shown}'", error)) from None
    real_host, real_port = sock.getsockname()[:2]
    real = f"[{real_host}]:{real_port}" if ":" in real_host else f"{real_host}:{real_port}"
    return HttpServer(_Server(sock, app, f"{real_host}", real_port), real, real_port)


def unix_server(path: Path, app: WSGIApplication, group: str = ADMIN_GROUP) -> HttpServer:
    """Listen on a Unix socket at `path`: a stale socket there is replaced, a live one refused.

    Its owner and members of `group` may connect (mode 0660), only its owner where there is no
    such group (mode 0600).
    """
    trying = f"listen on '{path}'"
    try:
        _remove_stale(path)
    except OSError as error:
        raise HttpError(_could_not(trying, error)) from None
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.bind(str(path))
        # Nobody can connect before listen(), so mode and group are right from the first client on.
        _admit(path, group)
        inode = path.stat().st_ino
        sock.listen(MAX_CONNECTIONS)
    except OSError as error:
        sock.close()
        raise HttpError(_could_not(trying, error)) from None
    server = _Server(sock, app, "localhost", 0, socket_file=(path, inode))
    return HttpServer(server, str(path), None)


def _remove_stale(path: Path) -> None:
    """Remove a socket that nobody listens on; an error if someone does or it is something else."""
    if not path.exists() and not path.is_symlink():
        return
    if not path.is_socket():
        raise FileExistsError(0, "a file that is no socket is there")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
        except FileNotFoundError:
            return
        except (TimeoutError, BlockingIOError):
            raise FileExistsError(0, "another process listens there") from None
        else:
            raise FileExistsError(0, "another process listens there; is sitsd already running?")


def _admit(path: Path, group: str) -> None:
    """Let `group` use the socket, if there is one and this process may hand it over."""
    try:
        os.chown(path, -1, grp.getgrnam(group).gr_gid)
    except (KeyError, PermissionError):
        path.chmod(0o600)
    else:
        path.chmod(0o660)


def _could_not(what: str, error: OSError | UnicodeError) -> str:
    why = getattr(error, "strerror", None) or str(error)
    return f"could not {what}: {why if why[1:2].isupper() else why[:1].lower() + why[1:]}"


def _text(
    start_response: StartResponse,
    status: int,
    text: str,
    headers: Sequence[tuple[str, str]] = (),
) -> Iterable[bytes]:
    kind = "text/plain; charset=utf-8"
    return _answer(start_response, status, kind, text.encode(), headers)


def _answer(
    start_response: StartResponse,
    status: int,
    kind: str,
    content: bytes,
    headers: Sequence[tuple[str, str]],
) -> Iterable[bytes]:
    start_response(
        f"{status} {HTTPStatus(status).phrase}",
        [("Content-Type", kind), ("Content-Length", str(len(content))), *headers],
    )
    return [content]


@dataclass(slots=True)
class _Connection:
    """A connection, the thread that answers it, and until when its request must have come."""

    thread: threading.Thread
    deadline: float | None


class _Server(WSGIServer):
    """Answers on a socket that already listens."""

    daemon_threads = True

    def __init__(
        self,
        sock: socket.socket,
        app: WSGIApplication,
        name: str,
        port: int,
        socket_file: tuple[Path, int] | None = None,
    ) -> None:
        # Past the base classes that make a socket of their own and look up its name in DNS.
        socketserver.BaseServer.__init__(self, sock.getsockname(), _Handler)
        sock.setblocking(False)
        self.socket = sock
        self.server_name = name
        self.server_port = port
        self.setup_environ()
        self.app = app
        self._socket_file = socket_file
        self._connections: dict[socket.socket, _Connection] = {}
        self._lock = threading.Lock()

    def get_request(self) -> tuple[socket.socket, Any]:
        try:
            sock, address = self.socket.accept()
        except BlockingIOError:
            raise  # the client left before it was let in
        except OSError as error:
            _LOG.warning("could not accept a connection: %s", error)
            time.sleep(_POLL_S)  # it fails again at once when, say, no file descriptor is left
            raise
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
            request.sendall(_BUSY)
            self.shutdown_request(request)

    def heard(self, request: Any) -> None:
        """The request has come in full: the connection has its place until it is answered."""
        with self._lock:
            if request in self._connections:
                self._connections[request].deadline = None

    def service_actions(self) -> None:
        """Close what has been silent for too long."""
        now = time.monotonic()
        with self._lock:
            for sock, connection in self._connections.items():
                if connection.deadline is not None and connection.deadline < now:
                    _hang_up(sock)

    def server_close(self) -> None:
        with self._lock:
            threads = [connection.thread for connection in self._connections.values()]
            for sock in self._connections:
                _hang_up(sock)
        for thread in threads:
            thread.join()
        self.socket.close()
        if self._socket_file is not None:
            path, inode = self._socket_file
            self._socket_file = None
            if path.exists() and path.stat().st_ino == inode:
                path.unlink(missing_ok=True)

    def shutdown_request(self, request: Any) -> None:
        """Close, taking first what nobody read: with that left, the answer would be lost."""
        with self._lock:
            self._connections.pop(request, None)
        with suppress(OSError):
            request.shutdown(socket.SHUT_WR)
            request.setblocking(False)
            for _ in range(_READS_AT_END):
                if not request.recv(_MAX_BODY_BYTES):
                    break
        request.close()

    def _serve(self, request: Any, client_address: Any) -> None:
        try:
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

    server: _Server
    timeout: ClassVar[float] = REQUEST_S
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

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        _LOG.debug(format, *args)

    def _body(self) -> bytes:
        """The body if it is of a size to be answered; the application sees the length of any."""
        length = self.headers.get("content-length", "")
        if not (length.isascii() and length.isdigit() and len(length) < 10):
            return b""
        return self.rfile.read(int(length)) if int(length) <= _MAX_BODY_BYTES else b""


class _Run(ServerHandler):
    """An application run for one request; what it raises goes to the log."""

    request_handler: _Handler
    server_software = "sitsd"

    def log_exception(self, exc_info: Any) -> None:
        _LOG.error("could not answer a client", exc_info=exc_info)


def _hang_up(sock: socket.socket) -> None:
    with suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
