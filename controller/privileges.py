"""Gives up capabilities that a process needed to start and needs no more (capabilities(7))."""

import ctypes
import os
import struct
from collections.abc import Collection
from pathlib import Path
from typing import Final

CAP_DAC_OVERRIDE: Final = 1
"""Reach a file whatever its mode: an engine's admin socket, a cgroup that was delegated."""

CAP_SYS_NICE: Final = 23
"""Take a real-time priority, as what thaws in time does where it may."""

_VERSION_3: Final = 0x20080522
_HEADER: Final = struct.Struct("=Ii")
_DATA: Final = struct.Struct("=6I")
_PR_SET_NO_NEW_PRIVS: Final = 38


def held(status: str) -> int:
    """The effective capabilities in a /proc/PID/status text, a bit each."""
    for line in status.splitlines():
        if line.startswith("CapEff:"):
            return int(line.split()[1], 16)
    return 0


def keep_only(capabilities: Collection[int]) -> None:
    """Give up every capability but these, for good: no program that is run gets them back.

    To be called while the process has one thread. `OSError` if the kernel refuses.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    kept = sum(1 << each for each in capabilities) & held(Path("/proc/self/status").read_text())
    low, high = kept & 0xFFFFFFFF, kept >> 32
    # effective, permitted and inheritable, the low words before the high ones
    data = _DATA.pack(low, low, 0, high, high, 0)
    # without it a program that root runs has all capabilities again
    for failed in (
        libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0),
        libc.capset(_HEADER.pack(_VERSION_3, 0), data),
    ):
        if failed:
            code = ctypes.get_errno()
            raise OSError(code, f"could not give up capabilities: {os.strerror(code)}")
