"""`python -m tests.bench.slo`: runs the scenarios, prints a table, writes build/slo.json."""

import datetime
import json
import os
import platform
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

import click

from demo.rig import ROOT, RigError

from .bench import GAP_MULTIPLE, TTFT_MULTIPLE, Bench, OutOfTimeError
from .cache import Cache
from .engines import BenchEngine, engine_named
from .extent import FULL, QUICK, Extent
from .loads import LENGTHS
from .report import table
from .scenarios import SCENARIOS
from .summary import all_loops

UNFINISHED: Final = 75
"""What the command ends with when --stop-after cut it short (EX_TEMPFAIL)."""


@click.command()
@click.option("--quick", is_flag=True, help="One seed, short windows, a small sweep.")
@click.option("--only", "names", multiple=True, type=click.Choice(tuple(SCENARIOS)))
@click.option("--seconds", type=click.FloatRange(2), help="Of each window.")
@click.option("--seeds", type=click.IntRange(1), help="How many.")
@click.option("--fresh", is_flag=True, help="Do not use results kept before.")
@click.option(
    "--stop-after",
    "minutes",
    type=click.FloatRange(0.1),
    help=f"Begin no run after so many minutes and end with {UNFINISHED}; run again to go on.",
)
@click.option("--engine", default="reference", envvar="ENGINE", show_default=True)
@click.option(
    "--kept", type=click.Path(path_type=Path), default=ROOT / "build" / "slo", help="Of all runs."
)
@click.option("--out", type=click.Path(path_type=Path), default=ROOT / "build" / "slo.json")
def main(
    *,
    quick: bool,
    names: tuple[str, ...],
    seconds: float | None,
    seeds: int | None,
    fresh: bool,
    minutes: float | None,
    engine: str,
    kept: Path,
    out: Path,
) -> None:
    """Compare sits with fixed settings and an AIMD on the same arrivals."""
    try:
        built = engine_named(engine)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--engine") from None
    extent = _extent(QUICK if quick else FULL, seconds, seeds)
    cache = Cache(kept, fresh=fresh)
    result: dict[str, Any] = {"setup": _setup(built, extent)}
    try:
        with Bench(built, cache, click.echo, None if minutes is None else minutes * 60) as bench:
            for name, scenario in SCENARIOS.items():
                if not names or name in names:
                    result[name] = scenario(bench, extent)
    except RigError as error:
        raise click.ClickException(str(error)) from None
    except OutOfTimeError:
        click.echo(f"{bench.made} runs made in this part; run again to go on")
        sys.exit(UNFINISHED)
    result["loop"] = all_loops(result)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(result, indent=1) + "\n")
    click.echo(table(result))


def _extent(extent: Extent, seconds: float | None, seeds: int | None) -> Extent:
    if seconds is not None:
        sweep_s = min(seconds, extent.sweep_window_s)
        extent = replace(extent, window_s=seconds, sweep_window_s=sweep_s)
    return extent if seeds is None else replace(extent, seeds=tuple(range(1, seeds + 1)))


def _setup(engine: BenchEngine, extent: Extent) -> dict[str, Any]:
    return {
        "written": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "engine": engine.name,
        "model": engine.model,
        "engine_options": list(engine.options),
        "machine": {"cpus": os.cpu_count(), "cpu": _cpu(), "kernel": platform.release()},
        "slo": {"ttft_multiple": TTFT_MULTIPLE, "gap_multiple": GAP_MULTIPLE},
        "lengths": asdict(LENGTHS),
        "extent": asdict(extent),
        "sits": "untuned; it has run on this engine before, once, for as long as one window",
        "sweep": (
            "each point runs on the first seed with the shorter window; the best run on every"
            " seed, and the best of those over all seeds is the best static setting"
        ),
    }


def _cpu() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.partition(": ")[2] for line in lines if line.startswith("model name")), "")


if __name__ == "__main__":
    main()
