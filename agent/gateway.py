"""An engine's load under the names that gateways know.

The Gateway API inference extension picks an endpoint by three gauges of a model server: requests
queued, requests running, share of the KV cache in use. Its protocol leaves the names open and its
picker expects vLLM's unless told otherwise
(https://github.com/kubernetes-sigs/gateway-api-inference-extension, docs/proposals,
003-model-server-protocol). So they are served on a path of their own, to be scraped by gateways
alone: beside a real vLLM's, names like these would count twice in Prometheus.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final
from wsgiref.types import WSGIApplication

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

PATH: Final = "/gateway/metrics"

Loads = Callable[[], Mapping[str, Mapping[str, Any] | None]]
"""Each engine's `running`, `waiting` and `kv_use`, None where it does not say."""

_GAUGES: Final = (
    ("vllm:num_requests_waiting", "TotalQueuedRequests: requests in the queue.", "waiting"),
    ("vllm:num_requests_running", "TotalRunningRequests: requests being served.", "running"),
    ("vllm:kv_cache_usage_perc", "KVCacheUtilization: share in use, 0 to 1.", "kv_use"),
)


class GatewayCollector(Collector):
    """The three gauges of every engine that says how it is."""

    def __init__(self, loads: Loads) -> None:
        """`loads` is asked at every scrape, in the scrape's thread."""
        self._loads = loads

    def collect(self) -> Iterable[Metric]:
        """Every family, with a series for each engine by `engine`."""
        loads = self._loads()
        for name, text, field in _GAUGES:
            family = GaugeMetricFamily(name, text, labels=["engine"])
            for engine, now in loads.items():
                if now is not None and now[field] is not None:
                    family.add_metric([engine], now[field])
            yield family

    def describe(self) -> list[Metric]:
        """Nothing: naming them ahead would take a scrape."""
        return []


def gateway_routes(loads: Loads) -> Mapping[str, WSGIApplication]:
    """The exposition at `PATH`, for `agent.http.metrics_app`."""
    registry = CollectorRegistry()
    registry.register(GatewayCollector(loads))
    return {PATH: make_wsgi_app(registry)}
