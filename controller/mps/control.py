"""Speaks with one MPS control daemon, through NVIDIA's own `nvidia-cuda-mps-control`.

The commands are those of NVIDIA's "Multi-Process Service", appendix "Tools and Interface
Reference". `set_default_active_thread_percentage` holds for servers that the daemon starts
afterwards, `set_active_thread_percentage PID` for clients that join a running server afterwards;
whoever is a client already keeps what it has. What the setting commands print is not documented, so
what is in force is read back.
"""

import math
import os
import shutil
import signal
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Final

from controller.plain import plain

PROGRAM: Final = "nvidia-cuda-mps-control"
PIPE_DIRECTORY: Final = "CUDA_MPS_PIPE_DIRECTORY"
"""The environment variable that says which daemon: of the program, and of each client."""

CALL_TIMEOUT_S: Final = 2.0
KILL_TIMEOUT_S: Final = 0.5

PROGRAM_TIMEOUT_S: Final = 3.0
"""After which the program ends though nobody is left who waits for it."""

DEFAULT: Final = "default"
"""The place of the percentage for servers to come."""

_SOCKET: Final = "control"
_PID_FILE: Final = "nvidia-cuda-mps-control.pid"
"""Which the daemon makes in its directory, and removes when it ends (the same appendix)."""

_NOBODY: Final = "cannot find mps control daemon"
"""What the program says where the daemon was killed and its files are still there."""

Percents = Mapping[str, float]
"""Percent of a GPU's threads by place: `DEFAULT`, and the process id of each server."""


class State(StrEnum):
    """How a limit on a daemon's clients stands."""

    OK = "ok"
    OFF = "off"
    SHADOW = "shadow"
    WAITING = "waiting"
    NO_PROGRAM = "no program"
    NO_DAEMON = "no daemon"
    ENGINE = "engine is a client"
    FOREIGN = "foreign write"
    REFUSED = "refused"
    HUNG = "hung"


class MpsError(Exception):
    """The daemon could not be asked, or did not do what it was asked: the state, and words."""

    def __init__(self, state: State, words: str) -> None:
        super().__init__(words)
        self.state = state


@dataclass(slots=True, eq=False)
class Control:
    """The daemon of `directory`. Each call waits for `CALL_TIMEOUT_S` a command at the most.

    The program inherits the descriptors in `keep`: a lock among them is held until it has ended,
    whoever else is killed meanwhile.
    """

    directory: Path
    keep: tuple[int, ...] = ()
    _stuck: "subprocess.Popen[str] | None" = field(default=None, init=False)

    def instance(self) -> str:
        """Which daemon runs there; another one after a restart, with its own percentages."""
        try:
            (self.directory / _SOCKET).stat()
            with (self.directory / _PID_FILE).open(errors="replace") as file:
                info = os.fstat(file.fileno())
                pid = file.read(32).strip()
        except OSError as error:
            why = (error.strerror or str(error)).lower()
            raise MpsError(
                State.NO_DAEMON, f"no daemon has '{self.directory}': {error.filename}: {why}"
            ) from None
        return f"{pid}:{info.st_ino}:{info.st_mtime_ns}"

    def read(self) -> Percents:
        """What is in force. A server that does not say, as one that ends just now, is left out."""
        found = {DEFAULT: self._percent("get_default_active_thread_percentage")}
        for line in self._ask("get_server_list").splitlines():
            pid = line.strip()
            if not (pid.isascii() and pid.isdigit()):
                continue
            try:
                found[pid] = self._percent(f"get_active_thread_percentage {pid}")
            except MpsError as error:
                if error.state is not State.REFUSED:
                    raise
        return found

    def write(self, place: str, percent: float) -> None:
        """Set one place; that it is in force is for the caller to read back."""
        if place == DEFAULT:
            self._ask(f"set_default_active_thread_percentage {percent:g}")
        else:
            self._ask(f"set_active_thread_percentage {place} {percent:g}")

    def _percent(self, command: str) -> float:
        said = self._ask(command)
        try:
            percent = float(said)
        except ValueError:
            percent = math.nan
        if not 0 < percent <= 100:
            raise MpsError(State.REFUSED, f"{command} said {said.strip()!r:.200}")
        return percent

    def _ask(self, command: str) -> str:
        program = shutil.which(PROGRAM)
        if program is None:
            raise MpsError(State.NO_PROGRAM, f"there is no {PROGRAM} on the path")
        if self._stuck is not None and self._stuck.poll() is None:
            raise MpsError(State.HUNG, f"{PROGRAM} has not ended since it was killed")
        self._stuck = None
        try:
            process = subprocess.Popen(
                [*_limited(), program],
                env={**os.environ, PIPE_DIRECTORY: str(self.directory)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=self.keep,
                start_new_session=True,
                text=True,
                errors="replace",
            )
        except OSError as error:
            raise MpsError(State.REFUSED, f"could not start {program}: {error}") from error
        try:
            out, err = process.communicate(f"{command}\n", CALL_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._kill(process)
            raise MpsError(
                State.HUNG, f"{command} was not answered in {CALL_TIMEOUT_S:g} s"
            ) from None
        if process.returncode:
            words = plain(" ".join(f"{err} {out}".split()))
            state = State.NO_DAEMON if _NOBODY in words.lower() else State.REFUSED
            raise MpsError(
                state,
                f"{command} ended with status {process.returncode}: {words or 'no word':.200}",
            )
        return out

    def _kill(self, process: "subprocess.Popen[str]") -> None:
        """Kill it, and wait a moment: what a driver holds may stay for as long as that wants."""
        with suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        try:
            process.communicate(timeout=KILL_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._stuck = process


def _limited() -> list[str]:
    """What ends a command in time even if we are killed: coreutils' `timeout`, where there is."""
    timeout = shutil.which("timeout")
    return [timeout, "-s", "KILL", f"{PROGRAM_TIMEOUT_S:g}"] if timeout is not None else []
