"""Streams by version as Prometheus metrics; `agent.versions` bounds how many there are."""

from collections.abc import Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric

from agent.buckets import GAP_BOUNDS_MS, TTFT_BOUNDS_MS, add_histogram
from agent.versions import VersionFigures

_LABELS = ["engine", "version"]


def version_families(engines: Mapping[str, Mapping[str, VersionFigures]]) -> Iterator[Metric]:
    """Every family, of each engine's versions."""
    each = [
        ([engine, version], figures)
        for engine, versions in engines.items()
        for version, figures in versions.items()
    ]
    for name, text, field_name, unit in (
        ("streams", "Streams that ended, by version.", "streams", 1.0),
        ("streams_good", "Of these, that met their SLO.", "good", 1.0),
        ("errors", "Of these, that the engine failed.", "errors", 1.0),
        ("chunk_gaps", "Gaps between their chunks.", "gaps", 1.0),
        ("chunk_gaps_over_slo", "Of these, over the SLO.", "gaps_over", 1.0),
        ("chunk_gap_seconds", "All of these gaps together.", "gap_sum_ns", 1e-9),
    ):
        family = CounterMetricFamily(f"sits_version_{name}", text, labels=_LABELS)
        for labels, figures in each:
            family.add_metric(labels, getattr(figures, field_name) * unit)
        yield family
    for name, text, field_name, bounds in (
        (
            "time_to_first_token",
            "First byte of a request in to the first data chunk out, by version.",
            "ttft",
            TTFT_BOUNDS_MS,
        ),
        (
            "longest_gap",
            "The longest gap of each stream, by version.",
            "longest_gap",
            GAP_BOUNDS_MS,
        ),
    ):
        histograms = HistogramMetricFamily(f"sits_version_{name}_seconds", text, labels=_LABELS)
        for labels, figures in each:
            add_histogram(histograms, labels, getattr(figures, field_name), bounds)
        yield histograms
