"""The Prometheus metrics, made at each scrape from what the kernel and the controller counted.

Nothing is kept here between scrapes, so a series lives exactly as long as its target. Label sets
are bounded by the policy: engines, neighbours, stages and the enumerations in the code.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from agent.advice_metrics import advice_families
from agent.buckets import (
    GAP_BOUNDS_MS,
    LOOP_BOUNDS_MS,
    TTFT_BOUNDS_MS,
    WAIT_BOUNDS_MS,
    add_histogram,
)
from agent.gpu_metrics import GpuFigures, gpu_families
from agent.memory_metrics import memory_families
from agent.neighbour_metrics import NeighbourFigures, neighbour_families
from agent.policy_metrics import CanaryFigures, canary_families
from agent.sockets import EngineSockets
from agent.spans import SpanCounts
from agent.stages import StageReport
from agent.tier_metrics import tier_families
from agent.version_metrics import version_families
from agent.versions import VersionFigures
from bpf.histogram import EMPTY, Histogram
from bpf.layout import Counters, Health
from bpf.libbpf import Runs
from controller.advice import Advice
from controller.timing import histogram_of

_STAGES: Final = ("collect", "decide", "actuate", "tick", "reaction", "late")


@dataclass(frozen=True, slots=True)
class EngineFigures:
    """One engine at a scrape; `status` is its part of the controller's last status, if any."""

    name: str
    present: bool
    under_way: int
    counters: Counters
    ttft: Histogram = EMPTY
    gap: Histogram = EMPTY
    wait: Histogram = EMPTY
    ends: Mapping[str, int] = field(default_factory=dict)
    untold: Mapping[str, int] = field(default_factory=dict)
    good: int = 0
    slow: Mapping[str, int] = field(default_factory=dict)
    status: Mapping[str, Any] | None = None
    cause_ns: Mapping[str, int] = field(default_factory=dict)
    slo_ms: Mapping[str, float] = field(default_factory=dict)
    promised: float = 0.99
    leases_lost: int = 0
    sockets: EngineSockets = field(default_factory=EngineSockets)
    stages: tuple[StageReport, ...] = ()
    advice: Advice = field(default_factory=Advice)
    versions: Mapping[str, VersionFigures] = field(default_factory=dict)
    adapter: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Figures:
    """All there is to export."""

    mode: str
    controller_up: bool
    controller_restarts: int
    engines: tuple[EngineFigures, ...]
    neighbours: tuple[NeighbourFigures, ...]
    health: Health
    loop: Mapping[str, Any] | None
    decisions: Mapping[tuple[str, str], int]
    knob_changes: Mapping[tuple[str, str], int]
    journal_dropped: int
    spans: SpanCounts = field(default_factory=SpanCounts)
    programs: Mapping[str, Runs] = field(default_factory=dict)
    programs_counted_s: float = 0
    canary: CanaryFigures = field(default_factory=CanaryFigures)
    tier: str = "none"
    gpu: GpuFigures = field(default_factory=GpuFigures)


class FiguresCollector(Collector):
    """Turns `Figures` into metric families."""

    def __init__(self, figures: Callable[[], Figures]) -> None:
        """`figures` is asked at every scrape, in the scrape's thread."""
        self._figures = figures

    def collect(self) -> Iterator[Metric]:
        """Every family, with all its series."""
        figures = self._figures()
        yield from _agent(figures)
        yield from tier_families(figures.tier)
        yield from _programs(figures.programs, figures.programs_counted_s)
        yield from neighbour_families(figures.neighbours)
        yield from canary_families(figures.canary)
        yield from _spans(figures.spans)
        yield from _streams(figures.engines)
        yield from version_families({e.name: e.versions for e in figures.engines})
        yield from _cpu(figures)
        yield from _engine_state(figures.engines)
        yield from _engine_queue(figures.engines)
        yield from _stages(figures.engines)
        yield from advice_families({e.name: e.advice for e in figures.engines})
        yield from gpu_families(figures.gpu)
        yield from memory_families(
            {
                e.name: e.status["memory"]
                for e in figures.engines
                if e.status and "memory" in e.status
            }
        )
        if figures.loop is not None:
            yield _loop(figures.loop)

    def describe(self) -> list[Metric]:
        """Nothing: naming them ahead would take a scrape."""
        return []


def _agent(figures: Figures) -> Iterator[Metric]:
    mode = GaugeMetricFamily("sits_mode", "1 for the mode in force.", labels=["mode"])
    for name in ("observe", "shadow", "control"):
        mode.add_metric([name], float(figures.mode == name))
    yield mode
    yield GaugeMetricFamily(
        "sits_controller_up", "Whether the controller runs.", float(figures.controller_up)
    )
    yield CounterMetricFamily(
        "sits_controller_restarts",
        "Times the controller was restarted.",
        figures.controller_restarts,
    )
    decisions = CounterMetricFamily(
        "sits_decisions", "Decisions, by engine and cause.", labels=["engine", "cause"]
    )
    for (engine, cause), count in figures.decisions.items():
        decisions.add_metric([engine, cause], count)
    yield decisions
    changes = CounterMetricFamily(
        "sits_knob_changes", "Changes of an engine's knobs asked for.", labels=["engine", "knob"]
    )
    for (engine, knob), count in figures.knob_changes.items():
        changes.add_metric([engine, knob], count)
    yield changes
    lost = CounterMetricFamily(
        "sits_limit_hits", "Times a limit of ours cost something, by limit.", labels=["limit"]
    )
    for name in Health.__slots__:
        lost.add_metric([name], getattr(figures.health, name))
    lost.add_metric(["journal_rows"], figures.journal_dropped)
    yield lost


def _programs(programs: Mapping[str, Runs], counted_s: float) -> Iterator[Metric]:
    runs = CounterMetricFamily(
        "sits_bpf_program_runs",
        "Times a BPF program of ours ran while that was counted.",
        labels=["program"],
    )
    seconds = CounterMetricFamily(
        "sits_bpf_program_run_seconds", "Time in these runs, on all CPUs.", labels=["program"]
    )
    missed = CounterMetricFamily(
        "sits_bpf_program_missed_runs",
        "Times the kernel left it out, for it would have interrupted itself.",
        labels=["program"],
    )
    for name, ran in programs.items():
        runs.add_metric([name], ran.count)
        seconds.add_metric([name], ran.ns / 1e9)
        missed.add_metric([name], ran.missed)
    yield from (runs, seconds, missed)
    yield CounterMetricFamily(
        "sits_bpf_programs_counted_seconds",
        "Time in which runs were counted: a second in every ten.",
        counted_s,
    )


def _spans(spans: SpanCounts) -> Iterator[Metric]:
    yield CounterMetricFamily(
        "sits_spans_exported", "Spans that the collector took.", spans.exported
    )
    dropped = CounterMetricFamily(
        "sits_spans_dropped", "Spans that did not get there, by reason.", labels=["why"]
    )
    for why, count in spans.dropped.items():
        dropped.add_metric([why], count)
    yield dropped
    yield CounterMetricFamily(
        "sits_traceparent_invalid",
        "Requests whose traceparent did not hold.",
        spans.malformed_callers,
    )
    yield CounterMetricFamily(
        "sits_request_heads_cut",
        "Requests whose head went on after its first bytes; a traceparent there is not seen.",
        spans.cut_heads,
    )


def _streams(engines: tuple[EngineFigures, ...]) -> Iterator[Metric]:
    yield _histogram(
        "sits_time_to_first_token_seconds",
        "First byte of a request in to the first data chunk of its answer out.",
        {e.name: e.ttft for e in engines},
        TTFT_BOUNDS_MS,
    )
    yield _histogram(
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


def _cpu(figures: Figures) -> Iterator[Metric]:
    yield _histogram(
        "sits_run_queue_delay_seconds",
        "Runnable to running, of the engine's tasks.",
        {e.name: e.wait for e in figures.engines},
        WAIT_BOUNDS_MS,
    )
    wait = CounterMetricFamily(
        "sits_run_queue_wait_seconds",
        "Run-queue delay by who held the CPU.",
        labels=["engine", "holder"],
    )
    switches = CounterMetricFamily(
        "sits_involuntary_switches", "Times a task was taken off the CPU.", labels=["engine"]
    )
    for engine in figures.engines:
        c = engine.counters
        wait.add_metric([engine.name, "self"], c.wait_self_ns / 1e9)
        wait.add_metric([engine.name, "other"], c.wait_other_ns / 1e9)
        nobody_ns = c.wait_ns - c.wait_self_ns - c.wait_other_ns
        wait.add_metric([engine.name, "nobody"], nobody_ns / 1e9)
        switches.add_metric([engine.name], c.involuntary)
    yield from (wait, switches)
    run = CounterMetricFamily(
        "sits_cpu_seconds", "CPU time of a target's tasks.", labels=["target", "kind"]
    )
    for engine in figures.engines:
        run.add_metric([engine.name, "engine"], engine.counters.run_ns / 1e9)
    quota = GaugeMetricFamily(
        "sits_cpu_quota_cores", "The quota the agent holds on a neighbour.", labels=["target"]
    )
    for neighbour in figures.neighbours:
        run.add_metric([neighbour.name, "neighbour"], neighbour.counters.run_ns / 1e9)
        if neighbour.quota_cores is not None:
            quota.add_metric([neighbour.name], neighbour.quota_cores)
    yield from (run, quota)


def _engine_state(engines: tuple[EngineFigures, ...]) -> Iterator[Metric]:
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


def _engine_queue(engines: tuple[EngineFigures, ...]) -> Iterator[Metric]:
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


def _stages(engines: tuple[EngineFigures, ...]) -> Iterator[Metric]:
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


def _loop(loop: Mapping[str, Any]) -> Metric:
    family = HistogramMetricFamily(
        "sits_loop_stage_seconds", "The fast loop's stages.", labels=["stage"]
    )
    for stage in _STAGES:
        add_histogram(family, [stage], histogram_of(loop[stage]), LOOP_BOUNDS_MS)
    return family


def _histogram(
    name: str, text: str, series: Mapping[str, Histogram], bounds_ms: tuple[float, ...]
) -> Metric:
    family = HistogramMetricFamily(name, text, labels=["engine"])
    for label, histogram in series.items():
        add_histogram(family, [label], histogram, bounds_ms)
    return family
