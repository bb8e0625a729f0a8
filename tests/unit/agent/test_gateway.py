"""The gauges that gateways pick endpoints by."""

import http.client
from collections.abc import Mapping
from contextlib import closing
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from agent.gateway import PATH, gateway_routes
from agent.http import metrics_app, tcp_server

NOW = {"waiting": 4, "running": 3, "kv_use": 0.25}


def scraped(loads: Mapping[str, Mapping[str, Any] | None]) -> dict[tuple[str, str], float]:
    """What a gateway reads, by name and engine."""
    app = metrics_app(CollectorRegistry(), lambda: (True, {}), gateway_routes(lambda: loads))
    with tcp_server("127.0.0.1", 0, app) as server:
        assert server.port
        with closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)) as asked:
            asked.request("GET", PATH)
            answer = asked.getresponse()
            assert answer.status == 200
            text = answer.read().decode()
    return {
        (sample.name, sample.labels["engine"]): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_queue_running_and_kv_have_the_names_that_pickers_expect() -> None:
    assert scraped({"chat": NOW}) == {
        ("vllm:num_requests_waiting", "chat"): 4,
        ("vllm:num_requests_running", "chat"): 3,
        ("vllm:kv_cache_usage_perc", "chat"): 0.25,
    }


def test_what_an_engine_does_not_say_is_not_made_up() -> None:
    assert ("vllm:kv_cache_usage_perc", "chat") not in scraped({"chat": NOW | {"kv_use": None}})
    assert scraped({"chat": None}) == {}
