"""Every key of build/bench.json, its unit and its budget.

Budgets are those of the project's first design; `scrape.ms_200_targets` is of its metrics section.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from .figures import Figure


@dataclass(frozen=True, slots=True)
class Budget:
    """What a figure may be: at most or at least `limit`, or `limit` times another figure."""

    unit: str
    most: float | None = None
    least: float | None = None
    times: str = ""

    def limits(self, found: Mapping[str, Figure]) -> tuple[float | None, float | None]:
        """The most and the least it may be; None where there is no such bound."""
        if not self.times or self.most is None:
            return self.most, self.least
        other = found[self.times].median if self.times in found else None
        return (None if other is None else self.most * other), self.least

    def holds(self, found: Mapping[str, Figure], key: str) -> bool | None:
        """Whether a figure keeps it; None where there is no budget or no figure."""
        value = found[key].median if key in found else None
        most, least = self.limits(found)
        if value is None or most is least is None:
            return None
        return (most is None or value <= most) and (least is None or value >= least)


BUDGETS: Final[Mapping[str, Budget]] = {
    "overhead.switch_ns": Budget("ns"),
    "overhead.wakeup_ns": Budget("ns"),
    "overhead.peer_switch_ns": Budget("ns"),
    "overhead.switch_ratio": Budget("", most=0.25),
    "overhead.pingpong_slowdown": Budget("", most=1 / 3, times="overhead.peer_pingpong_slowdown"),
    "overhead.peer_pingpong_slowdown": Budget(""),
    "overhead.packet_ns": Budget("ns"),
    "overhead.stream_throughput_ratio": Budget("", least=0.97),
    "loop.collect_us_p99": Budget("µs", most=300),
    "loop.decide_us_p99": Budget("µs", most=500),
    "loop.actuate_us_p99": Budget("µs", most=1000),
    "loop.total_ms_p99": Budget("ms", most=4.2),
    "loop.reaction_ms_p50": Budget("ms", most=2),
    "loop.reaction_ms_p99": Budget("ms"),
    "footprint.rss_mb": Budget("MB", most=100),
    "footprint.cpu_percent_idle": Budget("%"),
    "footprint.cpu_percent_100_streams": Budget("%", most=1),
    "footprint.load_ms": Budget("ms", most=200),
    "footprint.bcc_load_ms": Budget("ms"),
    "scrape.ms_200_targets": Budget("ms", most=50),
    "scrape.loop_disturbance_ratio": Budget("", most=1.2),
    "cli.status_ms": Budget("ms", most=150),
    "plugin.step_us": Budget("µs", most=1.5),
    "scale.streams": Budget("", least=10_000),
    "scale.cgroups": Budget("", least=1_000),
    "scale.cpus_simulated": Budget("", least=256),
}
