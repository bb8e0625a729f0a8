"""The buckets of the Prometheus histograms, cut from the kernel's finer ones."""

from collections.abc import Mapping, Sequence
from typing import Final

from prometheus_client.core import HistogramMetricFamily
from prometheus_client.metrics_core import Metric

from bpf.histogram import Histogram

TTFT_BOUNDS_MS: Final = (
    1,
    5,
    10,
    20,
    40,
    60,
    80,
    100,
    250,
    500,
    750,
    1000,
    2500,
    5000,
    7500,
    10000,
)
"""OpenTelemetry's advice for gen_ai.server.time_to_first_token."""

GAP_BOUNDS_MS: Final = (
    1,
    2.5,
    5,
    10,
    25,
    50,
    75,
    100,
    120,
    150,
    200,
    300,
    400,
    500,
    750,
    1000,
    2500,
)
"""OpenTelemetry's advice for gen_ai.server.time_per_output_token, finer below, 120 ms for the rule
of seed row A16."""

WAIT_BOUNDS_MS: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 1000)
LOOP_BOUNDS_MS: Final = (0.05, 0.1, 0.2, 0.3, 0.5, 1, 2, 4.2, 10, 20, 50, 100)


def add_histogram(
    family: HistogramMetricFamily,
    labels: Sequence[str],
    histogram: Histogram,
    bounds_ms: tuple[float, ...],
) -> None:
    """Add a series to a family of seconds."""
    counts = histogram.cumulative([round(bound * 1e6) for bound in bounds_ms])
    buckets = [(f"{bound / 1e3:g}", float(n)) for bound, n in zip(bounds_ms, counts, strict=True)]
    buckets.append(("+Inf", float(histogram.count)))
    family.add_metric(labels, buckets, histogram.sum_ns / 1e9)


def histogram_family(
    name: str, text: str, series: Mapping[str, Histogram], bounds_ms: tuple[float, ...]
) -> Metric:
    """A family with a histogram an engine, in seconds."""
    family = HistogramMetricFamily(name, text, labels=["engine"])
    for label, histogram in series.items():
        add_histogram(family, [label], histogram, bounds_ms)
    return family
