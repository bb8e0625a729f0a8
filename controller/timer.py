"""A timer that a selector can wait for, exact to the kernel's own timers.

A selector's timeout is whole milliseconds, rounded up (Python's `selectors.EpollSelector`), which
would make every tick half a millisecond late. Python has `os.timerfd_create` only from 3.13 on.
"""

import ctypes
import os
from contextlib import suppress
from typing import Final

_CLOCK_MONOTONIC: Final = 1
_TFD_NONBLOCK: Final = os.O_NONBLOCK
_TFD_CLOEXEC: Final = os.O_CLOEXEC
_NS_PER_S: Final = 1_000_000_000


class _TimeSpec(ctypes.Structure):
    _fields_ = (("tv_sec", ctypes.c_long), ("tv_nsec", ctypes.c_long))


class _ITimerSpec(ctypes.Structure):
    _fields_ = (("it_interval", _TimeSpec), ("it_value", _TimeSpec))


class Timer:
    """Readable once the time that was last set has passed."""

    def __init__(self) -> None:
        """`OSError` where the kernel gives none."""
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._fd: int = self._libc.timerfd_create(_CLOCK_MONOTONIC, _TFD_NONBLOCK | _TFD_CLOEXEC)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        self._spec = _ITimerSpec()

    def fileno(self) -> int:
        """For a selector."""
        return self._fd

    def set(self, in_ns: int) -> None:
        """It becomes readable in `in_ns`, or at once if that is not above 0."""
        value = self._spec.it_value
        value.tv_sec, value.tv_nsec = divmod(max(1, in_ns), _NS_PER_S)
        self._libc.timerfd_settime(self._fd, 0, ctypes.byref(self._spec), None)

    def clear(self) -> None:
        """It is not readable any more until it is set again."""
        with suppress(BlockingIOError):
            os.read(self._fd, 8)

    def close(self) -> None:
        """Give it back."""
        os.close(self._fd)
