"""What neighbours use, lose and get, as Prometheus metrics."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from bpf.layout import Counters


@dataclass(frozen=True, slots=True)
class NeighbourFigures:
    """One neighbour at a scrape; `held` is the controller's part of its status."""

    name: str
    counters: Counters
    used_cores: float | None = None
    quota_cores: float | None = None
    held: Mapping[str, Any] = field(default_factory=dict)


_COUNTERS = (
    ("sits_neighbour_held_seconds", "Time under a quota or a freeze of ours.", "held_ns"),
    (
        "sits_neighbour_held_cpu_seconds",
        "CPU time that it got while it was held: what the SLO left over for it.",
        "held_used_ns",
    ),
    (
        "sits_neighbour_held_back_cpu_seconds",
        "CPU time that it would have used beside that, going by what it used before.",
        "held_back_ns",
    ),
    ("sits_neighbour_frozen_seconds", "Time in which it was frozen.", "frozen_ns"),
)


def neighbour_families(neighbours: Iterable[NeighbourFigures]) -> Iterator[Metric]:
    """Every family of held neighbours; of one that was never held there are zeros."""
    shown = [each for each in neighbours if each.held]
    for name, text, key in _COUNTERS:
        family = CounterMetricFamily(name, text, labels=["target", "class"])
        for each in shown:
            family.add_metric([each.name, each.held["class"]], each.held[key] / 1e9)
        yield family
    freezes = CounterMetricFamily(
        "sits_neighbour_freezes", "Freezes that are over.", labels=["target", "class"]
    )
    late = CounterMetricFamily(
        "sits_neighbour_late_thaws",
        "Freezes that somebody else than the freezer had to end.",
        labels=["target"],
    )
    longest = GaugeMetricFamily(
        "sits_neighbour_longest_freeze_seconds", "The longest of them.", labels=["target"]
    )
    idle = GaugeMetricFamily(
        "sits_neighbour_idle", "1 while the agent has made it idle.", labels=["target"]
    )
    for each in shown:
        idle.add_metric([each.name], each.held["idle"])
        freezes.add_metric([each.name, each.held["class"]], each.held["freezes"])
        late.add_metric([each.name], each.held["late_thaws"])
        longest.add_metric([each.name], each.held["longest_freeze_ns"] / 1e9)
    yield from (idle, freezes, late, longest)
