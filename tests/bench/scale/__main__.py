"""`python -m tests.bench.scale`: writes build/scale.json and the plots, prints tables.

With `--only`, what the file says of other parts is kept.
"""

import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import click

from tests.bench.ground import ROOT, Ground, Part, ground
from tests.bench.scale import cgroups, churn, cpus, streams
from tests.bench.scale.report import is_exact, keys, plots, table

OUT: Final = ROOT / "build" / "scale.json"
STREAMS: Final = (100, 1_000, 10_000)
CUT: Final = (10_000,)
CGROUPS: Final = (10, 200, 1_000)
CHURN: Final = (500, 2_000, 5_000)
CPUS: Final = (2, 16, 64, 256)
SECONDS: Final = 8.0
"""Of each measurement."""

Points = Mapping[str, tuple[Sequence[int], Callable[[Ground, int], Part]]]


def parts(seconds: float) -> Points:
    """Every part: its points, and how one is measured."""
    return {
        "streams": (STREAMS, lambda on, count: streams.measure(on, count, seconds)),
        "cut": (CUT, lambda on, count: streams.measure_cut(on, count, 1.0)),
        "cgroups": (CGROUPS, lambda on, count: cgroups.measure(on, count, seconds)),
        "churn": (CHURN, lambda on, rate: churn.measure(on, rate, seconds)),
        "cpus": (CPUS, lambda _, count: cpus.measure(count)),
    }


@click.command()
@click.option("--only", multiple=True, type=click.Choice(tuple(parts(0))), help="Only this part.")
@click.option("--at", multiple=True, type=click.IntRange(1), help="Only this many.")
@click.option("--seconds", type=click.FloatRange(1), default=SECONDS, show_default=True)
@click.option("--out", type=click.Path(path_type=Path), default=OUT)
@click.option("--plots", "drawings", type=click.Path(path_type=Path), default=ROOT / "docs")
def main(
    only: tuple[str, ...], at: tuple[int, ...], seconds: float, out: Path, drawings: Path
) -> None:
    """Measure, write --out and the plots, print tables."""
    before: dict[str, Any] = json.loads(out.read_text()) if only and out.is_file() else {}
    found = {name: before[name] for name in parts(0) if name in before}
    with ground() as on:
        for name, (points, measure) in parts(seconds).items():
            if only and name not in only:
                continue
            found[name] = []
            for point in at or points:
                began_s = time.monotonic()
                found[name].append(measure(on, point))
                good = "exact" if is_exact(found[name][-1]) else "NOT exact"
                took_s = time.monotonic() - began_s
                click.echo(f"{name}, {point}: {good} ({took_s:.0f} s)", err=True)
                # what is known is kept, should a later point fail
                out.parent.mkdir(exist_ok=True)
                out.write_text(json.dumps({**keys(found), **found}, indent=1) + "\n")
    for name, text in plots(found).items():
        (drawings / name).write_text(text)
    click.echo(table(found))


if __name__ == "__main__":
    try:
        main()
    except RuntimeError as error:
        sys.exit(str(error))
