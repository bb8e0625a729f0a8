"""What a scrape shows, read from the agent's state at that moment."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from agent.advisor import Advisor
from agent.figures import EngineFigures, Figures
from agent.gpu import Gpus
from agent.gpu_budget import Worth
from agent.gpu_metrics import GpuFigures
from agent.neighbour_metrics import NeighbourFigures
from agent.node import Node
from agent.policies import Policies
from agent.recorder import Recorder
from agent.sampler import Sampler
from agent.spans import SpanCounts
from agent.stages import stage_reports
from agent.state import State
from agent.tracing import Tracing
from agent.versions import Versions
from controller.policy_model import Mode

RATE_WINDOW_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class ControllerFigures:
    """How the controller stands."""

    mode: Mode
    up: bool
    restarts: int


@dataclass(frozen=True, slots=True)
class Sources:
    """All that has figures; `tracing` is None while no spans are sent."""

    state: State
    node: Node
    sampler: Sampler
    advisor: Advisor
    versions: Versions
    gpus: Gpus
    recorder: Recorder
    policies: Policies
    tracing: Tracing | None
    controller: Callable[[], ControllerFigures]


def figures_of(sources: Sources) -> Figures:
    """The figures of now; called by the threads that serve scrapes."""
    state, node, sampler = sources.state, sources.node, sources.sampler
    controller = sources.controller()
    status = state.status()
    held = status["neighbours"] if status is not None else {}
    engines = tuple(
        EngineFigures(
            name=engine.name,
            present=state.found(engine.name).present,
            under_way=state.streams.under_way(engine.name),
            counters=node.counters(engine.name),
            ttft=node.histogram("ttft", engine.name),
            gap=node.histogram("gap", engine.name),
            wait=node.histogram("wait", engine.name),
            ends=state.ends(engine.name),
            untold=state.untold(engine.name),
            good=state.good(engine.name),
            slow=state.slow(engine.name),
            status=state.engine_status(engine.name),
            cause_ns=state.cause_ns(engine.name),
            slo_ms={"ttft": engine.slo.ttft_ms, "gap": engine.slo.gap_ms},
            promised=engine.slo.attainment,
            leases_lost=state.leases_lost(engine.name),
            sockets=sampler.sockets(engine.name),
            stages=stage_reports(sampler.ends(engine.name, RATE_WINDOW_S)),
            advice=sources.advisor.advice(engine.name),
            versions=sources.versions.figures(engine.name),
            adapter=state.adapter(engine.name),
        )
        for engine in state.policy.engines
    )
    neighbours = tuple(
        NeighbourFigures(
            found.name,
            node.counters(found.name),
            held.get(found.name, {}).get("used_cores"),
            held.get(found.name, {}).get("quota_cores"),
            held.get(found.name, {}),
        )
        for found in state.neighbours()
        if found.present
    )
    programs, counted_s = node.program_runs()
    return Figures(
        mode=controller.mode,
        controller_up=controller.up,
        controller_restarts=controller.restarts,
        engines=engines,
        neighbours=neighbours,
        health=node.health(),
        loop=status["loop"] if status is not None else None,
        decisions=state.decisions(),
        knob_changes=state.knob_changes(),
        journal_dropped=sources.recorder.journal.dropped + sources.recorder.dropped,
        canary=sources.policies.figures(),
        tier=node.tier,
        gpu=GpuFigures(sources.gpus.look, sources.gpus.owners, _worth(sources), state.mps()),
        spans=sources.tracing.counts() if sources.tracing is not None else SpanCounts(),
        programs=programs,
        programs_counted_s=counted_s,
    )


def _worth(sources: Sources) -> dict[str, Worth]:
    """What each engine's SLO is worth, and how much load it has."""
    policy = sources.state.policy
    return {
        each.name: Worth(
            policy.class_of(each.service_class).cpu_share,
            sources.advisor.advice(each.name).load_ratio,
        )
        for each in policy.engines
    }
