"""The agent's end of the engine contract: a client that never blocks, for a selectors loop.

The peer is not trusted to behave: it may hang, lie, close or send half a line. What it sends is
bounded and checked, and a peer that says nothing is a fact to be read from `overdue`, not an error.
"""

import select
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from controller.engines.contract import MAX_LINE_BYTES, ContractError, decode, encode

MAX_UNANSWERED: Final = 64
"""Requests without an answer yet; a peer that owes more is not asked again."""

READ_BYTES: Final = 64 * 1024
"""Read in one `on_readable`, so that a peer that never stops cannot hold the caller."""

NS_PER_S: Final = 1_000_000_000


class EngineError(Exception):
    """The engine can't be reached, broke the contract, or (`call` only) refused.

    `code` is the contract's error code where the engine gave one.
    """

    def __init__(self, message: str, code: str | None = None) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True)
class Request:
    """A request on its way: `sent_ns` is the caller's clock when it was made."""

    id: int
    call: str
    sent_ns: int


@dataclass(frozen=True, slots=True)
class Refusal:
    """The `error` of a response; `code` is one of `contract.ERRORS`, or a newer engine's."""

    code: str
    message: str
    knob: str | None


@dataclass(frozen=True, slots=True)
class Response:
    """An answer: `refusal` is None if the engine did what was asked; `fields` are all it sent."""

    request: Request
    refusal: Refusal | None
    fields: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Event:
    """What a `watch` brings: `name` is `knobs` or `stats`."""

    name: str
    fields: Mapping[str, Any]


class EngineClient:
    """One connection to one engine. After an `EngineError` it is closed; make another."""

    def __init__(self, path: Path) -> None:
        """Nothing is opened before `connect`."""
        self.path = path
        self.late = 0
        """Answers that came after their request was given up."""
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        self._inbox = bytearray()
        self._outbox = bytearray()
        self._last_id = 0
        self._unanswered: dict[int, Request] = {}

    def __enter__(self) -> "EngineClient":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def connect(self) -> None:
        """Connect now or fail: a Unix socket needs no waiting.

        `EngineError` says so if nothing listens or the engine has stopped accepting.
        """
        try:
            self._sock.connect(str(self.path))
        except BlockingIOError:
            raise self._fail("does not accept connections: its queue is full") from None
        except OSError as error:
            self.close()
            raise EngineError(f"could not reach engine at '{self.path}': {error}") from error

    def fileno(self) -> int:
        """For selectors; -1 once closed."""
        return self._sock.fileno()

    @property
    def wants_write(self) -> bool:
        """Whether to call `on_writable` when the socket is writable."""
        return bool(self._outbox)

    @property
    def unanswered(self) -> int:
        """Requests without an answer, overdue ones not counted once reported."""
        return len(self._unanswered)

    def request(self, call: str, now_ns: int, **fields: Any) -> int | None:
        """Send a request, or queue what does not go out at once; returns its id.

        None, and nothing is sent, while the engine owes `MAX_UNANSWERED` answers.
        `EngineError` if the connection is broken, `ValueError` if `fields` are no JSON.
        """
        if len(self._unanswered) >= MAX_UNANSWERED or len(self._outbox) >= MAX_LINE_BYTES:
            return None
        line = encode({"id": self._last_id + 1, "call": call, **fields})
        self._last_id += 1
        self._unanswered[self._last_id] = Request(self._last_id, call, now_ns)
        self._outbox += line
        self.on_writable()
        return self._last_id

    def on_writable(self) -> None:
        """Send what is queued, as far as it goes."""
        if not self._outbox:
            return
        try:
            sent = self._sock.send(self._outbox)
        except BlockingIOError:
            return
        except (BrokenPipeError, ConnectionResetError):
            # The engine may have said why before it closed; reading brings that, and then the end.
            self._outbox.clear()
            return
        except OSError as error:
            raise self._fail(f"can't be written to: {error}") from error
        del self._outbox[:sent]

    def on_readable(self) -> list[Response | Event]:
        """Read what is there, without waiting; returns the answers and events it completes."""
        try:
            received = self._sock.recv(READ_BYTES)
        except BlockingIOError:
            return []
        except ConnectionResetError:
            received = b""
        except OSError as error:
            raise self._fail(f"can't be read from: {error}") from error
        if not received:
            raise self._fail("closed the connection")
        self._inbox += received
        *lines, rest = self._inbox.split(b"\n")
        self._inbox = bytearray(rest)
        if any(len(line) >= MAX_LINE_BYTES for line in (*lines, rest)):
            raise self._fail(f"sent a line of more than {MAX_LINE_BYTES} bytes")
        messages = []
        for line in lines:
            message = self._read(bytes(line))
            if message is not None:
                messages.append(message)
        return messages

    def overdue(self, now_ns: int, timeout_ns: int) -> list[Request]:
        """Give up and return the requests sent `timeout_ns` or longer before `now_ns`."""
        late = [
            request
            for request in self._unanswered.values()
            if now_ns - request.sent_ns >= timeout_ns
        ]
        for request in late:
            del self._unanswered[request.id]
        return late

    def excuse(self, now_ns: int) -> None:
        """Count the time of what is unanswered from now: nobody was there to read answers."""
        for request in self._unanswered.values():
            self._unanswered[request.id] = Request(request.id, request.call, now_ns)

    def close(self) -> None:
        """Close the connection. A lease held over it stays until its deadline."""
        self._sock.close()

    def _read(self, line: bytes) -> Response | Event | None:
        try:
            message = decode(line)
        except ContractError as error:
            raise self._fail(f"answered with {line!r:.80}: {error}") from None
        name = message.get("event")
        if isinstance(name, str):
            return Event(name, message)
        refusal = self._refusal(message)
        request_id = message.get("id")
        if request_id is None and refusal is not None:
            raise self._fail(f"refused: {refusal.message} ({refusal.code})", refusal.code)
        if type(request_id) is not int or not 0 < request_id <= self._last_id:
            raise self._fail(f"answered a request that was not made: id {request_id!r:.40}")
        request = self._unanswered.pop(request_id, None)
        if request is None:
            self.late += 1
            return None
        return Response(request, refusal, message)

    def _refusal(self, message: Mapping[str, Any]) -> Refusal | None:
        if message.get("ok") is True:
            return None
        error = message.get("error")
        if message.get("ok") is not False or not isinstance(error, dict):
            raise self._fail(f"answered with neither success nor error: {dict(message)!r:.80}")
        knob = error.get("knob")
        return Refusal(
            str(error.get("code")), str(error.get("message")), None if knob is None else str(knob)
        )

    def _fail(self, what: str, code: str | None = None) -> EngineError:
        self.close()
        return EngineError(f"engine at '{self.path}' {what}", code)


def call(path: Path, call: str, timeout_s: float, **fields: Any) -> Mapping[str, Any]:
    """Ask one thing and wait for the answer, `timeout_s` at most; for commands, not for loops.

    `EngineError` if there is no answer or a refusal, whose `code` it carries.
    """
    ends_ns = time.monotonic_ns() + int(timeout_s * NS_PER_S)
    with EngineClient(path) as client:
        client.connect()
        client.request(call, time.monotonic_ns(), **fields)
        while (left_ns := ends_ns - time.monotonic_ns()) > 0:
            writers = [client] if client.wants_write else []
            readable, writable, _ = select.select([client], writers, [], left_ns / NS_PER_S)
            if writable:
                client.on_writable()
            if not readable:
                continue
            for message in client.on_readable():
                if isinstance(message, Event):
                    continue
                if message.refusal is not None:
                    raise EngineError(
                        f"engine at '{path}' refused {call}: {message.refusal.message}"
                        f" ({message.refusal.code})",
                        message.refusal.code,
                    )
                return message.fields
    raise EngineError(f"engine at '{path}' did not answer {call} within {timeout_s:g} s")
