"""A file that says what is to be undone: locked while somebody sees to it, replaced as a whole.

Its lock is held by whoever does what the file undoes, for as long as it lives, so that nobody
undoes that meanwhile.
"""

import fcntl
import json
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, TypeVar

SUFFIX: Final = ".undo.json"
"""How the names of such files end, by which `sitsd --undo`, the guard and a start find them."""

_Record = TypeVar("_Record")


class UndoError(Exception):
    """The undo file can't be used; the message says why."""


class KeptFile:
    """The file at `path`, written whole, atomically, and synced to the disk."""

    def __init__(self, path: Path, holder: str) -> None:
        """Take the lock; `UndoError` if another process has it, or there can be no such file.

        `holder` is what that other process is, for the message.
        """
        self.path = path
        self._fresh = path.with_name(f"{path.name}.new")
        try:
            lock = os.open(
                f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600
            )
        except OSError as error:
            raise UndoError(f"could not use undo file '{path}': {error}") from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(lock)
            raise UndoError(f"could not use undo file '{path}': {holder} holds it") from None
        self.lock = lock
        """The lock's descriptor: a process that inherits it holds the lock, too."""

    def load(self, parse: Callable[[str], _Record]) -> _Record | None:
        """What stands in the file, as `parse` reads it; None without one.

        A file that makes no sense (`parse` raises `ValueError`) is moved to PATH.corrupt, and
        `UndoError` says so.
        """
        try:
            return parse(self.path.read_text())
        except FileNotFoundError:
            return None
        except (ValueError, RecursionError) as error:
            with suppress(OSError):
                self.path.replace(f"{self.path}.corrupt")
            raise UndoError(f"could not read undo file '{self.path}': {error}") from error
        except OSError as error:
            raise UndoError(f"could not read undo file '{self.path}': {error}") from error

    def save(self, record: Mapping[str, Any]) -> None:
        """Replace what stands in the file, by JSON; it is on the disk when this returns."""
        try:
            fd = os.open(
                self._fresh,
                os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC,
                0o600,
            )
            with os.fdopen(fd, "w") as file:
                file.write(json.dumps(record))
                file.flush()
                os.fsync(fd)
            self._fresh.replace(self.path)
            self._sync_directory()
        except OSError as error:
            raise UndoError(f"could not write undo file '{self.path}': {error}") from error

    def clear(self) -> None:
        """Nothing is left to undo."""
        try:
            self.path.unlink(missing_ok=True)
            self._sync_directory()
        except OSError as error:
            raise UndoError(f"could not remove undo file '{self.path}': {error}") from error

    def set_aside(self) -> None:
        """Nobody can undo this any more; it is kept under another name for a person to look at."""
        with suppress(OSError):
            self.path.replace(f"{self.path}.left")

    def close(self) -> None:
        """Let go of the lock. Its file stays: removing it would let two hold the lock at once."""
        os.close(self.lock)

    def _sync_directory(self) -> None:
        fd = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
