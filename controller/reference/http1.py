"""The little of HTTP/1.1 the engine speaks (RFC 9112), without any IO.

Written by hand because the shape on the wire matters here: a response head in one write, then each
event as one chunk in one write, as vLLM's server does.
"""

from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

MAX_HEAD_BYTES: Final = 32 * 1024
MAX_BODY_BYTES: Final = 1024 * 1024

LAST_CHUNK: Final = b"0\r\n\r\n"


class HttpError(Exception):
    """A request this server can't read; the connection ends with `status`."""

    def __init__(self, status: HTTPStatus, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class Head:
    """A request's first line and headers; header names are lower case."""

    method: str
    target: str
    headers: dict[str, str]
    keep_alive: bool
    body_bytes: int

    @property
    def path(self) -> str:
        """The target without its query."""
        return self.target.partition("?")[0]

    @property
    def expects_continue(self) -> bool:
        """Whether the client waits for `100 Continue` before it sends the body."""
        return self.headers.get("expect", "").lower() == "100-continue"


def take_head(buffer: bytearray) -> Head | None:
    """Take a request head off the front of `buffer`; None while it is not all there."""
    while buffer.startswith(b"\r\n"):
        del buffer[:2]
    end = buffer.find(b"\r\n\r\n", 0, MAX_HEAD_BYTES)
    if end < 0:
        if len(buffer) >= MAX_HEAD_BYTES:
            raise HttpError(
                HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
                f"the request head is above {MAX_HEAD_BYTES} bytes",
            )
        return None
    lines = buffer[:end].decode("latin-1").split("\r\n")
    del buffer[: end + 4]
    method, target, version = _request_line(lines[0])
    headers = dict(_header(line) for line in lines[1:])
    connection = headers.get("connection", "").lower()
    keep_alive = connection == "keep-alive" if version == "HTTP/1.0" else connection != "close"
    return Head(method, target, headers, keep_alive, _body_bytes(headers))


def response(
    status: HTTPStatus,
    body: bytes,
    content_type: str,
    *,
    keep_alive: bool,
    extra: tuple[tuple[str, str], ...] = (),
) -> bytes:
    """A whole response."""
    fields = (("content-length", str(len(body))), *extra)
    return _head(status, content_type, fields, keep_alive=keep_alive) + body


def stream_head(content_type: str, *, keep_alive: bool) -> bytes:
    """The head of a response that goes on in chunks."""
    fields = (("cache-control", "no-cache"), ("transfer-encoding", "chunked"))
    return _head(HTTPStatus.OK, content_type, fields, keep_alive=keep_alive)


def chunk(data: bytes) -> bytes:
    """`data` (not empty) as one chunk."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def _head(
    status: HTTPStatus,
    content_type: str,
    fields: tuple[tuple[str, str], ...],
    *,
    keep_alive: bool,
) -> bytes:
    lines = [
        f"HTTP/1.1 {status.value} {status.phrase}",
        "server: sits-reference-engine",
        f"content-type: {content_type}",
        *(f"{name}: {value}" for name, value in fields),
    ]
    if not keep_alive:
        lines.append("connection: close")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def _request_line(line: str) -> tuple[str, str, str]:
    parts = line.split(" ")
    if len(parts) != 3 or not parts[0].isalpha() or not parts[1]:
        raise HttpError(HTTPStatus.BAD_REQUEST, f"not a request line: {line!r:.60}")
    if parts[2] not in {"HTTP/1.0", "HTTP/1.1"}:
        raise HttpError(
            HTTPStatus.HTTP_VERSION_NOT_SUPPORTED, f"HTTP/1.1 is spoken here, not {parts[2]!r:.20}"
        )
    return parts[0], parts[1], parts[2]


def _header(line: str) -> tuple[str, str]:
    name, colon, value = line.partition(":")
    if not colon or not name or name != name.strip():
        raise HttpError(HTTPStatus.BAD_REQUEST, f"not a header line: {line!r:.60}")
    return name.lower(), value.strip()


def _body_bytes(headers: dict[str, str]) -> int:
    if "transfer-encoding" in headers:
        raise HttpError(
            HTTPStatus.LENGTH_REQUIRED, "a body needs content-length here, not transfer-encoding"
        )
    text = headers.get("content-length", "0")
    if not (text.isascii() and text.isdigit()) or len(text) > 15:
        raise HttpError(HTTPStatus.BAD_REQUEST, f"not a content-length: {text!r:.20}")
    if int(text) > MAX_BODY_BYTES:
        raise HttpError(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"a body is at most {MAX_BODY_BYTES} bytes"
        )
    return int(text)
