"""How soon the SLO holds again after a start, with nothing remembered and with the load known.

Twice: sitsd comes anew to an engine that is at work, whose page tells of its last steps; and both
are started anew, as after a machine's restart, so that nothing is known but what sitsd kept.
"""

import statistics
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from demo.sits import Sits, start_sitsd
from demo.stage import Stage
from demo.stats import is_good

from .bench import SETTLE_S, Bench, Spec, result_of, run_of, watching
from .contenders import SITS, SitsHand
from .extent import Extent
from .figures import Run, holds_from_s
from .loads import CONVERSATION, LONG_RPS, SHORT_RPS, stalling
from .material import material
from .summary import summary
from .watch import LOOK_EVERY_S

STARTS_AT: Final = 0.25
"""Share of the window that is over when sitsd starts: until then nobody holds the engine."""

FIGURES: Final = ("holds_from_s", "engine_after_s", "holds_with_engine_s", "point_after_s")

HOLDS: Final = 1.0
"""Share of good requests: with less it would hold for some that came before."""


def restart(bench: Bench, extent: Extent) -> dict[str, Any]:
    """A load that the engine's defaults never serve well.

    Each first with nothing remembered (cold), then with what that run has left behind (warm).
    """
    talk = material(bench, extent, CONVERSATION)
    found: dict[str, Any] = {
        **talk.as_dict(),
        "rates_rps": {"short": SHORT_RPS, "long": LONG_RPS},
        "good_before": "share of good requests before sitsd started, of the best run",
        "engine_after": "it had the engine; until then it starts, cold or warm",
        "holds_from": f"the next 2 s of requests are {HOLDS:.0%} good; counted from sitsd's start,"
        " where the engine is anew from the first request",
        "holds_with_engine": "the same, counted from when it had the engine",
        "point_after": "its first point by the step model; counted as holds_with_engine, where the"
        " engine is anew from the first request",
    }
    for kind, engine_anew in (("", False), ("_engine_anew", True)):
        runs: dict[str, list[Run]] = {"cold": [], "warm": []}
        for seed in extent.seeds:
            plan = talk.plan(stalling(seed, extent.window_s), 0 if engine_anew else None)
            spec = Spec(SITS, plan, talk.slo)
            inputs = bench.inputs_of(spec, starts_at=STARTS_AT, engine_anew=engine_anew)
            both = bench.kept(
                f"restart{kind.replace('_', ' ')}, seed {seed}",
                inputs,
                partial(_both, bench, spec, engine_anew=engine_anew),
            )
            for name, result in both.items():
                runs[name].append(run_of(spec, result))
        for name, made in runs.items():
            found[f"{name}{kind}"] = _entry(made)
        for figure in FIGURES:
            cold, warm = (found[f"{name}{kind}"][figure] for name in runs)
            known = warm is not None and cold
            found[f"{figure}{kind}_warm_over_cold"] = warm / cold if known else None
    return found


def _entry(runs: Sequence[Run]) -> dict[str, Any]:
    times = [times_of(run) for run in runs]
    entry = {**summary(runs), "times": times}
    for figure in FIGURES:
        there = [value for each in times if (value := each[figure]) is not None]
        entry[figure] = statistics.median(there) if len(there) == len(times) else None
    before = (value for each in times if (value := each["good_before"]) is not None)
    return {**entry, "good_before": max(before, default=None)}


def times_of(run: Run) -> dict[str, float | None]:
    """Seconds; what there was only before the first request is 0 after it."""
    seen = run.seen
    from_ns = max(seen["started_ns"], min(each.sent_ns for each in run.records))
    until_ns = max(each.sent_ns for each in run.records)
    holds_s = holds_from_s(run.records, run.slo, from_ns, until_ns, HOLDS)
    before = [is_good(each, run.slo) for each in run.records if each.ended_ns < from_ns]
    found = {
        "good_before": sum(before) / len(before) if before else None,
        "engine_after_s": seen["engine_after_s"],
        "holds_from_s": holds_s,
        "holds_with_engine_s": None,
        "point_after_s": None,
    }
    if seen["engine_after_s"] is None:
        return found
    engine_s = (seen["started_ns"] - from_ns) / 1e9 + seen["engine_after_s"]
    had_s = max(0.0, engine_s)
    if holds_s is not None:
        found["holds_with_engine_s"] = max(0.0, holds_s - had_s)
    if seen["point_after_s"] is not None:
        found["point_after_s"] = max(0.0, engine_s + seen["point_after_s"] - had_s)
    return found


def _both(bench: Bench, spec: Spec, *, engine_anew: bool) -> dict[str, Any]:
    stage = bench.stage()
    state = bench.new_state_dir(stage)
    return {name: _make(stage, spec, state, engine_anew=engine_anew) for name in ("cold", "warm")}


def _make(stage: Stage, spec: Spec, state: Path, *, engine_anew: bool) -> dict[str, Any]:
    """One run; sitsd keeps its state in `state` and starts under the load, or before it."""
    plan = spec.plan
    starts_s = plan.requests[plan.warm_up].arrival_s + STARTS_AT * plan.window_s
    start = partial(start_sitsd, stage.rig, stage, spec.slo, "control", state)
    sits: Sits | None = None
    started_ns = 0
    try:
        if engine_anew:
            stage.stop_engine()
            stage.start_engine()
            started_ns = time.monotonic_ns()
            sits = start()
        time.sleep(SETTLE_S)
        with watching(stage) as watch:

            def during(elapsed_s: float) -> None:
                nonlocal sits, started_ns
                watch.look()
                if sits is None and elapsed_s >= starts_s:
                    started_ns = time.monotonic_ns()
                    sits = start()

            sent = stage.send("run", plan.requests, during, every_s=LOOK_EVERY_S)
            assert sits is not None
            account = SitsHand(sits, started_ns).account()
        return result_of(sent, {**account, **watch.seen.as_dict(), "started_ns": started_ns})
    finally:
        if sits is not None:
            stage.rig.stop(sits.process)
