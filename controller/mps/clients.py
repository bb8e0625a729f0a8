"""Which MPS control daemon a process is a client of, by the environment it was started with."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from controller.mps.control import PIPE_DIRECTORY

DEFAULT_DIRECTORY: Final = "/tmp/nvidia-mps"
"""Where a process without the variable looks for a daemon (NVIDIA, "Multi-Process Service")."""


def are_clients(pids: Iterable[int], directory: Path) -> bool | None:
    """Whether any of the processes is a client of that daemon; None if none of them can tell.

    Being one means to look for the daemon in that directory, whether or not it runs now.
    """
    answers = {_is_client(pid, directory) for pid in pids} - {None}
    return True in answers if answers else None


def _is_client(pid: int, directory: Path) -> bool | None:
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return None
    entries = dict(entry.partition(b"=")[::2] for entry in environment.split(b"\0"))
    named = os.fsdecode(entries.get(PIPE_DIRECTORY.encode(), b"")) or DEFAULT_DIRECTORY
    # its own view: a container may have the directory under another name, or another one there
    inside = f"/proc/{pid}/root{named}" if named.startswith("/") else f"/proc/{pid}/cwd/{named}"
    try:
        return os.path.samestat(Path(inside).stat(), directory.stat())
    except OSError:
        return os.path.normpath(named) == os.path.normpath(directory)
