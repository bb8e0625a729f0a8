"""How long the loop's stages take, and how soon a late gap becomes another knob.

Stages: reference engines with a small model and clients that never stop, `sitsd` in control mode;
`sitsctl status` after each run. Reaction: an engine whose steps a long prompt stretches over the
SLO; a sitsd that has not learnt it yet is switched to control, so often; from the kernel's edge to
the engine's acknowledgement, as the loop itself counts it.
"""

import shutil
import statistics
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final
from uuid import uuid4

from tests.bench.ground import ground, in_memory, private_bpffs
from tests.bench.loop_cost import measure as stages_of
from tests.engines.reference_process import Running
from tests.kernel.agent.groups import favoured
from tests.kernel.agent.rig import Site, Sitsd
from tests.kernel.agent.traffic import LONG_PROMPT, engine_in, load, long_beside_short, steps
from tests.kernel.agent.waiting import becomes
from tests.kernel.conftest import TwinGroup

from .extent import Extent
from .figures import Figure, Found

CLIENTS: Final = 2
MANY: Final = 8
REACTION_S: Final = 5.0

STAGES: Final = {
    "loop.collect_us_p99": "collect_us",
    "loop.decide_us_p99": "decide_us",
    "loop.actuate_us_p99": "actuate_us",
    "loop.total_ms_p99": "tick_ms",
}
MANY_NAME: Final = f"{MANY} engines"


def measure(extent: Extent) -> Found:
    """The figures `loop.*`."""
    one = [stages_of(1, CLIENTS, extent.window_s) for _ in range(extent.rounds)]
    many = [stages_of(MANY, 1, extent.window_s) for _ in range(extent.many_engines_rounds)]
    return stage_figures(one, many) | reaction_figures(_reactions(extent))


def stage_figures(one: list[dict[str, Any]], many: list[dict[str, Any]]) -> Found:
    """P99 of each stage, of runs with one engine and, beside them, with many."""

    def figure(runs: list[dict[str, Any]], stage: str) -> Figure:
        values = (run[stage]["p99"] for run in runs)
        return Figure(tuple(value for value in values if value is not None))

    return {
        key: Figure(
            figure(one, stage).values,
            "" if figure(one, stage).values else "the loop had nothing to do",
            {MANY_NAME: figure(many, stage)},
        )
        for key, stage in STAGES.items()
    }


def reaction_figures(runs: list[dict[str, Any]]) -> Found:
    """Median and P99 of the reactions of each run."""
    told = [run for run in runs if run["count"]]
    counts = ", ".join(str(run["count"]) for run in told)
    note = f"reactions a run: {counts}" if told else "the loop never acted on an edge"
    return {
        "loop.reaction_ms_p50": Figure(tuple(run["p50"] for run in told), note),
        "loop.reaction_ms_p99": Figure(tuple(run["p99"] for run in told), note),
    }


def _reactions(extent: Extent) -> list[dict[str, Any]]:
    """Of each run: how many starts of sitsd led to a reaction, and how long those took."""
    with _node() as (engine, site, group), favoured(group), long_beside_short(engine):
        return [_run(site, extent.reactions) for _ in range(extent.rounds)]


def _run(site: Site, starts: int) -> dict[str, Any]:
    # one that has learnt the engine's steps sets the knobs before anything is late
    took_ms = []
    for _ in range(starts):
        with site.sitsd() as sitsd:
            sitsd.following()
            sitsd.api.set_mode("control", "bench")
            if _reacted(sitsd, 0):
                took_ms.append(float(sitsd.api.status()["loop"]["reaction_ms"]["p50"]))
        shutil.rmtree(site.directory / "state")
    if not took_ms:
        return {"count": 0}
    return {"count": len(took_ms), "p50": statistics.median(took_ms), "p99": max(took_ms)}


def _reacted(sitsd: Sitsd, before: int) -> bool:
    """Whether there is a reaction more before long."""
    try:
        becomes(lambda: _count(sitsd) > before, REACTION_S)
    except AssertionError:
        return False
    return True


def _count(sitsd: Sitsd) -> int:
    loop = sitsd.api.status()["loop"]
    return int(loop["reaction_ms"]["count"]) if loop is not None else 0


@contextmanager
def _node() -> Iterator[tuple[Running, Site, TwinGroup]]:
    """An engine, and a site whose SLO its decode steps keep and steps with a long prompt miss."""
    with ExitStack() as stack:
        on = stack.enter_context(ground())
        pins = stack.enter_context(private_bpffs())
        directory = Path(stack.enter_context(TemporaryDirectory()))
        group = on.make_group("reaction")
        engine = stack.enter_context(engine_in(group, directory))
        stack.enter_context(in_memory(directory / "run"))
        site = Site(directory, pins / f"sits-{uuid4().hex[:12]}")
        stack.callback(site.unload)
        site.write(
            f'[engines.chat]\ncgroup = "/{group.cpu.name}"\nadmin_socket = "{engine.admin}"\n'
            f"slo = {{ ttft_ms = 60000, gap_ms = {_gap_ms(engine)} }}\n"
            "[controller]\nneighbour_pressure = 1.0\n"
        )
        yield engine, site, group


def _gap_ms(engine: Running) -> float:
    """Between a decode step and one with a long prompt in it."""
    with load(engine, clients=1, max_tokens=32) as traffic:
        traffic.grows_to(1)
    decode = statistics.median(steps(engine, lambda step: not step.prefill_tokens))
    with load(engine, clients=1, max_tokens=1, prompt=LONG_PROMPT) as traffic:
        traffic.grows_to(1)
    prefill = max(steps(engine, lambda step: step.prefill_tokens > 1_000))
    return float(statistics.geometric_mean([decode, prefill])) / 1e6
