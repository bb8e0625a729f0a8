"""The engine's own Prometheus metrics, named after vLLM's with the prefix `sits_reference_`."""

from collections.abc import Callable, Iterator
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from controller.engines.page import EngineNow

TTFT_BUCKETS: Final = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
)  # fmt: skip
"""Seconds; `gen_ai.server.time_to_first_token` of OpenTelemetry's semantic conventions."""

GAP_BUCKETS: Final = (
    0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.5,
)  # fmt: skip
"""Seconds between two tokens of a stream."""

_PREFIX: Final = "sits_reference_"


class Metrics:
    """The registry and what the HTTP front counts itself; the rest is read when scraped."""

    def __init__(self, now: Callable[[], EngineNow], model_name: str) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_EngineCollector(now, model_name))
        labels = ["model_name"]
        self.ttft = Histogram(
            f"{_PREFIX}time_to_first_token_seconds",
            "From the whole request read to its first token handed to the socket.",
            labels,
            buckets=TTFT_BUCKETS,
            registry=self._registry,
        ).labels(model_name)
        self.gap = Histogram(
            f"{_PREFIX}inter_token_latency_seconds",
            "Between two successive tokens of one request.",
            labels,
            buckets=GAP_BUCKETS,
            registry=self._registry,
        ).labels(model_name)
        self._ended = Counter(
            f"{_PREFIX}request_finished",
            "Requests that ended: stop, length, abort (the client left), refused (queue full).",
            [*labels, "finished_reason"],
            registry=self._registry,
        )
        self._model_name = model_name

    def ended(self, reason: str) -> None:
        """Count one request's end."""
        self._ended.labels(self._model_name, reason).inc()

    def render(self) -> bytes:
        """The text of /metrics."""
        return generate_latest(self._registry)


class _EngineCollector:
    def __init__(self, now: Callable[[], EngineNow], model_name: str) -> None:
        self._now = now
        self._model_name = model_name

    def describe(self) -> Iterator[Metric]:
        """Nothing: so that registering does not collect."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """One look at the engine."""
        now = self._now()
        used = now.kv_used / now.kv_total
        for name, text, value in (
            ("num_requests_running", "Requests being computed.", now.running),
            ("num_requests_waiting", "Requests queued.", now.waiting),
            ("num_requests_deferred", "Requests that wait behind others.", now.deferred),
            ("num_tokens_waiting", "Prompt tokens not yet computed.", now.waiting_tokens),
            ("kv_cache_usage_ratio", "KV cache reserved, 0 to 1.", used),
            ("max_running", "The knob's value in force.", now.max_running),
            ("max_batched_tokens", "The knob's value in force.", now.max_batched_tokens),
        ):
            gauge = GaugeMetricFamily(_PREFIX + name, text, labels=["model_name"])
            gauge.add_metric([self._model_name], value)
            yield gauge
        for name, text, value in (
            ("steps", "Steps computed.", now.steps),
            ("prompt_tokens", "Prompt tokens of accepted requests.", now.prompt_tokens_total),
            ("generation_tokens", "Tokens generated.", now.generated_tokens_total),
            ("requests_deferred", "Requests that were deferred.", now.deferred_total),
            ("requests_shed", "Requests refused: the queue was full.", now.shed_total),
            ("lease_expiries", "Leases that ran out.", now.lease_expiries_total),
        ):
            counter = CounterMetricFamily(_PREFIX + name, text, labels=["model_name"])
            counter.add_metric([self._model_name], value)
            yield counter
