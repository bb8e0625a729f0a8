"""One HTTP request over a socket that is open. As much of HTTP as sitsd speaks, and no more.

The standard library's client imports ssl and the mail parser: a third of the time that a short
command takes to start.
"""

import re
import socket
from typing import Final

MAX_HEAD_BYTES: Final = 64 * 1024
MAX_HEADERS: Final = 100

_STATUS: Final = re.compile(rb"HTTP/1\.[01] ([1-5][0-9]{2})(?: [^\r\n]*)?\r?\n")
_LENGTH: Final = re.compile(rb"(?im)^content-length:[ \t]*([0-9]{1,18})[ \t]*\r?$")
_CHUNK: Final = 256 * 1024


class NotHttpError(ValueError):
    """What came is no answer in HTTP, or only part of one."""


def exchange(
    sock: socket.socket, method: str, target: str, body: bytes | None, most: int
) -> tuple[int, bytes]:
    """Send a request; the answer's status and content, of which no more than `most` bytes are read.

    `OSError` if the other end hangs up without an answer or says nothing in the socket's time;
    `NotHttpError` if it says something else.
    """
    length = "" if body is None else f"Content-Length: {len(body)}\r\n"
    head = f"{method} {target} HTTP/1.1\r\nHost: localhost\r\n{length}Connection: close\r\n\r\n"
    sock.sendall(head.encode("ascii") + (body or b""))
    received = bytearray()
    while (status := _STATUS.match(received)) is None or b"\r\n\r\n" not in received:
        if len(received) > MAX_HEAD_BYTES or not b"HTTP/1."[: len(received)] == received[:7]:
            raise NotHttpError("no answer in HTTP")
        if b"\n" in received and status is None:
            raise NotHttpError("no status line")
        if not (more := sock.recv(_CHUNK)):
            if received:
                raise NotHttpError("half an answer")
            raise ConnectionResetError("it hung up")
        received += more
    before, _, content = bytes(received).partition(b"\r\n\r\n")
    if before.count(b"\n") > MAX_HEADERS:
        raise NotHttpError("more headers than there are")
    said = _LENGTH.search(before)
    wanted = most if said is None else min(most, int(said[1]))
    parts, have = [content], len(content)
    while have < wanted:
        if not (more := sock.recv(_CHUNK)):
            if said is not None:
                raise NotHttpError("less than it announced")
            break
        parts.append(more)
        have += len(more)
    return int(status[1]), b"".join(parts)[:wanted]
