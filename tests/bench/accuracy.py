"""How exact the kernel's account is, part by part: `python -m tests.bench.accuracy`.

Writes build/accuracy.json and prints a table. With `--only`, what the file says of other parts is
kept.
"""

import json
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import click

from tests.bench import blocked, kills, retransmits, run_queue, streams, timing
from tests.bench.ground import ROOT, Ground, Part, ground

OUT: Final = ROOT / "build" / "accuracy.json"


def parts(count: int, seed: int) -> dict[str, Callable[[Ground], Part]]:
    """Every part by its name in the file."""
    return {
        "streams": lambda on: streams.measure(on, count, seed),
        "timing": timing.measure,
        "run_queue": run_queue.measure,
        "retransmits": retransmits.measure,
        "send_blocked": blocked.measure,
        "kills": lambda on: kills.measure(on, seed),
    }


def table(found: Mapping[str, Part]) -> str:
    """The figures, a line each; kinds of streams only where one was seen wrong."""
    rows: list[tuple[str, str, object]] = []
    for part, figures in found.items():
        rows += [(part, name, value) for name, value in _figures(figures)]
    widths = [max(len(str(row[at])) for row in rows) for at in (0, 1)]
    return "\n".join(
        f"{part:<{widths[0]}}  {name:<{widths[1]}}  {value}" for part, name, value in rows
    )


def _figures(part: Part, prefix: str = "") -> list[tuple[str, object]]:
    rows: list[tuple[str, object]] = []
    for name, value in part.items():
        if name == "by_kind":
            rows += [
                (f"{prefix}{kind}", f"{counts['mismatch']} of {counts['count']} wrong")
                for kind, counts in value.items()
                if counts["mismatch"]
            ]
        elif name in {"mismatches", "client_faults"}:
            rows += [(f"{prefix}{name}", line) for line in value]
        elif name not in {"totals", "buckets", "by_round"}:
            is_part = isinstance(value, dict)
            rows += _figures(value, f"{name}.") if is_part else [(f"{prefix}{name}", value)]
    return rows


@click.command()
@click.option(
    "--only", multiple=True, type=click.Choice(tuple(parts(0, 0))), help="Only this part."
)
@click.option("--count", type=click.IntRange(1), default=10_000, show_default=True)
@click.option("--seed", type=int, default=1, show_default=True, help="Of the mix of streams.")
@click.option("--out", type=click.Path(path_type=Path), default=OUT)
def main(only: tuple[str, ...], count: int, seed: int, out: Path) -> None:
    """Measure, write --out, print a table."""
    found: dict[str, Part] = {}
    with ground() as on:
        for name, measure in parts(count, seed).items():
            if only and name not in only:
                continue
            begun = time.monotonic()
            found[name] = measure(on)
            click.echo(f"{name}: {time.monotonic() - begun:.0f} s", err=True)
    before = json.loads(out.read_text()) if only and out.is_file() else {}
    out.parent.mkdir(exist_ok=True)
    out.write_text(json.dumps(before | found, indent=1) + "\n")
    click.echo(table(found))


if __name__ == "__main__":
    try:
        main()
    except RuntimeError as error:
        sys.exit(str(error))
