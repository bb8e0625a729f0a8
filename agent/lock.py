"""One agent a machine: a lock on a file that says who has it."""

import fcntl
import os
from pathlib import Path


class LockError(RuntimeError):
    """The lock can't be had; the message says why, and who has it."""


def take_lock(path: Path) -> int:
    """Take the lock that one agent holds for as long as the descriptor is open; `LockError`."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise LockError(f"could not open {path}: {error}") from None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.read(fd, 32).decode(errors="replace").strip()
        os.close(fd)
        raise LockError(f"another sitsd runs already (process {holder}, lock {path})") from None
    os.ftruncate(fd, 0)
    os.write(fd, f"{os.getpid()}\n".encode())
    return fd
