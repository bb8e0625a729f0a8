"""A connection to an engine that waits for answers and can send what is no message at all."""

import json
import select
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from controller.conformance.check import BreachError
from controller.engines.contract import encode
from controller.plain import plain

ANSWER_S: Final = 5.0
"""Within 1 ms of CPU time, says the contract; a busy machine gives that late."""

MAX_SHOWN: Final = 300
"""Characters of a message in a report."""

MOST_UNREAD: Final = 4 << 20
"""An engine that sends more than this without a line's end sends no answer."""


def shown(text: str | bytes) -> str:
    """What went over the wire, fit for a report: printable, and cut where it is long."""
    if isinstance(text, bytes):
        text = text.decode("utf-8", "backslashreplace")
    text = plain(text.removesuffix("\n"))
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}… ({len(text)} characters)"


@dataclass(frozen=True, slots=True)
class Answer:
    """A response, with what was sent for it.

    Its methods return the answer itself, so that they can be chained; `BreachError` where it is
    not as meant.
    """

    sent: str
    fields: Mapping[str, Any]

    def __getitem__(self, name: str) -> Any:
        if name not in self.fields:
            raise self.failed(f"an answer with {name!r}")
        return self.fields[name]

    @property
    def code(self) -> str | None:
        """The error's code; None if there is no error."""
        error = self.fields.get("error")
        return str(error.get("code")) if isinstance(error, dict) else None

    @property
    def wanted(self) -> dict[str, Any]:
        """The values once what is pending has been applied."""
        return {**self["values"], **self["pending"]}

    def failed(self, expected: str) -> BreachError:
        """The failure to raise where this answer is not what the contract says."""
        return BreachError(expected, shown(json.dumps(dict(self.fields))), self.sent)

    def require(self, holds: bool, expected: str) -> "Answer":
        """This answer, if what is expected of it holds."""
        if not holds:
            raise self.failed(expected)
        return self

    def ok(self) -> "Answer":
        """This answer, if it is a success."""
        return self.require(self.fields.get("ok") is True, '"ok": true')

    def refused(self, *codes: str) -> "Answer":
        """This answer, if it is a refusal with one of `codes`."""
        expected = f"a refusal with code {' or '.join(codes)}"
        return self.require(self.fields.get("ok") is False and self.code in codes, expected)

    def shows(self, **expected: object) -> "Answer":
        """This answer, if these fields have these values, of the same type."""
        for name, value in expected.items():
            got = self[name]
            self.require(
                got == value and isinstance(got, bool) == isinstance(value, bool),
                f"{name} to be {json.dumps(value)}",
            )
        return self

    def wants(self, values: Mapping[str, float]) -> "Answer":
        """This answer, if these knobs have these values, now or as soon as they are applied."""
        wanted = self.wanted
        for name, value in values.items():
            self.require(wanted.get(name) == value, f"{name} to be {value:g}, or pending so")
        return self


class Wire:
    """One connection. Every wait is bounded; what goes wrong on it is a `BreachError`."""

    def __init__(self, path: Path, patience_s: float = ANSWER_S) -> None:
        """Connects; `OSError` if that is not possible."""
        self.patience_s = patience_s
        self._inbox = b""
        self._ids = 0
        self._sent = ""
        self.events: list[dict[str, Any]] = []
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self.sock.settimeout(patience_s)
            self.sock.connect(str(path))
        except BaseException:
            self.sock.close()
            raise

    def close(self) -> None:
        """Close the connection."""
        self.sock.close()

    def send(self, line: bytes) -> None:
        """Send bytes as they are."""
        self._sent = shown(line)
        try:
            self.sock.sendall(line)
        except TimeoutError:
            raise self._failed("the engine to read what it is sent", "it does not") from None
        except OSError as error:
            raise self._failed("an open connection", str(error)) from None

    def ask(self, call: str, **fields: object) -> Answer:
        """Send one request and wait for its response; events that come first are kept."""
        self._ids += 1
        self.send(encode({"id": self._ids, "call": call, **fields}))
        return self.answer(self._ids)

    def answer(self, id_: object) -> Answer:
        """The next response, which must be the one to the request with this id."""
        while True:
            message = self.read()
            if "event" not in message:
                break
            self.events.append(message)
        answer = Answer(self._sent, message)
        expected = f"a response with id {json.dumps(id_)}"
        return answer.require(
            message.get("id", self) == id_ and type(message["id"]) is type(id_), expected
        )

    def event(self, patience_s: float | None = None) -> dict[str, Any] | None:
        """The next event, None if none comes in time."""
        if self.events:
            return self.events.pop(0)
        message = self._line(patience_s or self.patience_s)
        if message is None:
            return None
        read = self._message(message)
        if "event" not in read:
            raise self._failed("an event", shown(message))
        return read

    def read(self) -> dict[str, Any]:
        """The next message, response or event."""
        line = self._line(self.patience_s)
        if line is None:
            raise self._failed(f"an answer within {self.patience_s:g} s", "none")
        return self._message(line)

    def ends(self, patience_s: float | None = None) -> bool:
        """Whether the engine closes the connection in time; what it says before is not read."""
        until = time.monotonic() + (patience_s or self.patience_s)
        while (left_s := until - time.monotonic()) > 0:
            if not select.select([self.sock], [], [], left_s)[0]:
                return False
            try:
                if not self.sock.recv(1 << 16):
                    return True
            except OSError:
                return True
        return False

    def _line(self, patience_s: float) -> bytes | None:
        until = time.monotonic() + patience_s
        while b"\n" not in self._inbox:
            left_s = until - time.monotonic()
            if left_s <= 0 or not select.select([self.sock], [], [], left_s)[0]:
                return None
            try:
                received = self.sock.recv(1 << 16)
            except OSError as error:
                raise self._failed("an open connection", str(error)) from None
            if not received:
                raise self._failed("an open connection", "the engine closed it")
            self._inbox += received
            if len(self._inbox) > MOST_UNREAD:
                raise self._failed("a line", shown(self._inbox))
        line, _, self._inbox = self._inbox.partition(b"\n")
        return line

    def _message(self, line: bytes) -> dict[str, Any]:
        try:
            message = json.loads(line)
        except (ValueError, RecursionError):
            message = None
        if not isinstance(message, dict):
            raise self._failed("one JSON object on a line", shown(line))
        return message

    def _failed(self, expected: str, got: str) -> BreachError:
        return BreachError(expected, got, self._sent)
