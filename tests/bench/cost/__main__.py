"""`python -m tests.bench.cost`: what sits costs, against its budgets and the best peers.

Prints one table and writes build/bench.json (a number for each key), build/bench-runs.json (every
run) and build/bench.md (the table for a document). With `--only`, what the files say of other parts
is kept. A part that fails is told and the others go on; the exit status is 1 then.
"""

import json
import sys
import time
from typing import Final

import click
from rich.console import Console

from tests.bench.ground import ROOT

from .extent import FULL, QUICK
from .figures import Found
from .parts import PARTS, run
from .report import markdown, notes, parse_runs, table, write

NUMBERS: Final = ROOT / "build" / "bench.json"
DOCUMENT: Final = ROOT / "build" / "bench.md"
RUNS: Final = ROOT / "build" / "bench-runs.json"


@click.command()
@click.option("--only", multiple=True, type=click.Choice(tuple(PARTS)), help="Only this part.")
@click.option("--quick", is_flag=True, help="As many runs, each shorter; three minutes in all.")
def main(only: tuple[str, ...], quick: bool) -> None:
    """Measure, print the table, write the files."""
    found: Found = parse_runs(json.loads(RUNS.read_text())) if only and RUNS.is_file() else {}
    failed = []
    for name, part in PARTS.items():
        if only and name not in only:
            continue
        begun_s = time.monotonic()
        figures, why = run(part, QUICK if quick else FULL)
        found |= figures
        click.echo(f"{name}: {why or 'done'} ({time.monotonic() - begun_s:.0f} s)", err=True)
        failed += [name] if why else []
        write(found, NUMBERS, RUNS)
    DOCUMENT.write_text(markdown(found))
    console = Console(width=None if sys.stdout.isatty() else 160)
    console.print(table(found))
    for line in notes(found):
        console.print(line, highlight=False, markup=False)
    if failed:
        sys.exit(1)


if __name__ == "__main__":
    main()
