import ctypes
import os
import struct
import threading

import pytest

from controller.slices import shorten

SLICE_NS = 300_000
GET = {"x86_64": 315, "aarch64": 275}
SIZE = 48


def attributes() -> tuple[int, ...]:
    """struct sched_attr of the calling thread."""
    raw = ctypes.create_string_buffer(SIZE)
    number = GET[os.uname().machine]
    assert ctypes.CDLL(None).syscall(number, 0, raw, SIZE, 0) == 0
    return struct.unpack("=IIQiIQQQ", raw.raw)


def test_a_thread_has_short_turns_and_the_nice_value_it_had() -> None:
    if os.uname().machine not in GET:
        pytest.skip(f"the numbers of the calls are not known on {os.uname().machine}")
    seen = []

    def ask() -> None:
        # whatever the tests run at
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
        before = attributes()
        shorten(SLICE_NS)
        seen.extend([before, attributes()])

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    before, after = seen
    assert (after[1], after[3]) == (before[1], before[3])
    release = tuple(int(part) for part in os.uname().release.split(".")[:2])
    assert after[5] == (SLICE_NS if release >= (6, 12) else before[5])
