"""Where our processes' logs go: journald with fields, where it reads our stderr, else lines.

Either way a message is one line of printable text: what is quoted in it (a process name, a request
path, an engine's words) can neither begin a line of its own nor steer a terminal.

A log call gives journald more fields by `extra={"fields": {"SITS_ENGINE": name}}`.
"""

import logging
import os
import re
import socket
import struct
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final, TextIO

from controller.plain import plain

JOURNAL_SOCKET: Final = Path("/run/systemd/journal/socket")
FIELDS: Final = "fields"
"""The attribute of a log record that has more fields for journald."""

LINE_FORMAT: Final = "%(levelname)s %(name)s: %(message)s"

_MAX_BYTES: Final = 16 * 1024
"""Of one field; a datagram holds all of them, and takes some 200 KiB by default."""

_NAME: Final = re.compile(r"[A-Z][A-Z0-9_]{0,63}")
_SIZE: Final = struct.Struct("<Q")
# syslog(3)
_PRIORITIES: Final = (
    (logging.CRITICAL, 2),
    (logging.ERROR, 3),
    (logging.WARNING, 4),
    (logging.INFO, 6),
)
_DEBUG: Final = 7


class LineFormatter(logging.Formatter):
    """A message as one printable line; a traceback as indented lines below it."""

    def __init__(self) -> None:
        super().__init__(LINE_FORMAT)

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's own name
        """The line of a record."""
        return plain(super().formatMessage(record))

    def formatException(self, ei: object) -> str:  # noqa: N802 - logging's own name
        """A traceback, every line of it printable and indented."""
        text = super().formatException(ei)  # type: ignore[arg-type]
        return "\n".join(f"  {plain(line)}" for line in text.split("\n"))


class JournalHandler(logging.Handler):
    """Sends records to journald by its native protocol (systemd: JOURNAL_NATIVE_PROTOCOL).

    Never waits: what journald has no room for is lost and counted. Without journald the lines go
    to stderr.
    """

    def __init__(self, identifier: str, path: Path = JOURNAL_SOCKET) -> None:
        """`identifier` is what journalctl shows before each line."""
        super().__init__()
        self.lost = 0
        self._identifier = identifier
        self._path = str(path)
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._sock.setblocking(False)
        self._lines = logging.StreamHandler(sys.stderr)
        self._lines.setFormatter(LineFormatter())

    def emit(self, record: logging.LogRecord) -> None:
        """Send a record."""
        try:
            self._sock.sendto(datagram(self._fields(record)), self._path)
        except BlockingIOError:
            self.lost += 1
        except OSError:
            self._lines.emit(record)
        except Exception:
            self.handleError(record)

    def close(self) -> None:
        """Let go of the socket."""
        self._sock.close()
        super().close()

    def _fields(self, record: logging.LogRecord) -> dict[str, str]:
        fields = {
            "MESSAGE": plain(record.getMessage()),
            "PRIORITY": str(priority(record.levelno)),
            "SYSLOG_IDENTIFIER": self._identifier,
            "LOGGER": record.name,
            "CODE_FILE": record.pathname,
            "CODE_LINE": str(record.lineno),
            "CODE_FUNC": record.funcName,
        }
        if record.exc_info:
            fields["EXCEPTION_TEXT"] = LineFormatter().formatException(record.exc_info)
        more = getattr(record, FIELDS, {})
        return fields | {name: plain(str(value)) for name, value in more.items()}


def datagram(fields: Mapping[str, str]) -> bytes:
    """Fields as journald's native protocol has them; names that it would not take are left out.

    A value with a line end goes with its length, so that it can't begin a field of its own.
    """
    parts = []
    for name, text in fields.items():
        if not _NAME.fullmatch(name):
            continue
        value = text.encode(errors="backslashreplace")[:_MAX_BYTES]
        if b"\n" in value:
            parts.append(name.encode() + b"\n" + _SIZE.pack(len(value)) + value + b"\n")
        else:
            parts.append(name.encode() + b"=" + value + b"\n")
    return b"".join(parts)


def priority(level: int) -> int:
    """The syslog priority of one of logging's levels."""
    return next((number for low, number in _PRIORITIES if level >= low), _DEBUG)


def reads_stderr(stream: TextIO, journal_stream: str) -> bool:
    """Whether journald reads what we write there, by $JOURNAL_STREAM (systemd.exec(5))."""
    device, _, inode = journal_stream.partition(":")
    try:
        found = os.fstat(stream.fileno())
    except (OSError, ValueError):
        return False
    return (device, inode) == (str(found.st_dev), str(found.st_ino))


def set_up_logging(identifier: str, level: int = logging.INFO) -> None:
    """Have everything of this process that is logged at `level` or above told where it is read."""
    handler: logging.Handler
    if reads_stderr(sys.stderr, os.environ.get("JOURNAL_STREAM", "")):
        handler = JournalHandler(identifier)
    else:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(LineFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)


def set_log_level(name: str) -> None:
    """Tell from now on what is of this level or above: debug, info, warning or error."""
    logging.getLogger().setLevel(name.upper())
