"""What processes take: CPU time to the nanosecond, and memory."""

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

import psutil

from tests.kernel.agent.rig import Sitsd

MB: Final = 1e6


def cpu_ns(pids: Iterable[int]) -> int:
    """The CPU time of all threads that these processes have.

    From /proc/PID/task/TID/schedstat (Documentation/scheduler/sched-stats.rst): utime and stime of
    /proc/PID/stat are their sum too, but in hundredths of a second.
    """
    total = 0
    for pid in pids:
        for task in Path(f"/proc/{pid}/task").iterdir():
            with suppress(FileNotFoundError, ProcessLookupError):
                total += int((task / "schedstat").read_text().split()[0])
    return total


def agent_and_controller(sitsd: Sitsd) -> tuple[int, int]:
    """The process ids of the two."""
    status = sitsd.status(lambda status: status["controller"]["pid"] and status["loop"])
    return sitsd.process.pid, int(status["controller"]["pid"])


def rss_mb(pids: Iterable[int]) -> float:
    """Resident memory, what they share counted for each."""
    return sum(psutil.Process(pid).memory_info().rss for pid in pids) / MB


def own_mb(pids: Iterable[int]) -> float:
    """What would be free if they were gone (USS)."""
    return sum(psutil.Process(pid).memory_full_info().uss for pid in pids) / MB
