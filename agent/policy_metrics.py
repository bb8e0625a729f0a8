"""The canary as Prometheus metrics."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

OUTCOMES: Final = ("adopted", "rolled_back", "aborted")
"""How a canary ends, but for that of an agent that is killed."""


@dataclass(frozen=True, slots=True)
class CanaryFigures:
    """The canary at a scrape: `ended` counts those before it by outcome.

    `seen` has, by engine, what `Trial.figures` tells of a canary under way.
    """

    active: bool = False
    ended: Mapping[str, int] = field(default_factory=dict)
    seen: Mapping[str, Any] = field(default_factory=dict)


def canary_families(canary: CanaryFigures) -> Iterator[Metric]:
    """Every family; those of what is seen are empty while no policy is on trial."""
    yield GaugeMetricFamily(
        "sits_policy_canary_active", "Whether a policy is on trial.", float(canary.active)
    )
    ended = CounterMetricFamily(
        "sits_policy_canary_ended",
        "Policies that were on trial since the agent's start, by outcome.",
        labels=["outcome"],
    )
    for outcome in OUTCOMES:
        ended.add_metric([outcome], canary.ended.get(outcome, 0))
    yield ended
    arms = [
        (engine, policy, figures[policy])
        for engine, figures in canary.seen.items()
        for policy in ("old", "new")
    ]
    for name, text, field_name in (
        ("streams", "Streams of the trial that are judged.", "streams"),
        ("bad_ratio", "Share of them that missed the old policy's SLO or failed.", "bad_share"),
        ("error_ratio", "Share of them that failed.", "error_share"),
    ):
        family = GaugeMetricFamily(f"sits_policy_canary_{name}", text, labels=["engine", "policy"])
        for engine, policy, arm in arms:
            if arm[field_name] is not None:
                family.add_metric([engine, policy], arm[field_name])
        yield family
    p95 = GaugeMetricFamily(
        "sits_policy_canary_p95_seconds",
        "95th percentile under each policy of a trial.",
        labels=["engine", "policy", "of"],
    )
    for engine, policy, arm in arms:
        for of in ("ttft", "gap"):
            if arm[f"{of}_p95_ms"] is not None:
                p95.add_metric([engine, policy, of], arm[f"{of}_p95_ms"] / 1e3)
    yield p95
