"""The Prometheus metrics, made at each scrape from what the kernel and the controller counted.

Nothing is kept here between scrapes, so a series lives exactly as long as its target. Label sets
are bounded by the policy: engines, neighbours, stages and the enumerations in the code.
"""

from collections.abc import Callable, Iterator, Mapping
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
    LOOP_BOUNDS_MS,
    WAIT_BOUNDS_MS,
    add_histogram,
    histogram_family,
)
from agent.engine_metrics import queue_families, state_families
from agent.figures import Figures
from agent.gpu_metrics import gpu_families
from agent.memory_metrics import memory_families
from agent.neighbour_metrics import neighbour_families
from agent.policy_metrics import canary_families
from agent.spans import SpanCounts
from agent.stream_metrics import stage_families, stream_families
from agent.tier_metrics import tier_families
from agent.version_metrics import version_families
from bpf.layout import Health
from bpf.libbpf import Runs
from controller.timing import histogram_of

_STAGES: Final = ("collect", "decide", "actuate", "tick", "reaction", "late")


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
        yield from stream_families(figures.engines)
        yield from version_families({e.name: e.versions for e in figures.engines})
        yield from _cpu(figures)
        yield from state_families(figures.engines)
        yield from queue_families(figures.engines)
        yield from stage_families(figures.engines)
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


def _cpu(figures: Figures) -> Iterator[Metric]:
    yield histogram_family(
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


def _loop(loop: Mapping[str, Any]) -> Metric:
    family = HistogramMetricFamily(
        "sits_loop_stage_seconds", "The fast loop's stages.", labels=["stage"]
    )
    for stage in _STAGES:
        add_histogram(family, [stage], histogram_of(loop[stage]), LOOP_BOUNDS_MS)
    return family
