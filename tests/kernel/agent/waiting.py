"""Waiting for what must come, however busy the machine is."""

import time
from collections.abc import Callable
from typing import Final, TypeVar

PATIENCE_S: Final = 30.0
"""How long a test waits for what must come; no result depends on how soon it does."""

T = TypeVar("T")


def becomes(condition: Callable[[], T], patience_s: float = PATIENCE_S) -> T:
    """What `condition` returns once that is true; fails when it stays false."""
    deadline = time.monotonic() + patience_s
    while not (value := condition()):
        assert time.monotonic() < deadline, f"still {value!r} after {patience_s:g} s"
        time.sleep(0.005)
    return value
