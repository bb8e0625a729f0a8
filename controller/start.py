"""How the agent starts a controller and hands it what it works with.

A controller opens no BPF map by name and needs no privilege for it: counters, edges and the guard's
pipe come as file descriptors over its channel (SCM_RIGHTS, unix(7)). They may come long after it
was started, so that it reads its modules while the agent still loads programs.
"""

import os
import socket
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

NICE: Final = -10
"""The loop must run when neighbours take the CPU; it uses little of it."""

_PACKAGES: Final = Path(__file__).parents[1]
_CPUS_BYTES: Final = 4
_MOST_FDS: Final = 4


@dataclass(frozen=True, slots=True)
class Handles:
    """What a controller reads; `edges` is None where the kernel measures nothing."""

    counters: int
    health: int
    edges: int | None
    cpus: int
    """Possible ones, as per-CPU maps have them."""


Started = tuple["subprocess.Popen[bytes]", socket.socket]
"""A controller's process and our end of its channel."""


def start_controller() -> Started:
    """A controller that waits for its handles.

    Once that end is closed it ends, with or without handles. Raises `OSError` if it can't start.
    """
    ours, theirs = socket.socketpair()
    command = [sys.executable, "-m", "controller.process", f"--channel={theirs.fileno()}"]
    with theirs:
        try:
            process = subprocess.Popen(
                command, cwd=_PACKAGES, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()]
            )
        except OSError:
            ours.close()
            raise
    with suppress(OSError):
        # from outside, and so before it reads its modules: that takes most of its CPU
        os.setpriority(os.PRIO_PROCESS, process.pid, NICE)
    return process, ours


def hand_over(channel: socket.socket, handles: Handles, heartbeat: int) -> None:
    """Give a controller its handles and the guard's pipe, once and before anything else.

    Raises `OSError` if one of them is not open. That a controller is dead is not told here: who
    reads the channel finds out.
    """
    fds = [handles.counters, handles.health, heartbeat]
    if handles.edges is not None:
        fds.append(handles.edges)
    try:
        socket.send_fds(channel, [handles.cpus.to_bytes(_CPUS_BYTES)], fds)
    except (BrokenPipeError, ConnectionResetError):
        return


def take_over(channel: socket.socket) -> tuple[Handles, int]:
    """Wait for handles and the guard's pipe; `EOFError` if the agent is gone instead."""
    cpus, fds, _, _ = socket.recv_fds(channel, _CPUS_BYTES, _MOST_FDS, socket.MSG_CMSG_CLOEXEC)
    if not cpus:
        raise EOFError("the agent is gone")
    counters, health, heartbeat, *edges = fds
    handles = Handles(counters, health, edges[0] if edges else None, int.from_bytes(cpus))
    return handles, heartbeat
