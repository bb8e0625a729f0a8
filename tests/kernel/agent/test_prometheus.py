"""Debian's Prometheus scrapes a sitsd that watches a streaming engine."""

import math
import statistics
import subprocess
from itertools import pairwise
from typing import Final

import pytest

from agent.buckets import TTFT_BOUNDS_MS
from tests.engines.prometheus_server import Prometheus, prometheus
from tests.kernel.conftest import MakeGroup
from tests.unit.deploy.queries import dashboards, recorded, rules

from .conftest import Node
from .groups import burning
from .rig import Site, Sitsd
from .traffic import load
from .waiting import becomes

pytestmark = [pytest.mark.kernel, pytest.mark.slow]

TROUBLES: Final = (
    "prometheus_target_scrapes_sample_duplicate_timestamp_total",
    "prometheus_target_scrapes_sample_out_of_order_total",
    "prometheus_target_scrapes_sample_out_of_bounds_total",
    "prometheus_target_scrapes_exceeded_sample_limit_total",
)
"""What Prometheus counts when a target's exposition does not hold."""

SOMETIMES: Final = (
    "sits_adapter_",
    "sits_advice_",
    "sits_at_risk_",
    "sits_cpu_quota_",
    "sits_decisions_",
    "sits_engine_kv_",
    "sits_gpu_",
    "sits_knob_changes_",
    "sits_policy_canary_bad_",
    "sits_slow_streams_",
    "sits_spans_dropped_",
)
"""What is exported only when there is something to say: an adapter, a decision, a slow stream.

The GPUs' are in test_gpu_shown.py.
"""


def scraped(server: Prometheus, sitsd: Sitsd, name: str) -> bool:
    """Whether what Prometheus has of a counter of the engine is what sitsd says of it now."""
    return server.value(f'{name}{{engine="chat"}}') == sitsd.metric(name, engine="chat")


def test_prometheus_takes_every_series_without_a_fault(node: Node, site: Site) -> None:
    site.write(node.targets())
    with site.sitsd() as sitsd, prometheus(f"127.0.0.1:{site.metrics_port}") as server:
        sitsd.following()
        with load(node.engine) as traffic:
            traffic.grows_to(4)
        becomes(lambda: scraped(server, sitsd, "sits_requests_total"))
        shown = {name for name, _ in sitsd.metrics()}
        assert {name for name in shown if name.startswith("sits_")} <= server.names()
        assert server.value("up") == 1
        assert server.value("min_over_time(up[1m])") == 1
        target = server.target()
        assert (target["health"], target["lastError"]) == ("up", "")
        assert server.value("scrape_samples_scraped") == server.value(
            "scrape_samples_post_metric_relabeling"
        )
        assert {name: server.own(name) for name in TROUBLES} == dict.fromkeys(TROUBLES, 0)
        assert server.value('sits_requests_total{engine="chat"}') == len(traffic.seen)
        assert server.value('sits_chunks_total{engine="chat"}') == traffic.chunks


def test_the_median_ttft_it_computes_is_the_clients(node: Node, site: Site) -> None:
    site.write(node.targets())
    with site.sitsd() as sitsd, prometheus(f"127.0.0.1:{site.metrics_port}") as server:
        sitsd.following()
        # a rate takes two samples, and these may not be the first of their series
        becomes(lambda: (server.value("count_over_time(up[1m])") or 0) >= 2)
        with load(node.engine) as traffic:
            traffic.grows_to(8)
        becomes(lambda: scraped(server, sitsd, "sits_time_to_first_token_seconds_count"))
        ttft_s = server.value(
            "histogram_quantile(0.5,"
            ' increase(sits_time_to_first_token_seconds_bucket{engine="chat"}[1m]))'
        )
    median_ms = statistics.median(each.ttft_ns for each in traffic.seen) / 1e6
    bounds = [0.0, *TTFT_BOUNDS_MS, math.inf]
    # the client's clock runs a little longer, which may put it into the next bucket
    places = [at for at, (low, high) in enumerate(pairwise(bounds)) if low < median_ms <= high]
    assert ttft_s is not None
    assert bounds[max(0, places[0] - 1)] <= ttft_s * 1e3 <= bounds[places[0] + 1]


def test_series_go_stale_with_their_target_and_with_the_agent(
    node: Node, site: Site, make_cgroup: MakeGroup
) -> None:
    group = make_cgroup("passing")
    site.write(node.targets() + f'[neighbours.passing]\ncgroup = "/{group.cpu.name}"\n')
    passing = 'sits_cpu_seconds_total{target="passing"}'
    staying = 'sits_cpu_seconds_total{target="chat"}'
    with prometheus(f"127.0.0.1:{site.metrics_port}") as server:
        with site.sitsd() as sitsd:
            sitsd.following()
            with burning(group):
                becomes(lambda: server.query(passing))
            group.remove()
            # at once: without a mark, Prometheus would go on to show the last value for 5 minutes
            becomes(lambda: not server.query(passing))
            assert server.query(staying)
            assert server.value("up") == 1
        becomes(lambda: server.value("up") == 0)
        assert server.query('{__name__=~"sits_.+"}') == {}


def test_promtool_finds_nothing_to_object_to_in_a_live_scrape(node: Node, site: Site) -> None:
    site.write(node.targets())
    with site.sitsd() as sitsd:
        sitsd.following()
        with load(node.engine) as traffic:
            traffic.grows_to(2)
        status, text = sitsd.get("/metrics")
    assert status == 200
    done = subprocess.run(
        ["promtool", "check", "metrics"], input=text, text=True, capture_output=True, check=False
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_every_query_of_rules_and_dashboards_is_answered_from_a_live_scrape(
    node: Node, site: Site
) -> None:
    site.write(node.targets())
    with site.sitsd() as sitsd, prometheus(f"127.0.0.1:{site.metrics_port}") as server:
        sitsd.following()
        with load(node.engine) as traffic:
            traffic.grows_to(4)
        becomes(lambda: scraped(server, sitsd, "sits_requests_total"))
        # of the counters, those of causes, ends and such are there once there was one
        named = {
            name
            for query in rules() + dashboards()
            for name in query.names - recorded()
            if not name.startswith(SOMETIMES)
        }
        assert named <= {name for name, _ in sitsd.metrics()} & server.names()
        for query in rules() + dashboards():
            server.query(query.filled_in("chat"))
