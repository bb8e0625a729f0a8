"""How long a thread's turn on the CPU is: who asks for shorter ones than others comes sooner.

The scheduler lets those first whose turn is to end first (EEVDF). They have no more of the CPU for
it, but wait for it less after they slept: see docs/decisions.md.
"""

import ctypes
import os
import struct
from typing import Final

SET: Final = {"x86_64": 314, "aarch64": 274}
"""Numbers of sched_setattr(2) by machine: glibc has no function for it before 2.41."""

_ATTRIBUTES: Final = struct.Struct("=IIQiIQQQ")
"""struct sched_attr (include/uapi/linux/sched/types.h): its size, policy, flags, nice, priority,
runtime, deadline, period."""


def shorten(slice_ns: int) -> None:
    """Ask for turns of `slice_ns` for the calling thread, 0.1 to 100 ms, and keep its nice value.

    Kernels before 6.12 (857b158dc5e8) take the call and do nothing with it; where it is refused or
    not known nothing is changed either, and all there is to it is a later turn.
    """
    number, policy = SET.get(os.uname().machine), os.sched_getscheduler(0)
    if number is None or policy not in {os.SCHED_OTHER, os.SCHED_BATCH}:
        return
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    asked = _ATTRIBUTES.pack(_ATTRIBUTES.size, policy, 0, nice, 0, slice_ns, 0, 0)
    ctypes.CDLL(None).syscall(number, 0, asked, 0)
