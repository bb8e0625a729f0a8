"""The demonstration from start to end: calibrate, check the kernel's view, observe, control."""

import json
import time
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from typing import Final

from agent.client import ClientError
from controller.limits.cgroup import CgroupError, cpu_group
from controller.limits.cpu import DEFAULT_WEIGHT, read_quota, read_weight
from demo import calibrate
from demo.report import Loop, Phase, Report
from demo.rig import Rig, RigError
from demo.screen import Screen
from demo.sits import Sits, start_sitsd
from demo.stage import Neighbours, Sent, Stage
from demo.stats import Comparison, Slo, compare, phase_figures
from demo.trace import LengthScale, Load, Request, fit, read_trace

LEAST_WINDOW_S: Final = 3.0
FIXED_S: Final = 12.0
"""Starting engine and agent, the client's six starts, and serving what observe left waiting."""
UNDONE_WITHIN_S: Final = 2.0
STATUS_EVERY_S: Final = 0.5

ACCURACY_REQUESTS_PER_S: Final = 3.0
ACCURACY_PROMPT_TOKENS: Final = 64
ACCURACY_ANSWER_TOKENS: Final = 40


@dataclass(frozen=True, slots=True)
class Timing:
    """How long each part takes."""

    unloaded_requests: int
    capacity_requests: int
    accuracy_s: float
    window_s: float


def timing(seconds: float) -> Timing:
    """Parts that take about `seconds` together; the windows get what the rest leaves."""
    unloaded = max(4, min(16, round(seconds / 6)))
    accuracy_s = max(1.5, min(6.0, seconds / 12))
    fixed_s = FIXED_S + unloaded * calibrate.UNLOADED_EVERY_S + accuracy_s
    return Timing(unloaded, 48, accuracy_s, max(LEAST_WINDOW_S, (seconds - fixed_s) / 3))


def demonstrate(rig: Rig, screen: Screen, parts: Timing) -> Report:
    """Run all of it on `rig`; `RigError` if something the demonstration needs fails."""
    began = time.monotonic()
    stage = Stage(rig)
    trace, lengths = read_trace(), LengthScale()
    screen.phase("engine alone: what it can do here")
    stage.start_engine()
    unloaded, capacity_rps = _calibrate(stage, trace, lengths, parts)
    slo = calibrate.slo_of(unloaded)
    load = fit(trace, lengths, capacity_rps * calibrate.LOAD_SHARE, parts.window_s)
    screen.note(_calibration_text(unloaded, slo, capacity_rps, load))

    sits = start_sitsd(rig, stage, slo)
    screen.phase("accuracy: the kernel's figures against the client's, machine idle")
    accuracy = _send(stage, sits, screen, "accuracy", _accuracy_plan(parts.accuracy_s))
    accuracy_seen = _compared(rig, sits, "accuracy", accuracy)

    def replay(name: str, *, disturbed: bool) -> Phase:
        return _replay(stage, sits, screen, name, load, slo, disturbed=disturbed)

    screen.phase("alone: the load without neighbours, sits only measures")
    alone = replay("alone", disturbed=False)

    screen.phase("observe: the load with six CPU-burning neighbours, sits only measures")
    observe = replay("observe", disturbed=True)
    _calm(rig)

    screen.phase("control: the same load and neighbours, sits acts")
    since_ns = time.monotonic_ns()
    sits.set_mode("control")
    control = replay("control", disturbed=True)
    loop = Loop.of(sits.client.status())
    decisions = sits.decisions("control", since_ns)
    sits.set_mode("observe")
    left_behind = _left_behind(rig)

    return Report(
        unloaded=unloaded,
        slo=slo,
        capacity_rps=capacity_rps,
        lengths=lengths,
        load=load,
        alone=alone,
        observe=observe,
        control=control,
        loop=loop,
        accuracy=accuracy_seen,
        accuracy_late=accuracy.late,
        accuracy_failed=sum(bool(each.error) for each in accuracy.records),
        decisions=decisions,
        left_behind=left_behind,
        took_s=time.monotonic() - began,
    )


def _calibrate(
    stage: Stage, trace: tuple[Request, ...], lengths: LengthScale, parts: Timing
) -> tuple[Slo, float]:
    alone = calibrate.unloaded_plan(trace, lengths, parts.unloaded_requests)
    unloaded = calibrate.unloaded_figures(_whole(stage.send("unloaded", alone)).records)
    together = calibrate.capacity_plan(trace, lengths, parts.capacity_requests)
    return unloaded, calibrate.capacity_rps(_whole(stage.send("capacity", together)).records)


def _whole(sent: Sent) -> Sent:
    """`sent`, of which nothing may have failed: no figure could be trusted."""
    for each in sent.records:
        if each.error:
            raise RigError(f"a request failed while the engine was alone: {each.error}")
    return sent


def _accuracy_plan(seconds: float) -> list[Request]:
    every_s = 1 / ACCURACY_REQUESTS_PER_S
    return [
        Request(number * every_s, ACCURACY_PROMPT_TOKENS, ACCURACY_ANSWER_TOKENS)
        for number in range(max(1, int(seconds * ACCURACY_REQUESTS_PER_S)))
    ]


def _compared(rig: Rig, sits: Sits, name: str, sent: Sent) -> Comparison:
    """The kernel's view of what was sent against the client's; the former is kept for a look."""
    streams = sits.new_streams(len(sent.records))
    lines = "".join(json.dumps(each) + "\n" for each in streams)
    (rig.run_dir / f"{name}.kernel.jsonl").write_text(lines)
    return compare(sent.records, streams)


def _replay(
    stage: Stage,
    sits: Sits,
    screen: Screen,
    name: str,
    load: Load,
    slo: Slo,
    *,
    disturbed: bool,
) -> Phase:
    """The load once; neighbours, if there are any, go when its window ends."""
    with stage.neighbours() if disturbed else nullcontext() as neighbours:
        used = _Used(neighbours, load.window_s)
        sent = _send(stage, sits, screen, name, load.requests, used.watch)
        used.finish()
    return Phase(
        figures=phase_figures(sent.records, slo, load.window_s),
        comparison=_compared(stage.rig, sits, name, sent),
        neighbour_cores=used.cores,
        late=sent.late,
        errors=tuple(each.error for each in sent.records if each.error),
    )


class _Used:
    """Measures what the neighbours use in the window, and ends them after it."""

    def __init__(self, neighbours: Neighbours | None, window_s: float) -> None:
        self.cores = 0.0
        self._neighbours = neighbours
        self._window_s = window_s
        self._begin: tuple[float, float] | None = None

    def watch(self, elapsed_s: float) -> None:
        """Called every so often while the load runs."""
        if self._neighbours is None:
            return
        if self._begin is None and elapsed_s >= 0:
            self._begin = (time.monotonic(), self._neighbours.cpu_s())
        if elapsed_s >= self._window_s:
            self.finish()

    def finish(self) -> None:
        """The window is over, or the load was done before its end."""
        if self._neighbours is None or self._begin is None:
            return
        at, used_s = self._begin
        self.cores = (self._neighbours.cpu_s() - used_s) / (time.monotonic() - at)
        self._neighbours.stop()
        self._neighbours = None


def _send(
    stage: Stage,
    sits: Sits,
    screen: Screen,
    name: str,
    plan: list[Request] | tuple[Request, ...],
    also: Callable[[float], None] = lambda _: None,
) -> Sent:
    """Send a plan with the screen kept up to date."""
    shown_s = float("-inf")

    def during(elapsed_s: float) -> None:
        nonlocal shown_s
        also(elapsed_s)
        if elapsed_s - shown_s >= STATUS_EVERY_S:
            shown_s = elapsed_s
            with suppress(ClientError):  # if sitsd is gone, its streams will be missed
                screen.tick(sits.client.status(), sits.last_decisions(), elapsed_s)

    return stage.send(name, plan, during)


def _calm(rig: Rig) -> None:
    """Between the phases nothing may differ from the start."""
    left = _left_behind(rig)
    if left:
        raise RigError(f"limits are in force that observe mode may not set: {', '.join(left)}")


def _left_behind(rig: Rig) -> tuple[str, ...]:
    """The limits that are still in force a moment after control has ended."""
    until = time.monotonic() + UNDONE_WITHIN_S
    while (left := _limits(rig)) and time.monotonic() < until:
        time.sleep(0.05)
    return left


def _limits(rig: Rig) -> tuple[str, ...]:
    found = []
    try:
        for name in ("engine", *rig.neighbour_names):
            group = cpu_group(rig.groups.hierarchies, rig.groups.path(name))
            weight, quota = read_weight(group), read_quota(group)
            if weight != DEFAULT_WEIGHT:
                found.append(f"{name} has a CPU weight of {weight}")
            if quota is not None:
                found.append(f"{name} has a quota of {quota:g} cores")
    except CgroupError as error:
        raise RigError(str(error)) from None
    return tuple(found)


def _calibration_text(unloaded: Slo, slo: Slo, capacity_rps: float, load: Load) -> str:
    return (
        f"unloaded TTFT {unloaded.ttft_ms:.1f} ms, gap {unloaded.gap_ms:.1f} ms, capacity"
        f" {capacity_rps:.1f} requests/s; SLO: TTFT {slo.ttft_ms:g} ms"
        f" (× {calibrate.TTFT_MULTIPLE:g}), gap {slo.gap_ms:g} ms"
        f" (× {calibrate.GAP_MULTIPLE:g}); load: {len(load.requests)} requests in"
        f" {load.window_s:.0f} s"
    )
