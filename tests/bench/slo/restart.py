"""How soon the SLO holds again after sitsd was started anew under a load, cold and warm."""

import statistics
import time
from functools import partial
from pathlib import Path
from typing import Any, Final

from demo.sits import Sits, start_sitsd
from demo.stage import Stage
from demo.stats import Slo

from .bench import SETTLE_S, Bench, Spec, result_of, run_of, watching
from .contenders import SITS, SitsHand
from .extent import Extent
from .figures import Run, holds_from_s
from .loads import CONVERSATION, STEADY_SHARE, Plan, stretch
from .material import material
from .summary import summary
from .watch import LOOK_EVERY_S

STARTS_AT: Final = 0.25
"""Share of the window that is over when sitsd starts: until then nobody holds the engine."""

FIGURES: Final = ("holds_from_s", "engine_after_s", "holds_with_engine_s", "point_after_s")

HOLDS: Final = 0.95
"""Share of good requests."""


def restart(bench: Bench, extent: Extent) -> dict[str, Any]:
    """The steady load; sitsd comes a while after it has begun.

    First with nothing remembered, then with what the first has left behind.
    """
    talk = material(bench, extent, CONVERSATION)
    found: dict[str, Any] = {
        **talk.as_dict(),
        "share_of_capacity": STEADY_SHARE,
        "holds_from": f"the next 2 s of requests are {HOLDS:.0%} good; counted from sitsd's start",
        "engine_after": "it had the engine; until then it starts, cold or warm",
        "holds_with_engine": "as holds_from, counted from when it had the engine",
        "point_after": "its first point by the step model; counted from when it had the engine",
    }
    runs: dict[str, list[Run]] = {"cold": [], "warm": []}
    times: dict[str, list[dict[str, float | None]]] = {"cold": [], "warm": []}
    for seed in extent.seeds:
        load = stretch(talk.requests, seed, talk.rate(STEADY_SHARE), extent.window_s)
        spec = Spec(SITS, talk.plan(load), talk.slo)
        inputs = bench.inputs_of(spec, starts_at=STARTS_AT)
        both = bench.kept(f"restart, seed {seed}", inputs, partial(_both, bench, spec))
        for name, result in both.items():
            runs[name].append(run := run_of(spec, result))
            times[name].append(_times(run))
    for name, made in runs.items():
        found[name] = {**summary(made), "times": times[name]}
        for figure in FIGURES:
            known = [each[figure] for each in times[name]]
            there = [each for each in known if each is not None]
            found[name][figure] = statistics.median(there) if len(there) == len(known) else None
    for figure in FIGURES:
        cold, warm = (found[name][figure] for name in ("cold", "warm"))
        found[f"{figure}_warm_over_cold"] = warm / cold if warm is not None and cold else None
    return found


def _times(run: Run) -> dict[str, float | None]:
    until_ns = max(each.sent_ns for each in run.records)
    holds_s = holds_from_s(run.records, run.slo, run.seen["started_ns"], until_ns, HOLDS)
    engine_s = run.seen["engine_after_s"]
    known = holds_s is not None and engine_s is not None
    return {
        "ready_s": run.seen["ready_s"],
        "engine_after_s": engine_s,
        "point_after_s": run.seen["point_after_s"],
        "holds_from_s": holds_s,
        "holds_with_engine_s": max(0.0, holds_s - engine_s) if known else None,
    }


def _both(bench: Bench, spec: Spec) -> dict[str, Any]:
    stage = bench.stage()
    state = bench.new_state_dir(stage)
    return {name: _late(stage, spec.plan, spec.slo, state) for name in ("cold", "warm")}


def _late(stage: Stage, plan: Plan, slo: Slo, state: Path) -> dict[str, Any]:
    """One run; sitsd keeps its state in `state`."""
    starts_s = plan.requests[plan.warm_up].arrival_s + STARTS_AT * plan.window_s
    started: list[Sits] = []
    times: dict[str, float] = {}
    time.sleep(SETTLE_S)
    with watching(stage) as watch:

        def during(elapsed_s: float) -> None:
            watch.look()
            if not started and elapsed_s >= starts_s:
                times["started_ns"] = time.monotonic_ns()
                started.append(start_sitsd(stage.rig, stage, slo, "control", state))
                times["ready_s"] = (time.monotonic_ns() - times["started_ns"]) / 1e9

        try:
            sent = stage.send("run", plan.requests, during, every_s=LOOK_EVERY_S)
            account = SitsHand(started[0], int(times["started_ns"])).account()
        finally:
            for each in started:
                stage.rig.stop(each.process)
    return result_of(sent, {**account, **watch.seen.as_dict(), **times})
