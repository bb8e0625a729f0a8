"""The policy file as the agent writes it: whole or not at all, with what was there kept beside."""

import os
from pathlib import Path
from typing import Final

PREVIOUS: Final = ".previous"


def replace_policy(file: Path, text: str) -> Path | None:
    """Make `text` the content of `file`, with its owner and mode.

    Returns where the content before is now; None if there was none, or if it was `text` already.
    `OSError` if that can't be done; then the file is as it was. A symbolic link stays one.
    """
    real, content = file.resolve(), text.encode()
    try:
        before, status = real.read_bytes(), real.stat()
    except FileNotFoundError:
        _put(real, content, None)
        return None
    if before == content:
        return None
    previous = real.with_name(real.name + PREVIOUS)
    _put(previous, before, status)
    _put(real, content, status)
    return previous


def _put(path: Path, content: bytes, like: os.stat_result | None) -> None:
    """Put a file in place by renaming it, with the owner and mode of another."""
    fresh = path.with_name(f".{path.name}.new")
    fresh.unlink(missing_ok=True)
    fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(content)
            file.flush()
            if like is not None:
                if (like.st_uid, like.st_gid) != (os.geteuid(), os.getegid()):
                    os.fchown(fd, like.st_uid, like.st_gid)
                os.fchmod(fd, like.st_mode & 0o7777)
            os.fsync(fd)
        fresh.replace(path)
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
