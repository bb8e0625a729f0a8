"""Metric families of streams: what their users feel, and where the time goes."""

from collections.abc import Iterator

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
)
from prometheus_client.metrics_core import Metric

from agent.buckets import (
    GAP_BOUNDS_MS,
    TTFT_BOUNDS_MS,
    histogram_family,
)
from agent.figures import EngineFigures


def stream_families(engines: tuple[EngineFigures, ...]) -> Iterator[Metric]:
    """Times, ends and causes of streams."""
    yield histogram_family(
        "sits_time_to_first_token_seconds",
        "First byte of a request in to the first data chunk of its answer out.",
        {e.name: e.ttft for e in engines},
        TTFT_BOUNDS_MS,
    )
    yield histogram_family(
        "sits_chunk_gap_seconds",
        "Between successive data chunks of one stream, as they leave.",
        {e.name: e.gap for e in engines},
        GAP_BOUNDS_MS,
    )
    for name, text, field_name in (
        ("sits_requests", "Requests that came in.", "requests"),
        ("sits_responses", "Response heads that went out.", "responses"),
        ("sits_response_errors", "Responses with a status of 400 or above.", "errors"),
        ("sits_chunks", "Data chunks that went out.", "chunks"),
        ("sits_response_body_bytes", "Bytes of ended answers' bodies.", "body_bytes"),
        ("sits_chunk_gaps_over_slo", "Chunk gaps over the SLO.", "gaps_over"),
        (
            "sits_chunk_gaps_unsent",
            "Of these, that bytes which could not leave made at least half of.",
            "gaps_unsent",
        ),
        ("sits_first_tokens_over_slo", "First chunks over the SLO.", "ttft_over"),
        (
            "sits_streams_unstarted",
            "Event streams that ended before a chunk.",
            "ends_unstarted",
        ),
        ("sits_events", "Server-sent events in the data chunks.", "events"),
        (
            "sits_role_frames",
            "Frames before the first token that hold none: a chat's role.",
            "role_frames",
        ),
        (
            "sits_first_chunk_deadlines_missed",
            "Streams without a first chunk within the deadline.",
            "deadlines_missed",
        ),
        ("sits_retransmitted_segments", "TCP segments sent again.", "retransmits"),
        (
            "sits_loss_probes",
            "Of these, sent on suspicion of a lost tail.",
            "loss_probes",
        ),
        ("sits_retransmitted_synacks", "SYN-ACKs sent again.", "synack_retransmits"),
        ("sits_resets_sent", "Connections the engine's side reset.", "resets_sent"),
        ("sits_resets_received", "Connections clients reset.", "resets_received"),
        (
            "sits_receive_queue_full",
            "Times a client was told to stop: the engine had not read what came before.",
            "receive_queue_full",
        ),
        ("sits_writes", "The engine's writes to its streams.", "writes"),
        (
            "sits_writes_stalled",
            "Of these, that left bytes unsent when they returned.",
            "writes_stalled",
        ),
        (
            "sits_writes_held",
            "Of the stalled, that a client's full window held.",
            "writes_held",
        ),
        (
            "sits_opaque_turns",
            "Turns on TLS or HTTP/2, timed by writes and counted nowhere else.",
            "opaque",
        ),
        ("sits_writes_again", "Writes refused for want of room (EAGAIN).", "write_again"),
    ):
        family = CounterMetricFamily(name, text, labels=["engine"])
        for engine in engines:
            family.add_metric([engine.name], getattr(engine.counters, field_name))
        yield family
    for name, text, field_name in (
        (
            "sits_send_blocked_seconds",
            "Time with unsent bytes, over all streams.",
            "blocked_ns",
        ),
        (
            "sits_receive_queue_wait_seconds",
            "From a request's first byte to the engine's first read.",
            "read_wait_ns",
        ),
    ):
        family = CounterMetricFamily(name, text, labels=["engine"])
        for engine in engines:
            family.add_metric([engine.name], getattr(engine.counters, field_name) / 1e9)
        yield family
    blocked = GaugeMetricFamily(
        "sits_streams_blocked", "Streams with unsent bytes now.", labels=["engine"]
    )
    for engine in engines:
        begun, ended = engine.counters.blocked_begun, engine.counters.blocked_ended
        blocked.add_metric([engine.name], max(0, begun - ended))
    yield blocked
    ends = CounterMetricFamily(
        "sits_streams_ended",
        "Streams that ended since the agent's start, by reason.",
        labels=["engine", "reason"],
    )
    untold = CounterMetricFamily(
        "sits_streams_without_first_token",
        "Streams that ended without a first token since the agent's start, by reason.",
        labels=["engine", "reason"],
    )
    good = CounterMetricFamily(
        "sits_streams_good",
        "Streams that met their SLO since the agent's start.",
        labels=["engine"],
    )
    slow = CounterMetricFamily(
        "sits_slow_streams",
        "Streams with a late first chunk or gap since the agent's start, by cause.",
        labels=["engine", "cause"],
    )
    active = GaugeMetricFamily("sits_streams_active", "Streams under way.", labels=["engine"])
    slo = GaugeMetricFamily("sits_slo_seconds", "The policy's SLO.", labels=["engine", "of"])
    promised = GaugeMetricFamily(
        "sits_slo_attainment_ratio", "Share of streams that the policy promises.", labels=["engine"]
    )
    for engine in engines:
        for reason, count in engine.ends.items():
            ends.add_metric([engine.name, reason], count)
        for why, count in engine.untold.items():
            untold.add_metric([engine.name, why], count)
        good.add_metric([engine.name], engine.good)
        for cause, count in engine.slow.items():
            slow.add_metric([engine.name, cause], count)
        active.add_metric([engine.name], engine.under_way)
        for of, ms in engine.slo_ms.items():
            slo.add_metric([engine.name, of], ms / 1e3)
        promised.add_metric([engine.name], engine.promised)
    yield from (ends, untold, good, slow, active, slo, promised)


def stage_families(engines: tuple[EngineFigures, ...]) -> Iterator[Metric]:
    """Queues and times of the stages of requests."""
    queue = GaugeMetricFamily(
        "sits_stage_queue",
        "What waits in a stage: connections, requests, streams, or on the wire bytes.",
        labels=["engine", "stage"],
    )
    rate = GaugeMetricFamily(
        "sits_stage_rate",
        "What comes into a stage and goes out of it each second, over the last ten.",
        labels=["engine", "stage", "direction"],
    )
    connections = GaugeMetricFamily(
        "sits_connections",
        "Accepted connections; seeded ones are not followed until their next request.",
        labels=["engine", "seeded"],
    )
    for engine in engines:
        for report in engine.stages:
            if report.queue is not None:
                queue.add_metric([engine.name, report.stage], report.queue)
            for direction, per_s in (("in", report.in_per_s), ("out", report.out_per_s)):
                if per_s is not None:
                    rate.add_metric([engine.name, report.stage, direction], per_s)
        if engine.present:
            seeded = len(engine.sockets.seeded)
            others = len(engine.sockets.connections) - seeded
            connections.add_metric([engine.name, "true"], seeded)
            connections.add_metric([engine.name, "false"], others)
    yield from (queue, rate, connections)
