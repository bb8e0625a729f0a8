"""Background work beside a loaded engine: what sits leaves it, against the best static quota.

One core has the engine and six neighbours that burn all they get. The oracle is the largest static
quota under which the same load meets the same SLO, found by a sweep and then by halving what lies
between the largest that does and the next that does not: nobody knows it beforehand, and it is
another one for each load. `python -m tests.bench.backfill` writes build/backfill.json.
"""

import json
import os
import platform
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import click

from controller.limits.cgroup import CgroupError, Group, cpu_group
from controller.limits.cpu import apply, quota_change
from demo import calibrate
from demo.rig import ROOT, Rig, RigError
from demo.sits import start_sitsd
from demo.stage import Neighbours, Stage
from demo.stats import PhaseFigures, Slo, phase_figures
from demo.trace import LengthScale, Load, fit, read_trace

PROMISED: Final = 0.99
"""Share of requests that must meet the SLO, under a static quota and under sits."""

LEAST_RATIO: Final = 0.6
"""Of the oracle's throughput, for the neighbours under sits."""

TOTALS: Final = (0.1, 0.3, 0.5, 0.7, 0.9)
"""Static quotas of all neighbours together, in cores."""

HALVINGS: Final = 3
"""The oracle is known to a fortieth of a core then."""

CAPACITY_REQUESTS: Final = 48
UNLOADED_REQUESTS: Final = 12


@dataclass(frozen=True, slots=True)
class Run:
    """One window: the client's figures and the CPU that neighbours got, in cores."""

    total_quota_cores: float | None
    attainment: float
    goodput_rps: float
    ttft_p99_ms: float | None
    gap_p99_ms: float | None
    neighbour_cores: float
    requests: int
    failed: int

    @property
    def holds(self) -> bool:
        """Whether the SLO was met."""
        return self.attainment >= PROMISED


def oracle_of(sweep: Sequence[Run]) -> Run | None:
    """The run of the sweep that left neighbours most and met the SLO; None if none did."""
    return max(
        (run for run in sweep if run.holds), key=lambda run: run.neighbour_cores, default=None
    )


def next_total(sweep: Sequence[Run]) -> float:
    """The quota to try next: half way from the largest that holds to the next that was tried."""
    tried = sorted(run.total_quota_cores or 0.0 for run in sweep)
    held = [run.total_quota_cores or 0.0 for run in sweep if run.holds]
    low = max(held, default=0.0)
    high = next((total for total in tried if total > low), 1.0)
    return (low + high) / 2


def verdict(oracle: Run | None, sits: Run) -> dict[str, Any]:
    """What is to be shown, and whether it is. Without an oracle anything is enough."""
    ratio = sits.neighbour_cores / oracle.neighbour_cores if oracle is not None else None
    return {
        "ratio": ratio,
        "slo_holds": sits.holds,
        "enough": ratio is None or ratio >= LEAST_RATIO,
    }


class Bench:
    """An engine on a rig, and one load for all runs."""

    def __init__(self, rig: Rig, window_s: float, say: Callable[[str], None]) -> None:
        """Start the engine, and find its SLO and its load as the demonstration does."""
        self._rig = rig
        self._say = say
        self._stage = Stage(rig)
        self._stage.start_engine()
        trace, lengths = read_trace(), LengthScale()
        alone = calibrate.unloaded_plan(trace, lengths, UNLOADED_REQUESTS)
        unloaded = calibrate.unloaded_figures(self._stage.send("unloaded", alone).records)
        together = calibrate.capacity_plan(trace, lengths, CAPACITY_REQUESTS)
        capacity = calibrate.capacity_rps(self._stage.send("capacity", together).records)
        self.slo: Slo = calibrate.slo_of(unloaded)
        self.load: Load = fit(trace, lengths, capacity * calibrate.LOAD_SHARE, window_s)
        self._say(
            f"SLO: TTFT {self.slo.ttft_ms:g} ms, gap {self.slo.gap_ms:g} ms;"
            f" {len(self.load.requests)} requests in {window_s:g} s"
        )

    def alone(self) -> Run:
        """The load without neighbours."""
        return self._told("alone", self._run("alone", None, None))

    def static(self, total: float) -> Run:
        """The load beside neighbours that are held to `total` cores together."""
        groups = self._groups()
        for group in groups:
            apply(quota_change(group, total / len(groups)))
        try:
            with self._stage.neighbours() as neighbours:
                run = self._run(f"static-{total:g}", neighbours, total)
        finally:
            for group in groups:
                apply(quota_change(group, None))
        return self._told(f"quota of {total:g}", run)

    def sits(self) -> tuple[Run, Run, list[dict[str, Any]]]:
        """The load beside neighbours that sits holds: just started, then once it knows them."""
        sits = start_sitsd(self._rig, self._stage, self.slo, "control")
        try:
            with self._stage.neighbours() as neighbours:
                first = self._told("sits, at first", self._run("sits-first", neighbours, None))
                then = self._told("sits", self._run("sits", neighbours, None))
                held = sits.client.status()["neighbours"]
        finally:
            self._rig.stop(sits.process)
        return first, then, held

    def _run(self, name: str, neighbours: Neighbours | None, total: float | None) -> Run:
        began_s, used_s = time.monotonic(), neighbours.cpu_s() if neighbours is not None else 0.0
        sent = self._stage.send(name, self.load.requests)
        took_s = time.monotonic() - began_s
        cores = (neighbours.cpu_s() - used_s) / took_s if neighbours is not None else 0.0
        figures: PhaseFigures = phase_figures(sent.records, self.slo, self.load.window_s)
        return Run(
            total,
            figures.slo_attainment,
            figures.goodput_rps,
            figures.ttft_ms.p99,
            figures.gap_ms.p99,
            cores,
            figures.requests,
            figures.failed,
        )

    def _told(self, name: str, run: Run) -> Run:
        self._say(
            f"{name:>16}: {run.attainment:6.1%} meet the SLO, neighbours have"
            f" {run.neighbour_cores:.3f} cores"
        )
        return run

    def _groups(self) -> list[Group]:
        groups = self._rig.groups
        return [
            cpu_group(groups.hierarchies, groups.path(name)) for name in self._rig.neighbour_names
        ]


@click.command()
@click.option("--seconds", type=click.FloatRange(3), default=20.0, show_default=True)
@click.option("--totals", help="Static quotas to sweep, in cores with commas.")
@click.option("--out", type=click.Path(path_type=Path), default=ROOT / "build" / "backfill.json")
def main(*, seconds: float, totals: str | None, out: Path) -> None:
    """Compare what background work gets under sits with the best static quota.

    Ends with 1 if it is less than 60% of that, or the SLO is met by less than 99%. On a machine
    where it is not met without neighbours there is nothing to compare.
    """
    swept = tuple(map(float, totals.split(","))) if totals else TOTALS
    try:
        with Rig("sits-backfill") as rig:
            bench = Bench(rig, seconds, click.echo)
            alone = bench.alone()
            if not alone.holds:
                raise RigError(f"without neighbours {alone.attainment:.1%} meet the SLO")
            sweep = [bench.static(total) for total in swept]
            for _ in range(HALVINGS):
                sweep.append(bench.static(next_total(sweep)))
            first, sits, held = bench.sits()
    except (RigError, CgroupError, ValueError) as error:
        raise click.ClickException(str(error)) from None
    oracle = oracle_of(sweep)
    shown = verdict(oracle, sits)
    result = {
        "machine": {"cpus": os.cpu_count(), "kernel": platform.release()},
        "slo": asdict(bench.slo) | {"attainment": PROMISED},
        "window_s": seconds,
        "alone": asdict(alone),
        "sweep": [asdict(run) for run in sweep],
        "oracle": asdict(oracle) if oracle is not None else None,
        "sits_first": asdict(first),
        "sits": asdict(sits),
        "held": held,
        **shown,
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(result, indent=1) + "\n")
    ratio = "no static quota meets the SLO" if shown["ratio"] is None else f"{shown['ratio']:.2f}"
    click.echo(f"neighbours under sits against the oracle: {ratio}; SLO {sits.attainment:.1%}")
    sys.exit(0 if shown["enough"] and shown["slo_holds"] else 1)


if __name__ == "__main__":
    main()
