"""The freezer: freezes groups when asked, and thaws each in time, whatever becomes of who asked.

`python -m controller.limits.freezer --fd N`. It is its own watchdog: nobody but it writes the
freeze, so there is none unless it ran a moment ago, and it thaws by its own clock. When the other
end of its socket is closed it thaws everything and ends. Stopping or killing its client changes
nothing in that; if it is killed itself, the limiter and the guard thaw, which both know the
deadlines from the undo list.

Requests and answers are JSON, one a packet (`freezer_client` has the other half). Like the guard,
it ignores the signals that stop services and imports little. It runs at real-time priority where
it may: a bound is worth no more than its watchdog's turn on the CPU.
"""

import errno
import json
import os
import select
import signal
import socket
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from controller.limits.freezing import FROZEN, STATES, THAWED, wholly_frozen

MAX_PACKET: Final = 65_536
READY: Final = b'{"ready": true}'

_RETRY_NS: Final = 5_000_000


@dataclass(slots=True)
class Freeze:
    """A group we froze; its files stay open, so that a rename cannot keep us from thawing it."""

    file: Path
    fd: int
    state_fd: int
    began_ns: int
    until_ns: int

    def close(self) -> None:
        """Let go of the files."""
        os.close(self.fd)
        os.close(self.state_fd)


class Freezer:
    """What is frozen now, by file."""

    def __init__(self, sock: socket.socket) -> None:
        """Serve the client at the other end of `sock`, a SOCK_SEQPACKET."""
        self._sock = sock
        self._freezes: dict[str, Freeze] = {}

    def serve(self) -> None:
        """Until the client is gone; then, and if anything fails here, all is thawed."""
        try:
            self._serve()
        finally:
            while self._freezes:
                for freeze in list(self._freezes.values()):
                    self._thaw(freeze)
                time.sleep(_RETRY_NS / 1e9 if self._freezes else 0)

    def _serve(self) -> None:
        while True:
            for freeze in list(self._freezes.values()):
                if freeze.until_ns <= time.monotonic_ns():
                    self._thaw(freeze)
            due_ns = min((freeze.until_ns for freeze in self._freezes.values()), default=None)
            wait_s = None if due_ns is None else max(0, due_ns - time.monotonic_ns()) / 1e9
            if not select.select([self._sock], [], [], wait_s)[0]:
                continue
            try:
                packet = self._sock.recv(MAX_PACKET)
            except ConnectionResetError:
                packet = b""
            if not packet:
                return
            self._take(json.loads(packet))

    def _take(self, request: dict[str, Any]) -> None:
        name = request["file"]
        if request["do"] == "forget":
            freeze = self._freezes.pop(name, None)
            if freeze is not None:
                freeze.close()
            return
        try:
            began_ns = self._freeze(Path(name), request)
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else str(error)
            self._say({"file": name, "refused": why})
        else:
            self._say({"file": name, "began_ns": began_ns})

    def _freeze(self, file: Path, request: dict[str, Any]) -> int:
        if file.parent.stat().st_ino != request["cgroup_id"]:
            raise ValueError("another cgroup has its name now")
        self._take({"file": str(file), "do": "forget"})
        fd = os.open(file, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            state_fd = os.open(file.with_name(STATES[file.name]), os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            os.close(fd)
            raise
        now_ns = time.monotonic_ns()
        freeze = Freeze(file, fd, state_fd, now_ns, request["until_ns"])
        if now_ns > request["begin_by_ns"]:
            freeze.close()
            raise ValueError("it came too late")
        # Known before it is done: a freeze that fails half way is thawed like any other.
        self._freezes[str(file)] = freeze
        try:
            os.pwrite(fd, FROZEN[file.name].encode(), 0)
        except OSError:
            del self._freezes[str(file)]
            freeze.close()
            raise
        return now_ns

    def _thaw(self, freeze: Freeze) -> None:
        """Thaw, and say so; what fails is tried again in a moment."""
        complete = False
        with suppress(OSError):
            state = os.pread(freeze.state_fd, 4_096, 0).decode(errors="replace")
            complete = wholly_frozen(freeze.file.name, state)
        try:
            os.pwrite(freeze.fd, THAWED[freeze.file.name].encode(), 0)
        except OSError as error:
            if error.errno not in (errno.ENODEV, errno.ENOENT):
                freeze.until_ns = time.monotonic_ns() + _RETRY_NS
                return
        del self._freezes[str(freeze.file)]
        freeze.close()
        self._say(
            {
                "file": str(freeze.file),
                "thawed_ns": time.monotonic_ns(),
                "began_ns": freeze.began_ns,
                "complete": complete,
            }
        )

    def _say(self, message: dict[str, Any]) -> None:
        # A client that does not read, or is gone, must not keep us from the next deadline.
        with suppress(OSError):
            self._sock.send(json.dumps(message).encode(), socket.MSG_DONTWAIT)


def main(arguments: list[str]) -> int:
    """The freezer process."""
    for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(each, signal.SIG_IGN)
    if len(arguments) != 2 or arguments[0] != "--fd":
        print("usage: python -m controller.limits.freezer --fd N", file=sys.stderr)
        return 2
    with suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    with socket.socket(fileno=int(arguments[1])) as sock:
        with suppress(OSError):
            sock.send(READY)
        Freezer(sock).serve()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
