"""What there is to export at a scrape."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from agent.gpu_metrics import GpuFigures
from agent.neighbour_metrics import NeighbourFigures
from agent.policy_metrics import CanaryFigures
from agent.sockets import EngineSockets
from agent.spans import SpanCounts
from agent.stages import StageReport
from agent.versions import VersionFigures
from bpf.histogram import EMPTY, Histogram
from bpf.layout import Counters, Health
from bpf.libbpf import Runs
from controller.advice import Advice


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
