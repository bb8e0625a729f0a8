"""The limiter's half of the freezer: starts the process, asks it to freeze, hears of each thaw."""

import json
import select
import socket
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from subprocess import DEVNULL, Popen, TimeoutExpired
from typing import Any, Final

from controller.limits.cgroup import CgroupError
from controller.limits.freezer import MAX_PACKET

ANSWER_MS: Final = 50
"""How long a freeze may take to be made; the fast loop waits for no more than that."""
START_TIMEOUT_NS: Final = 10_000_000_000
END_TIMEOUT_S: Final = 5.0

_PACKAGES: Final = Path(__file__).parents[2]
_MODULE: Final = "controller.limits.freezer"


@dataclass(frozen=True, slots=True)
class Thaw:
    """A freeze that the freezer ended at its deadline; times are CLOCK_MONOTONIC.

    `complete`: every process of the group stood still by then.
    """

    file: Path
    began_ns: int
    thawed_ns: int
    complete: bool


class FreezerClient:
    """Talks to one freezer process at a time, started when it is first wanted."""

    def __init__(self) -> None:
        """Nothing is started yet."""
        self._process: Popen[bytes] | None = None
        self._sock: socket.socket | None = None
        self._ready = False
        self._started_ns = 0
        self._killed: list[Popen[bytes]] = []
        self._thaws: list[Thaw] = []

    @property
    def pid(self) -> int | None:
        """The freezer's process id, if one is running as far as is known."""
        return None if self._process is None else self._process.pid

    @property
    def alive(self) -> bool:
        """Whether there is a freezer; False means that nobody but us and the guard will thaw."""
        return self._sock is not None

    def start(self, wait_ms: int = 0) -> bool:
        """Start the freezer unless it runs; whether it is ready, waiting for that if asked."""
        if self._sock is None:
            self._sock, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                # Without site, since the packages are in the working directory; -E as for the guard
                self._process = Popen(
                    (sys.executable, "-E", "-S", "-m", _MODULE, "--fd", str(theirs.fileno())),
                    cwd=_PACKAGES,
                    stdin=DEVNULL,
                    stdout=DEVNULL,
                    pass_fds=(theirs.fileno(),),
                    start_new_session=True,
                )
            self._sock.setblocking(False)
            self._ready = False
            self._started_ns = time.monotonic_ns()
        if not self._ready:
            self._hear(wait_ms)
            if not self._ready and time.monotonic_ns() - self._started_ns > START_TIMEOUT_NS:
                self._give_up()
        return self._ready

    def freeze(self, file: Path, cgroup_id: int, until_ns: int) -> int:
        """Have `file` written; returns when that was, before `until_ns` has it thawed again.

        Raises `CgroupError` if the kernel refuses, and if no freezer answers: then the one there
        was is killed, so that it cannot freeze later.
        """
        if not self.start():
            raise CgroupError(f"could not freeze '{file.parent}': the freezer is being started")
        latest_ns = time.monotonic_ns() + ANSWER_MS * 1_000_000
        request = {
            "do": "freeze",
            "file": str(file),
            "cgroup_id": cgroup_id,
            "until_ns": until_ns,
            "begin_by_ns": min(latest_ns, until_ns),
        }
        if self._send(request):
            left_ms = float(ANSWER_MS)
            # Once more when the time is up: it may be we who had no CPU.
            while left_ms > 0 and self.alive:
                left_ms = max(0, latest_ns - time.monotonic_ns()) / 1e6
                for answer in self._hear(left_ms):
                    if answer["file"] != str(file):
                        continue
                    if "refused" in answer:
                        raise CgroupError(f"could not freeze '{file.parent}': {answer['refused']}")
                    return int(answer["began_ns"])
        self._give_up()
        raise CgroupError(f"could not freeze '{file.parent}': no answer from the freezer")

    def forget(self, file: Path) -> None:
        """The freeze of `file` has ended otherwise."""
        if self._ready:
            self._send({"do": "forget", "file": str(file)})

    def thaws(self) -> tuple[Thaw, ...]:
        """What the freezer thawed since the last call; never waits."""
        self._hear(0)
        thaws, self._thaws = self._thaws, []
        return tuple(thaws)

    def close(self) -> None:
        """End the freezer: it thaws what is frozen first."""
        if self._sock is not None:
            self._sock.close()
            self._sock = None
        if self._process is not None:
            try:
                self._process.wait(END_TIMEOUT_S)
            except TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None
        for process in self._killed:
            process.wait()
        self._killed.clear()

    def _send(self, request: dict[str, Any]) -> bool:
        if self._sock is not None:
            with suppress(OSError):
                self._sock.send(json.dumps(request).encode())
                return True
        return False

    def _hear(self, wait_ms: float) -> list[dict[str, Any]]:
        """The answers there are, after waiting for the first; thaws are kept apart."""
        answers: list[dict[str, Any]] = []
        while self._sock is not None:
            if not select.select([self._sock], [], [], wait_ms / 1e3)[0]:
                break
            try:
                packet = self._sock.recv(MAX_PACKET)
            except OSError:
                packet = b""
            if not packet:
                self._give_up()
                break
            message = json.loads(packet)
            wait_ms = 0
            if "ready" in message:
                self._ready = True
            elif "thawed_ns" in message:
                self._thaws.append(
                    Thaw(
                        Path(message["file"]),
                        message["began_ns"],
                        message["thawed_ns"],
                        message["complete"],
                    )
                )
            else:
                answers.append(message)
        return answers

    def _give_up(self) -> None:
        """Kill the freezer, so that it does nothing more; the caller thaws what it had frozen."""
        if self._sock is not None:
            self._sock.close()
            self._sock = None
        self._ready = False
        if self._process is not None:
            self._process.kill()
            self._killed.append(self._process)
            self._process = None
            with suppress(TimeoutExpired):
                self._killed[-1].wait(ANSWER_MS / 1e3)
        self._killed = [process for process in self._killed if process.poll() is None]
