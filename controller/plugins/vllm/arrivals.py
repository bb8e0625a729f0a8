"""When a request of vLLM's arrived, on the clock that does not jump."""

from typing import Final

MAX_LAG_NS: Final = 60_000_000_000
"""A longer way from the API server to the scheduler is a step of the wall clock."""


def arrival_ns(arrived_s: float, wall_s: float, now_ns: int) -> int:
    """CLOCK_MONOTONIC of an arrival that vLLM stamped in wall time, given both clocks' now.

    Tokenizing and a step under way lie between the two, and count: the user waits for them too.
    """
    lag_ns = int((wall_s - arrived_s) * 1e9)
    return now_ns - lag_ns if 0 <= lag_ns <= MAX_LAG_NS else now_ns
