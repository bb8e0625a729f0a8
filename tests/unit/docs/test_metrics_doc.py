from collections.abc import Iterator
from pathlib import Path

from prometheus_client.metrics_core import Metric

from agent.figures import EngineFigures, Figures
from agent.gpu import Owner
from agent.gpu_budget import Worth
from agent.gpu_metrics import GpuFigures
from agent.gpu_model import OK, Device, GpuProcess, Instance, Look
from agent.metrics import FiguresCollector
from agent.neighbour_metrics import NeighbourFigures
from agent.policy_metrics import CanaryFigures
from agent.spans import SpanCounts
from agent.stages import SAMPLE_NS, Sample, stage_reports
from agent.versions import VersionFigures
from bpf.histogram import EMPTY
from bpf.layout import Counters, Health
from bpf.libbpf import Runs
from controller.advice import Advice, Observed, advise
from controller.timing import Timing

DOC = Path(__file__).parents[3] / "docs" / "metrics.md"

STATUS = {
    "admin": {"state": "connected", "detail": ""},
    "admin_sockets": [{"by_hand": None}],
    "now": {
        "running": 1,
        "waiting": 0,
        "kv_use": 0.1,
        "deferred": 0,
        "deferred_total": 0,
        "longest_deferral_ms": 0,
        "shed_total": 0,
        "on_time_tokens": 0,
    },
    "knobs": {"max_running": {"value": 64}},
    "cpu_weight": {"value": 100, "base": 100},
    "memory": {
        "left_bytes": 1,
        "limit_bytes": 2,
        "per_request_bytes": 1.0,
        "running_cap": 4,
        "gpu_fragmentation": 0.5,
        "short": "",
        "held": {"batch": 1},
    },
    "plan": {"margin": 0.85, "prompt_tokens_per_s": 100.0, "roll_backs": 0},
    "backpressure": {"value": 0.1, "accept": 0.0, "queue": 0.1, "send": 0.0},
}

HELD = {
    "class": "slo-b",
    "held_ns": 1,
    "held_used_ns": 1,
    "held_back_ns": 1,
    "frozen_ns": 1,
    "freezes": 1,
    "idle": False,
    "late_thaws": 0,
    "longest_freeze_ns": 1,
}

ARM = {
    "streams": 40,
    "bad_share": 0.1,
    "error_share": 0.0,
    "ttft_p95_ms": 120.0,
    "gap_p95_ms": 20.0,
}


def families() -> Iterator[Metric]:
    engine = EngineFigures(
        "chat",
        True,
        0,
        Counters(),
        ends={"complete": 1},
        untold={"error": 1},
        slow={"batch": 1},
        status=STATUS,
        cause_ns={"batch": 1},
        slo_ms={"ttft": 1.0},
        versions={"canary": VersionFigures(1, 1, 0, 2, 0, 9, EMPTY, EMPTY)},
        stages=stage_reports([Sample(0, 0, 1, 8), Sample(1, SAMPLE_NS, 2, 8)]),
        adapter={"kind": "haproxy", "state": "serving", "restarts": 0},
        advice=advise(Advice(), Observed(1.0, 500.0, 1.0, 1.0, 2.0, 1.0, 1.0, 0, 0)),
    )
    loop = {
        stage: Timing().as_message()
        for stage in ("collect", "decide", "actuate", "tick", "reaction", "late")
    }
    figures = Figures(
        mode="observe",
        controller_up=True,
        controller_restarts=0,
        engines=(engine,),
        neighbours=(NeighbourFigures("batch", Counters(), 1.0, 0.5, HELD),),
        health=Health(),
        loop=loop,
        decisions={("chat", "batch"): 1},
        knob_changes={("chat", "max_running"): 1},
        journal_dropped=0,
        spans=SpanCounts(dropped={"queue_full": 1}),
        programs={"switch_tasks": Runs()},
        gpu=GpuFigures(
            Look(
                OK,
                devices=(
                    Device(
                        "0",
                        sm_percent=1.0,
                        memory_total_bytes=2,
                        memory_used_bytes=1,
                        power_w=1.0,
                        power_limit_w=2.0,
                        temperature_c=3.0,
                        throttled=(),
                        instances=(Instance("0/1/0", "", 2, 1),),
                        processes=(GpuProcess(7, 1, 60.0), GpuProcess(8, 1, 40.0)),
                    ),
                ),
            ),
            {7: Owner("chat", "engine", "", ""), 8: Owner("code", "engine", "", "")},
            {"chat": Worth(0.7), "code": Worth(0.25)},
            [{"name": "batch", "state": "ok", "percent": 30.0}],
        ),
        canary=CanaryFigures(True, {}, {"chat": {"old": ARM, "new": ARM}}),
    )
    return FiguresCollector(lambda: figures).collect()


def rows() -> list[str]:
    found = []
    for family in families():
        own = [name for name in family.samples[0].labels if name != "le"]
        name = f"{family.name}_total" if family.type == "counter" else family.name
        labels = ", ".join(f"`{label}`" for label in own) or "–"
        found.append(f"| `{name}` | {family.type} | {labels} | {family.documentation} |")
    return found


def test_every_metric_of_the_code_stands_in_the_document_and_no_other() -> None:
    documented = [line for line in DOC.read_text().splitlines() if line.startswith("| `sits_")]
    assert documented == rows()
