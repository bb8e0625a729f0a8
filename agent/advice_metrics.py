"""What autoscalers are advised, as Prometheus metrics; `controller.advice` works it out."""

from collections.abc import Iterator, Mapping

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from controller.advice import Advice


def advice_families(engines: Mapping[str, Advice]) -> Iterator[Metric]:
    """Every family, by engine; no series of what is not known yet."""
    instances = GaugeMetricFamily(
        "sits_advice_instances",
        "Engines like this one that its load needs, by formula.",
        labels=["engine", "formula"],
    )
    ratio = GaugeMetricFamily(
        "sits_advice_load_ratio",
        "The same by capacity, not rounded: its sum over a service's engines is what they need.",
        labels=["engine"],
    )
    warm = GaugeMetricFamily(
        "sits_advice_warm_replicas", "Engines to start ahead of need.", labels=["engine"]
    )
    trigger = GaugeMetricFamily(
        "sits_advice_trigger", "Whether a sign for that is there.", labels=["engine", "trigger"]
    )
    for engine, advice in engines.items():
        for formula, number in advice.instances.items():
            instances.add_metric([engine, formula], number)
        if advice.load_ratio is not None:
            ratio.add_metric([engine], advice.load_ratio)
        if advice.warm_replicas is not None:
            warm.add_metric([engine], advice.warm_replicas)
        for name, on in advice.triggers.items():
            trigger.add_metric([engine, name], float(on))
    yield from (instances, ratio, warm, trigger)
