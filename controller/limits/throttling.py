"""How long a group's own quota has stopped it, read often: a file that is kept open."""

import os
from contextlib import suppress
from typing import Final

from controller.limits.cgroup import CgroupError, Group
from controller.limits.cpu import parse_throttling

_READ_BYTES: Final = 4096


class ThrottlingReader:
    """Reads one group's cpu.stat with one system call, a fifth of the price of one with an open."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self._fd: int | None = None

    def throttled_ns(self) -> int:
        """Since the group was made; `CgroupError` if it can't be read."""
        with suppress(OSError):
            return self._read()
        # the group may be gone and another made in its place
        self.close()
        try:
            return self._read()
        except OSError as error:
            raise CgroupError(f"could not read '{self._file}': {error.strerror}") from None

    def close(self) -> None:
        """Close what is open."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _read(self) -> int:
        if self._fd is None:
            self._fd = os.open(self._file, os.O_RDONLY | os.O_CLOEXEC)
        text = os.pread(self._fd, _READ_BYTES, 0).decode(errors="replace")
        try:
            return parse_throttling(self._group.version, text).throttled_ns
        except ValueError as error:
            raise CgroupError(f"could not read '{self._file}': {error}") from None

    @property
    def _file(self) -> str:
        return f"{self._group.directory}/cpu.stat"
