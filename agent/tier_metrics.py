"""Which programs measure, as a Prometheus metric."""

from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric


def tier_families(tier: str) -> Iterator[Metric]:
    """1 for the tier that is loaded."""
    family = GaugeMetricFamily(
        "sits_kernel_tier", "1 for the programs that measure.", labels=["tier"]
    )
    for name in ("btf", "bcc", "none"):
        family.add_metric([name], float(name == tier))
    yield family
