"""An HTTP/1.1 response as it comes in, without any IO (RFC 9112).

Written apart from the kernel's framing, so that two readings of the same bytes can be compared.
"""

from collections.abc import Iterator
from enum import Enum, auto
from typing import Final

MAX_LINE_BYTES: Final = 32 * 1024
DONE_EVENT: Final = b"data: [DONE]"
"""Ends an OpenAI-style stream; it carries nothing a user sees."""


class ResponseError(ValueError):
    """These bytes are no response that we know, or it ended too early."""


class _State(Enum):
    HEAD = auto()
    SIZE = auto()
    DATA = auto()
    DATA_END = auto()
    TRAILER = auto()
    LENGTH = auto()
    UNTIL_CLOSE = auto()
    COMPLETE = auto()


class ResponseReader:
    """Takes bytes in pieces of any size, gives the payload of every chunk that is whole.

    `status` is None before the head has come; `body_bytes` counts payload, chunked or not.
    `body` keeps the start of a body that is not chunked: an error's text.
    """

    def __init__(self) -> None:
        self.status: int | None = None
        self.keep_alive = True
        self.body_bytes = 0
        self.body = b""
        self._state = _State.HEAD
        self._buffer = bytearray()
        self._left = 0

    @property
    def complete(self) -> bool:
        """Whether the response has come whole."""
        return self._state is _State.COMPLETE

    def feed(self, data: bytes) -> list[bytes]:
        """The payloads of the chunks that `data` completes; `ResponseError` if it is none."""
        if not data:
            return []
        self._buffer += data
        return list(self._chunks())

    def close(self) -> None:
        """The server has closed; `ResponseError` if something was still to come."""
        if self._state is _State.UNTIL_CLOSE:
            self._state = _State.COMPLETE
        if not self.complete:
            raise ResponseError(f"the server closed after {self.body_bytes} bytes of body")

    def _chunks(self) -> Iterator[bytes]:
        while True:
            if self._state in (_State.DATA, _State.LENGTH, _State.UNTIL_CLOSE):
                if self._state is not _State.DATA:
                    self._take_plain()
                    return
                if len(self._buffer) < self._left:
                    return
                payload = self._take(self._left)
                self.body_bytes += len(payload)
                self._state = _State.DATA_END
                yield payload
            elif self._state is _State.COMPLETE:
                if self._buffer:
                    raise ResponseError(f"{len(self._buffer)} bytes after the response")
                return
            else:
                line = self._line()
                if line is None:
                    return
                self._take_line(line)

    def _take_line(self, line: bytes) -> None:
        if self._state is _State.HEAD:
            self._take_head(line)
        elif self._state is _State.SIZE:
            self._left = _size(line)
            self._state = _State.DATA if self._left else _State.TRAILER
        elif self._state is _State.DATA_END:
            if line:
                raise ResponseError("a chunk is longer than its size")
            self._state = _State.SIZE
        elif not line:
            self._state = _State.COMPLETE

    def _take_head(self, head: bytes) -> None:
        first, *fields = head.decode("latin-1").split("\r\n")
        version, _, rest = first.partition(" ")
        code = rest[:3]
        if version not in ("HTTP/1.1", "HTTP/1.0") or not (code.isascii() and code.isdigit()):
            raise ResponseError(f"not a status line: {first!r:.60}")
        if code[0] == "1":
            return
        self.status = int(code)
        headers = {
            name.strip().lower(): value.strip().lower()
            for name, _, value in (line.partition(":") for line in fields)
        }
        connection = headers.get("connection", "")
        self.keep_alive = connection != "close" and version == "HTTP/1.1"
        if headers.get("transfer-encoding", "") == "chunked":
            self._state = _State.SIZE
        elif "content-length" in headers:
            length = headers["content-length"]
            if not (length.isascii() and length.isdigit()):
                raise ResponseError(f"not a content-length: {length!r:.20}")
            self._left = int(length)
            self._state = _State.LENGTH if self._left else _State.COMPLETE
        elif self.status in (204, 304):
            self._state = _State.COMPLETE
        else:
            self._state = _State.UNTIL_CLOSE
            self.keep_alive = False

    def _take_plain(self) -> None:
        whole = self._state is _State.UNTIL_CLOSE
        part = self._take(len(self._buffer) if whole else min(self._left, len(self._buffer)))
        self.body_bytes += len(part)
        self.body += part[: MAX_LINE_BYTES - len(self.body)]
        if not whole:
            self._left -= len(part)
            if not self._left:
                self._state = _State.COMPLETE
                if self._buffer:
                    raise ResponseError(f"{len(self._buffer)} bytes after the response")

    def _line(self) -> bytes | None:
        """The next line, or the whole head, without its end; None while it is not all there."""
        end = b"\r\n\r\n" if self._state is _State.HEAD else b"\r\n"
        at = self._buffer.find(end)
        if at < 0:
            if len(self._buffer) > MAX_LINE_BYTES:
                raise ResponseError(f"a line is above {MAX_LINE_BYTES} bytes")
            return None
        line = self._take(at)
        self._take(len(end))
        return line

    def _take(self, count: int) -> bytes:
        taken = bytes(self._buffer[:count])
        del self._buffer[:count]
        return taken


def _size(line: bytes) -> int:
    text = line.partition(b";")[0].strip()
    try:
        if not text or text[:1] in b"+-" or b"_" in text:
            raise ValueError
        return int(text, 16)
    except ValueError:
        raise ResponseError(f"not a chunk size: {line!r:.40}") from None
