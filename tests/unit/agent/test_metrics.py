import math
import shutil
import subprocess
from collections import defaultdict
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from agent.figures import EngineFigures, Figures
from agent.metrics import FiguresCollector
from agent.neighbour_metrics import NeighbourFigures
from agent.stages import SAMPLE_NS, Sample, stage_reports
from bpf.histogram import Histogram
from bpf.layout import Counters, Health
from bpf.libbpf import Runs
from controller.advice import Advice, Held
from controller.timing import Timing

from .made import MS, histogram
from .recorded import SOCKETS

Labels = tuple[tuple[str, str], ...]

STATUS: dict[str, Any] = {
    "admin": {"state": "connected", "detail": ""},
    "admin_sockets": [{"by_hand": None}],
    "now": {
        "running": 3,
        "waiting": 4,
        "kv_use": 0.25,
        "deferred": 2,
        "deferred_total": 7,
        "longest_deferral_ms": 1500,
        "shed_total": 5,
        "on_time_tokens": 800,
    },
    "knobs": {"max_running": {"value": 16, "start": 64, "unit": "requests", "held": True}},
    "cpu_weight": {"value": 1000, "base": 100},
    "plan": {
        "margin": 0.85,
        "prompt_tokens_per_s": 900.0,
        "predictor": "ar",
        "roll_backs": 0,
        "paused": "",
    },
    "backpressure": {"value": 0.5, "queue": 0.5, "kv": 0.0, "cpu": 0.1, "injected": 0.0},
}


def loop() -> dict[str, Any]:
    timing = Timing()
    timing.add(40_000)
    stages = ("collect", "decide", "actuate", "tick", "reaction", "late")
    return {stage: timing.as_message() for stage in stages}


def engine(name: str = "chat", **fields: Any) -> EngineFigures:
    given_: dict[str, Any] = {
        "present": True,
        "under_way": 2,
        "counters": Counters(requests=5, chunks=40, wait_ns=9, wait_self_ns=3, wait_other_ns=2),
        "ttft": histogram(3 * MS, 300 * MS, 90_000 * MS),
        "gap": histogram(*[7 * MS] * 4),
        "ends": {"complete": 4, "lost": 1},
        "untold": {"client_reset": 2},
        "good": 3,
        "status": STATUS,
        "cause_ns": {"batch": 1_500 * MS},
        "slo_ms": {"ttft": 500.0, "gap": 40.0},
        "sockets": SOCKETS,
        "stages": stage_reports(
            [Sample(0, 0, 1, 8, requests=1), Sample(1, SAMPLE_NS, 3, 8, requests=5)]
        ),
        "advice": Advice(Held(4), Held(3), 2.4, {"queue": True, "p95": False}),
    }
    return EngineFigures(name, **given_ | fields)


def figures(**fields: Any) -> Figures:
    given_: dict[str, Any] = {
        "mode": "shadow",
        "controller_up": True,
        "controller_restarts": 2,
        "engines": (engine(),),
        "neighbours": (NeighbourFigures("batch", Counters(run_ns=2_000 * MS), 1.5, 0.5),),
        "health": Health(event_drops=7),
        "loop": loop(),
        "decisions": {("chat", "batch"): 3},
        "knob_changes": {("chat", "max_running"): 2},
        "journal_dropped": 1,
        "programs": {"switch_tasks": Runs(9, 2 * MS, 1)},
        "programs_counted_s": 3,
    }
    return Figures(**given_ | fields)


def exposition(shown: Figures) -> str:
    registry = CollectorRegistry()
    registry.register(FiguresCollector(lambda: shown))
    return generate_latest(registry).decode()


def samples(shown: Figures) -> dict[str, dict[Labels, float]]:
    """Every sample of a scrape by name and labels; a series that comes twice fails."""
    found: dict[str, dict[Labels, float]] = defaultdict(dict)
    for family in text_string_to_metric_families(exposition(shown)):
        for sample in family.samples:
            labels = tuple(sorted(sample.labels.items()))
            assert labels not in found[sample.name]
            found[sample.name][labels] = sample.value
    return found


def one(shown: Figures, name: str, **labels: str) -> float:
    return samples(shown)[name][tuple(sorted(labels.items()))]


@pytest.mark.parametrize(
    ("name", "labels", "value"),
    [
        ("sits_mode", {"mode": "shadow"}, 1),
        ("sits_mode", {"mode": "control"}, 0),
        ("sits_controller_up", {}, 1),
        ("sits_controller_restarts_total", {}, 2),
        ("sits_chunks_total", {"engine": "chat"}, 40),
        ("sits_streams_ended_total", {"engine": "chat", "reason": "lost"}, 1),
        (
            "sits_streams_without_first_token_total",
            {"engine": "chat", "reason": "client_reset"},
            2,
        ),
        ("sits_streams_good_total", {"engine": "chat"}, 3),
        ("sits_streams_active", {"engine": "chat"}, 2),
        ("sits_slo_seconds", {"engine": "chat", "of": "gap"}, 0.04),
        ("sits_run_queue_wait_seconds_total", {"engine": "chat", "holder": "nobody"}, 4e-9),
        ("sits_cpu_seconds_total", {"target": "batch", "kind": "neighbour"}, 2),
        ("sits_cpu_quota_cores", {"target": "batch"}, 0.5),
        ("sits_limit_hits_total", {"limit": "event_drops"}, 7),
        ("sits_limit_hits_total", {"limit": "journal_rows"}, 1),
        ("sits_bpf_program_runs_total", {"program": "switch_tasks"}, 9),
        ("sits_bpf_program_run_seconds_total", {"program": "switch_tasks"}, 0.002),
        ("sits_bpf_program_missed_runs_total", {"program": "switch_tasks"}, 1),
        ("sits_bpf_programs_counted_seconds_total", {}, 3),
        ("sits_decisions_total", {"engine": "chat", "cause": "batch"}, 3),
        ("sits_knob_changes_total", {"engine": "chat", "knob": "max_running"}, 2),
        ("sits_engine_up", {"engine": "chat"}, 1),
        ("sits_engine_admin_connected", {"engine": "chat"}, 1),
        ("sits_engine_knob", {"engine": "chat", "knob": "max_running"}, 16),
        ("sits_engine_cpu_weight", {"engine": "chat"}, 1000),
        ("sits_engine_deferred_requests", {"engine": "chat"}, 2),
        ("sits_engine_deferrals_total", {"engine": "chat"}, 7),
        ("sits_engine_longest_deferral_seconds", {"engine": "chat"}, 1.5),
        ("sits_engine_shed_requests_total", {"engine": "chat"}, 5),
        ("sits_engine_on_time_tokens", {"engine": "chat"}, 800),
        ("sits_backpressure_ratio", {"engine": "chat", "stage": "worst"}, 0.5),
        ("sits_stage_queue", {"engine": "chat", "stage": "accept"}, 3),
        ("sits_stage_rate", {"engine": "chat", "stage": "receive", "direction": "in"}, 40),
        ("sits_connections", {"engine": "chat", "seeded": "true"}, 1),
        ("sits_connections", {"engine": "chat", "seeded": "false"}, 2),
        ("sits_at_risk_seconds_total", {"engine": "chat", "cause": "batch"}, 1.5),
        ("sits_time_to_first_token_seconds_count", {"engine": "chat"}, 3),
        ("sits_time_to_first_token_seconds_sum", {"engine": "chat"}, 90.303),
        ("sits_advice_instances", {"engine": "chat", "formula": "text"}, 4),
        ("sits_advice_instances", {"engine": "chat", "formula": "capacity"}, 3),
        ("sits_advice_load_ratio", {"engine": "chat"}, 2.4),
        ("sits_advice_warm_replicas", {"engine": "chat"}, 0),
        ("sits_advice_trigger", {"engine": "chat", "trigger": "queue"}, 1),
        ("sits_loop_stage_seconds_count", {"stage": "decide"}, 1),
    ],
)
def test_a_scrape_shows_the_figure_in_base_units(
    name: str, labels: dict[str, str], value: float
) -> None:
    assert one(figures(), name, **labels) == pytest.approx(value)


def buckets(shown: Figures) -> dict[tuple[str, Labels], list[tuple[float, float]]]:
    found: dict[tuple[str, Labels], list[tuple[float, float]]] = defaultdict(list)
    for name, series in samples(shown).items():
        for labels, value in series.items():
            if name.endswith("_bucket"):
                bound = float(dict(labels)["le"])
                rest = tuple(pair for pair in labels if pair[0] != "le")
                found[name.removesuffix("_bucket"), rest].append((bound, value))
    return found


@settings(deadline=None, max_examples=40)
@given(st.lists(st.integers(0, 200_000 * MS), max_size=30))
def test_buckets_only_rise_and_the_last_holds_everything(values: list[int]) -> None:
    shown = figures(engines=(engine(ttft=histogram(*values), gap=histogram(*values)),))
    found, counted = buckets(shown), samples(shown)
    assert {name for name, _ in found} == {
        "sits_time_to_first_token_seconds",
        "sits_chunk_gap_seconds",
        "sits_run_queue_delay_seconds",
        "sits_loop_stage_seconds",
    }
    for (name, labels), series in found.items():
        bounds, counts = zip(*series, strict=True)
        assert list(bounds) == sorted(set(bounds))
        assert list(counts) == sorted(counts)
        assert bounds[-1] == math.inf
        assert counts[-1] == counted[f"{name}_count"][labels]


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 20_000 * MS))
def test_no_bucket_holds_a_value_above_its_bound(value_ns: int) -> None:
    found = buckets(figures(engines=(engine(ttft=histogram(value_ns)),)))
    series = found["sits_time_to_first_token_seconds", (("engine", "chat"),)]
    assert all(count == 0 for bound, count in series if bound * 1e9 < value_ns)


def test_a_value_beyond_the_last_bound_is_counted_in_infinity_only() -> None:
    shown = buckets(figures(engines=(engine(ttft=histogram(90_000 * MS)),)))
    series = dict(shown["sits_time_to_first_token_seconds", (("engine", "chat"),)])
    assert series.pop(math.inf) == 1
    assert set(series.values()) == {0}


def targets(shown: Figures) -> set[str]:
    return {
        value
        for series in samples(shown).values()
        for labels in series
        for label, value in labels
        if label in {"engine", "target"}
    }


def test_series_go_with_their_target() -> None:
    assert targets(figures(decisions={}, knob_changes={})) == {"chat", "batch"}
    assert targets(figures(neighbours=(), decisions={}, knob_changes={})) == {"chat"}
    assert targets(figures(engines=(), neighbours=(), decisions={}, knob_changes={})) == set()


def test_without_a_controller_what_the_kernel_counts_is_shown_all_the_same() -> None:
    shown = figures(controller_up=False, loop=None, engines=(engine(status=None),))
    found = samples(shown)
    assert one(shown, "sits_chunks_total", engine="chat") == 40
    assert one(shown, "sits_at_risk_seconds_total", engine="chat", cause="batch") == 1.5
    for gone in ("sits_engine_running", "sits_engine_knob", "sits_loop_stage_seconds_count"):
        assert gone not in found


def test_an_engine_without_a_page_or_a_settable_weight_leaves_those_out() -> None:
    status = STATUS | {"now": None, "cpu_weight": None, "admin": {"state": "refused", "detail": ""}}
    shown = figures(engines=(engine(status=status),))
    assert "sits_engine_waiting" not in samples(shown)
    assert "sits_engine_cpu_weight" not in samples(shown)
    assert one(shown, "sits_engine_admin_connected", engine="chat") == 0


@settings(deadline=None, max_examples=40)
@given(st.text(st.characters(codec="utf-8"), max_size=20))
def test_a_childs_name_comes_back_as_it_is_whatever_is_in_it(child: str) -> None:
    name = f"batch/{child}"
    shown = figures(neighbours=(NeighbourFigures(name, Counters(run_ns=1_000_000_000)),))
    assert one(shown, "sits_cpu_seconds_total", target=name, kind="neighbour") == 1


def test_quotes_backslashes_and_line_ends_are_escaped() -> None:
    text = exposition(figures(neighbours=(NeighbourFigures('n/a"b\n\\', Counters()),)))
    assert 'target="n/a\\"b\\n\\\\"' in text


def test_promtool_finds_nothing_to_object_to() -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed: the exposition is checked by the parser alone")
    done = subprocess.run(
        [promtool, "check", "metrics"],
        input=exposition(figures()),
        text=True,
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_an_engine_never_seen_has_empty_histograms() -> None:
    empty = Histogram((0,) * len(histogram().slots), 0)
    shown = figures(engines=(engine(ttft=empty, gap=empty, counters=Counters()),))
    assert one(shown, "sits_chunk_gap_seconds_count", engine="chat") == 0
