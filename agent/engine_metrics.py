"""Metric families of what engines say of themselves, and of what is set there."""

from collections.abc import Iterator

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
)
from prometheus_client.metrics_core import Metric

from agent.figures import EngineFigures


def state_families(engines: tuple[EngineFigures, ...]) -> Iterator[Metric]:
    """Whether engines are there and reached, their knobs, models and plans."""
    present = GaugeMetricFamily(
        "sits_engine_up", "Whether the engine was found.", labels=["engine"]
    )
    admin = GaugeMetricFamily(
        "sits_engine_admin_connected",
        "Whether its admin sockets all answer.",
        labels=["engine"],
    )
    lost = CounterMetricFamily(
        "sits_leases_lost",
        "Times a lease on the engine's knobs ended before it was given back.",
        labels=["engine"],
    )
    by_hand = GaugeMetricFamily(
        "sits_engine_by_hand", "Whether an operator has set its knobs by hand.", labels=["engine"]
    )
    serving = GaugeMetricFamily(
        "sits_adapter_serving",
        "Whether the engine's adapter reaches it and serves.",
        labels=["engine", "kind"],
    )
    restarts = CounterMetricFamily(
        "sits_adapter_restarts",
        "Times the engine's adapter ended by itself and was started again.",
        labels=["engine", "kind"],
    )
    running = GaugeMetricFamily("sits_engine_running", "Requests running.", labels=["engine"])
    waiting = GaugeMetricFamily("sits_engine_waiting", "Requests waiting.", labels=["engine"])
    kv = GaugeMetricFamily("sits_engine_kv_use_ratio", "KV cache in use.", labels=["engine"])
    knob = GaugeMetricFamily("sits_engine_knob", "Knob values.", labels=["engine", "knob"])
    weight = GaugeMetricFamily("sits_engine_cpu_weight", "CPU weight in force.", labels=["engine"])
    pressure = GaugeMetricFamily(
        "sits_backpressure_ratio", "Backpressure by stage.", labels=["engine", "stage"]
    )
    cause = CounterMetricFamily(
        "sits_at_risk_seconds", "Time with the SLO at risk, by cause.", labels=["engine", "cause"]
    )
    margin = GaugeMetricFamily(
        "sits_gap_margin_ratio", "Share of the gap SLO that a step may take.", labels=["engine"]
    )
    planned = GaugeMetricFamily(
        "sits_planned_prompt_tokens_per_second",
        "Prompt tokens a second that the next seconds are planned for.",
        labels=["engine"],
    )
    back = CounterMetricFamily(
        "sits_roll_backs",
        "Operating points given back because more was late with them than without.",
        labels=["engine"],
    )
    for engine in engines:
        present.add_metric([engine.name], float(engine.present))
        lost.add_metric([engine.name], engine.leases_lost)
        if engine.adapter is not None:
            labels = [engine.name, engine.adapter["kind"]]
            serving.add_metric(labels, float(engine.adapter["state"] == "serving"))
            restarts.add_metric(labels, engine.adapter["restarts"])
        for name, ns in engine.cause_ns.items():
            cause.add_metric([engine.name, name], ns / 1e9)
        status = engine.status
        if status is None:
            continue
        admin.add_metric([engine.name], float(status["admin"]["state"] == "connected"))
        set_by_hand = any(each["by_hand"] for each in status["admin_sockets"])
        by_hand.add_metric([engine.name], float(set_by_hand))
        now = status["now"]
        if now is not None:
            running.add_metric([engine.name], now["running"])
            waiting.add_metric([engine.name], now["waiting"])
            if now["kv_use"] is not None:
                kv.add_metric([engine.name], now["kv_use"])
        for name, fields in status["knobs"].items():
            knob.add_metric([engine.name, name], fields["value"])
        if status["cpu_weight"] is not None:
            weight.add_metric([engine.name], status["cpu_weight"]["value"])
        for stage, value in status["backpressure"].items():
            pressure.add_metric([engine.name, "worst" if stage == "value" else stage], value)
        plan = status["plan"]
        margin.add_metric([engine.name], plan["margin"])
        planned.add_metric([engine.name], plan["prompt_tokens_per_s"])
        back.add_metric([engine.name], plan["roll_backs"])
    yield from (
        present,
        admin,
        lost,
        by_hand,
        serving,
        restarts,
        running,
        waiting,
        kv,
        knob,
        weight,
        pressure,
        cause,
    )
    yield from (margin, planned, back)


def queue_families(engines: tuple[EngineFigures, ...]) -> Iterator[Metric]:
    """Who waits in engines, and what was done about it."""
    """Who waits for whom in the engine, as its stats page says; nothing without a page."""
    labels = ["engine"]
    deferred = GaugeMetricFamily(
        "sits_engine_deferred_requests",
        "Waiting requests that can't meet the TTFT deadline and are served after those that can.",
        labels=labels,
    )
    deferrals = CounterMetricFamily(
        "sits_engine_deferrals", "Requests that were deferred, each once.", labels=labels
    )
    longest = GaugeMetricFamily(
        "sits_engine_longest_deferral_seconds",
        "How long ago the longest waiting of the deferred requests arrived.",
        labels=labels,
    )
    shed = CounterMetricFamily(
        "sits_engine_shed_requests", "Requests refused because the queue was full.", labels=labels
    )
    tokens = GaugeMetricFamily(
        "sits_engine_on_time_tokens",
        "Prompt tokens of waiting requests that are not deferred.",
        labels=labels,
    )
    for engine in engines:
        now = engine.status["now"] if engine.status is not None else None
        if now is not None:
            deferred.add_metric([engine.name], now["deferred"])
            deferrals.add_metric([engine.name], now["deferred_total"])
            longest.add_metric([engine.name], now["longest_deferral_ms"] / 1e3)
            shed.add_metric([engine.name], now["shed_total"])
            tokens.add_metric([engine.name], now["on_time_tokens"])
    yield from (deferred, deferrals, longest, shed, tokens)
