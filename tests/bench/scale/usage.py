"""What the agent and its controller take while they watch so much."""

import statistics
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from tests.kernel.agent.rig import Sitsd

MB = 1e6
SCRAPES = 5


@dataclass(frozen=True, slots=True)
class Usage:
    """CPU in percent of a core, memory in MB, times in ms; maps are in kernel memory."""

    agent_cpu_percent: float
    controller_cpu_percent: float
    agent_rss_mb: float
    controller_rss_mb: float
    maps_mb: float
    agent_files: int
    controller_files: int
    scrape_ms: float
    scrape_kb: float
    status_ms: float
    tick_ms_p50: float | None
    tick_ms_p99: float | None
    ticks: int
    late_ticks: int

    def as_dict(self) -> dict[str, Any]:
        """For the file, to four digits: more is noise."""
        return {name: _short(value) for name, value in asdict(self).items()}


def usage(sitsd: Sitsd, seconds: float) -> Usage:
    """What both take in so many seconds, and scrapes after that."""
    agent = sitsd.process.pid
    controller = int(sitsd.api.status()["controller"]["pid"])
    before, began_s = (cpu_ns(agent), cpu_ns(controller)), time.monotonic()
    time.sleep(seconds)
    after, took_s = (cpu_ns(agent), cpu_ns(controller)), time.monotonic() - began_s
    agent_share, controller_share = (
        (b - a) / 1e7 / took_s for a, b in zip(before, after, strict=True)
    )
    scrapes = [timed_ms(lambda: sitsd.get("/metrics")) for _ in range(SCRAPES)]
    statuses = [timed_ms(sitsd.api.status) for _ in range(SCRAPES)]
    loop = sitsd.status(lambda status: status["loop"] is not None)["loop"]
    return Usage(
        agent_cpu_percent=agent_share,
        controller_cpu_percent=controller_share,
        agent_rss_mb=psutil.Process(agent).memory_info().rss / MB,
        controller_rss_mb=psutil.Process(controller).memory_info().rss / MB,
        maps_mb=maps_bytes(agent) / MB,
        agent_files=files(agent),
        controller_files=files(controller),
        scrape_ms=statistics.median(scrapes),
        scrape_kb=len(sitsd.get("/metrics")[1]) / 1e3,
        status_ms=statistics.median(statuses),
        tick_ms_p50=loop["tick_ms"]["p50"],
        tick_ms_p99=loop["tick_ms"]["p99"],
        ticks=loop["ticks"],
        late_ticks=loop["late_ticks"],
    )


def timed_ms(work: Any) -> float:
    """How long it takes."""
    began_ns = time.monotonic_ns()
    work()
    return (time.monotonic_ns() - began_ns) / 1e6


def cpu_ns(pid: int) -> int:
    """The CPU time of all threads a process has (Documentation/scheduler/sched-stats.rst)."""
    total = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):
            total += int((task / "schedstat").read_text().split()[0])
    return total


def files(pid: int) -> int:
    """Open descriptors."""
    return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())


def maps_bytes(pid: int) -> int:
    """Kernel memory of the BPF maps that a process holds, each once."""
    texts = []
    for each in Path(f"/proc/{pid}/fdinfo").iterdir():
        with suppress(FileNotFoundError):  # it was closed just now
            texts.append(each.read_text())
    return sum(map_bytes(texts))


def map_bytes(infos: Iterable[str]) -> list[int]:
    """Of each map among these files of fdinfo (bpf_map_show_fdinfo of kernel/bpf/syscall.c)."""
    found: dict[str, int] = {}
    for info in infos:
        fields = dict(line.split(":", 1) for line in info.splitlines() if ":" in line)
        if "map_id" in fields and "memlock" in fields:
            found[fields["map_id"].strip()] = int(fields["memlock"])
    return list(found.values())


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.4g}")
