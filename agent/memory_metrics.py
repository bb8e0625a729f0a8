"""The metrics of memory: what is left, whether it runs short, and what is held for that."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric

_FIGURES: Final = (
    (
        "sits_engine_memory_left_bytes",
        "Memory that can still be had under the tightest limit of an engine's cgroups, or of the"
        " machine.",
        "left_bytes",
    ),
    ("sits_engine_memory_limit_bytes", "That limit.", "limit_bytes"),
    (
        "sits_engine_memory_per_request_bytes",
        "Memory that a running request takes by its end, by the last minute.",
        "per_request_bytes",
    ),
    (
        "sits_engine_gpu_memory_fragmentation_ratio",
        "Share of a GPU's memory that one block can't have: (total - largest free block) / total,"
        " as the engine's allocator shows it; absent where it does not.",
        "gpu_fragmentation",
    ),
    (
        "sits_engine_running_cap",
        "Requests that may run by what there is memory for; absent where it holds all that may.",
        "running_cap",
    ),
)


def memory_families(statuses: Mapping[str, Mapping[str, Any]]) -> Iterator[Metric]:
    """From the engines' `memory` in the controller's status, by name; what is unknown is absent."""
    for name, text, field in _FIGURES:
        family = GaugeMetricFamily(name, text, labels=["engine"])
        for engine, memory in statuses.items():
            if memory[field] is not None:
                family.add_metric([engine], memory[field])
        yield family
    short = GaugeMetricFamily(
        "sits_engine_memory_short", "Whether an engine's memory runs short.", labels=["engine"]
    )
    held = GaugeMetricFamily(
        "sits_neighbour_memory_high_bytes",
        "What a neighbour's memory is held to (memory.high) for an engine.",
        labels=["engine", "target"],
    )
    for engine, memory in statuses.items():
        short.add_metric([engine], float(bool(memory["short"])))
        for target, high in memory["held"].items():
            held.add_metric([engine, target], high)
    yield from (short, held)
