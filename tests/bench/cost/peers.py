"""Peers: what others trace with, started as their packages have them, and what they say if not."""

import signal
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ATTACH_S: Final = 40.0
"""For compiling too: two of them bring a compiler along."""

_LAST_WORDS: Final = 90


@dataclass(frozen=True, slots=True)
class Peer:
    """A command that prints a line with "Tracing" once it traces, and the package it is in."""

    command: tuple[str, ...]
    package: str


RUN_QUEUE_PEERS: Final[Mapping[str, Peer]] = {
    "runqlat": Peer(("/usr/sbin/runqlat",), "libbpf-tools"),
    "runqlat-bpfcc": Peer(("/usr/sbin/runqlat-bpfcc",), "bpfcc-tools"),
    "runqlat-bt": Peer(("/usr/bin/bpftrace", "/usr/sbin/runqlat.bt"), "bpftrace"),
}
"""Each measures how long tasks wait for a CPU, as our programs on the scheduler do."""


class PeerError(RuntimeError):
    """Why a peer does not trace here, in its own words."""


@contextmanager
def tracing(peer: Peer) -> Iterator[int]:
    """The process id of a peer that traces meanwhile; `PeerError` if it can't."""
    for part in peer.command:
        if not Path(part).is_file():
            raise PeerError(f"{part} is not here (Debian: {peer.package})")
    with subprocess.Popen(
        ["stdbuf", "-oL", *peer.command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        timer = threading.Timer(ATTACH_S, process.kill)
        timer.start()
        try:
            _wait_until_it_traces(process)
            timer.cancel()
            yield process.pid
        finally:
            timer.cancel()
            process.send_signal(signal.SIGINT)
            try:
                process.communicate(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()


def why_not(said: str) -> str:
    """What matters of what a peer said before it ended: its last line with words in it."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return (lines[-1] if lines else "it said nothing")[:_LAST_WORDS]


def _wait_until_it_traces(process: "subprocess.Popen[str]") -> None:
    assert process.stdout is not None
    said = ""
    for line in process.stdout:
        if "Tracing" in line:
            return
        said += line
    raise PeerError(f"could not attach here: {why_not(said)}")
