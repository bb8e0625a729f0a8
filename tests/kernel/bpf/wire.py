"""HTTP/1.1 as bytes: what the scripted server is to send, and a client that only reads and writes.

A script is a list of steps, each made by one of the functions below; the server takes it from the
request's body and follows it.
"""

import base64
import ctypes
import json
import socket
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

Step = list[object]

CHUNKED_HEAD: Final = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
)
DONE: Final = b"data: [DONE]\n\n"
LAST: Final = b"0\r\n\r\n"
PATIENCE_S: Final = 20.0

_SO_ATTACH_FILTER: Final = 26


def chunk(data: bytes, extension: bytes = b"") -> bytes:
    """One chunk of a chunked body (RFC 9112, section 7.1)."""
    return b"%x%b\r\n%b\r\n" % (len(data), extension, data)


def event(number: int) -> bytes:
    """The data of one server-sent event."""
    return b'data: {"token":%d}\n\n' % number


def chunked(payloads: Iterable[bytes], head: bytes = CHUNKED_HEAD, end: bytes = LAST) -> bytes:
    """A whole chunked response."""
    return head + b"".join(map(chunk, payloads)) + end


def send(data: bytes, cuts: Iterable[int] = (), times: int = 1) -> Step:
    """Write `data` so many times over, in one write or one more for each place where it is cut."""
    return ["send", base64.b64encode(data).decode(), sorted(cuts), times]


def pause(seconds: float) -> Step:
    """Do nothing for so long."""
    return ["pause", seconds]


def insist(data: bytes) -> Step:
    """Write `data` with non-blocking writes; the server says how often there was no room."""
    return ["insist", base64.b64encode(data).decode()]


def buffer(size: int) -> Step:
    """Give the connection's send buffer this size."""
    return ["buffer", size]


REPORT: Final[Step] = ["report"]
CLOSE: Final[Step] = ["close"]
RESET: Final[Step] = ["reset"]
DIE: Final[Step] = ["die"]


def give_up_after(milliseconds: int) -> Step:
    """Let the server's kernel drop the connection when bytes stay unacknowledged for so long."""
    return ["give_up_after", milliseconds]


def sent_by(script: Iterable[Step]) -> bytes:
    """All bytes a script sends."""
    return b"".join(
        base64.b64decode(str(step[1])) * (int(str(step[3])) if step[0] == "send" else 1)
        for step in script
        if step[0] in {"send", "insist"}
    )


def post(script: Iterable[Step], headers: bytes = b"") -> bytes:
    """A request that has the server follow `script`."""
    body = json.dumps(list(script)).encode()
    return b"POST /v1/completions HTTP/1.1\r\nHost: test\r\n%bContent-Length: %d\r\n\r\n%b" % (
        headers,
        len(body),
        body,
    )


@dataclass(frozen=True, slots=True)
class Client:
    """One connection."""

    socket: socket.socket

    @classmethod
    def to(cls, port: int, address: str = "127.0.0.1", receive_buffer: int | None = None) -> Self:
        """Connect; `receive_buffer` keeps the window small from the first packet on."""
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        made = socket.socket(family, socket.SOCK_STREAM)
        made.settimeout(PATIENCE_S)
        if receive_buffer is not None:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        made.connect((address, port))
        return cls(made)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        _type: type[BaseException] | None,
        _value: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def port(self) -> int:
        """Our own port."""
        return int(self.socket.getsockname()[1])

    def write(self, data: bytes) -> None:
        """Send all of it."""
        self.socket.sendall(data)

    def read(self, length: int) -> bytes:
        """Exactly so many bytes; fails when the server closes before."""
        parts = []
        while length:
            part = self.socket.recv(min(length, 1 << 20))
            assert part, f"the server closed with {length} bytes missing"
            parts.append(part)
            length -= len(part)
        return b"".join(parts)

    def read_to_end(self) -> bytes:
        """All there is until the server closes or resets."""
        parts = []
        try:
            while part := self.socket.recv(1 << 20):
                parts.append(part)
        except ConnectionResetError:
            pass
        return b"".join(parts)

    def run(self, *script: Step) -> None:
        """Have the server follow a script, and hold that every byte of it arrived unharmed."""
        self.write(post(script))
        expected = sent_by(script)
        assert self.read(len(expected)) == expected

    def get(self) -> None:
        """Another request on the same connection, one that is no stream."""
        self.write(b"GET /health HTTP/1.1\r\nHost: test\r\n\r\n")
        assert self.read(43).endswith(b"hello")

    def take_no_longer_packets_than(self, length: int) -> None:
        """Drop the rest unseen, and so unacknowledged: to the server, nobody is there.

        Of a packet's length, its TCP header is a part.
        """
        code = struct.pack(
            "HBBI" * 4,
            *(0x80, 0, 0, 0),  # the packet's length
            *(0x25, 0, 1, length),  # greater?
            *(0x06, 0, 0, 0),  # then drop it
            *(0x06, 0, 0, 0xFFFFFFFF),  # or take all of it
        )
        program = ctypes.create_string_buffer(code)
        pointer = struct.pack("HxxxxxxQ", 4, ctypes.addressof(program))
        self.socket.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, pointer)

    def reset(self) -> None:
        """Close with a reset."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close()

    def close(self) -> None:
        """Close as a client does that has read all it wants."""
        self.socket.close()
