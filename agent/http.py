"""Serving WSGI applications: the admin API on a Unix socket, the metrics over TCP.

Where they listen and what they serve; `agent.connections` says how.
"""

import grp
import json
import os
import socket
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from http import HTTPStatus
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, Final
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from prometheus_client import make_wsgi_app
from prometheus_client.registry import Collector

from agent.connections import BACKLOG, MAX_BODY_BYTES, Server
from agent.tls import Tls

ADMIN_GROUP: Final = "sits"
"""Who may use the admin socket besides its owner."""

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
    return answer_bytes(start_response, status, "application/json", content, headers)


def answer_bytes(
    start_response: StartResponse,
    status: int,
    kind: str,
    content: bytes,
    headers: Sequence[tuple[str, str]] = (),
) -> Iterable[bytes]:
    """`content`, of the media type `kind`."""
    start_response(
        f"{status} {HTTPStatus(status).phrase}",
        [("Content-Type", kind), ("Content-Length", str(len(content))), *headers],
    )
    return [content]


def metrics_app(
    registry: Collector,
    healthz: Healthz,
    more: Mapping[str, WSGIApplication] = MappingProxyType({}),
) -> WSGIApplication:
    """`/metrics` (Prometheus), `/healthz` (200 or 503), and `more` by their paths.

    Without a page of its own, `/` is a line that names what there is. All of it is only read.
    """
    metrics: WSGIApplication = make_wsgi_app(registry)
    there = " ".join(["/metrics", "/healthz", *(path for path in more if path != "/")])

    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        path, method = environ.get("PATH_INFO"), environ.get("REQUEST_METHOD")
        if path == "/metrics":
            return metrics(environ, start_response)
        other = more.get(path or "/")
        if other is None and path not in ("/", "/healthz"):
            return _text(start_response, 404, f"not found; there is {there}\n")
        if method not in ("GET", "HEAD"):
            return _text(start_response, 405, f"{path} takes GET\n", [("Allow", "GET, HEAD")])
        if other is not None:
            body = other(environ, start_response)
        elif path == "/":
            body = _text(start_response, 200, f"sitsd: {there}\n")
        else:
            ok, fields = healthz()
            body = answer_json(start_response, 200 if ok else 503, {"ok": ok, **fields})
        return body if method == "GET" else []

    return app


class HttpServer:
    """Serves one application from its own thread. It listens once made; `start` begins to answer.

    `address` is where, for people; `port` is the real one, None on a Unix socket.
    """

    def __init__(self, server: Server, address: str, port: int | None) -> None:
        self.address = address
        self.port = port
        self._server = server
        self._thread = threading.Thread(
            target=server.serve_forever, name=f"http {address}", daemon=True
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


def tcp_server(host: str, port: int, app: WSGIApplication, tls: Tls | None = None) -> HttpServer:
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
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        raise HttpError(_could_not(f"listen on '{shown}'", error)) from None
    real_host, real_port = sock.getsockname()[:2]
    real = f"[{real_host}]:{real_port}" if ":" in real_host else f"{real_host}:{real_port}"
    return HttpServer(Server(sock, app, f"{real_host}", real_port, tls=tls), real, real_port)


def unix_server(
    path: Path,
    app: WSGIApplication,
    group: str = ADMIN_GROUP,
    max_body: int = MAX_BODY_BYTES,
) -> HttpServer:
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
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        raise HttpError(_could_not(trying, error)) from None
    server = Server(sock, app, "localhost", 0, socket_file=(path, inode), max_body=max_body)
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
    return answer_bytes(start_response, status, kind, text.encode(), headers)
