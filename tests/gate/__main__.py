"""`python -m tests.gate`: what the code costs in instructions, held against what is recorded.

Fails where something grew by more than its tolerance. With `--record` it is written anew.
"""

import json
import sys
from pathlib import Path
from typing import Any, Final

import click
from rich.console import Console
from rich.table import Table

from tests.gate.comparing import FAILS, Group, Row, Verdict, compare, differences, group_of
from tests.gate.hot import INPUTS
from tests.gate.inputs import record as record_inputs
from tests.gate.instructions import instructions
from tests.gate.programs import objects, programs

RECORDED: Final = Path(__file__).parent / "recorded.json"
TOLERANCE: Final = {"objects": 0.03, "programs": 0.05, "python": 0.05}
"""By group. A verifier's visits move by more than the code that moves them, and Python's counts by
up to half a percent with where things come to lie in memory."""


@click.command()
@click.option("--record", "records", is_flag=True, help="Write what is measured as recorded.")
def main(records: bool) -> None:
    """Measure, print a table, and compare."""
    if records:
        record_inputs(INPUTS)
    now = {"objects": objects(), "programs": programs(), "python": instructions()}
    if records:
        found = {name: group.as_dict() for name, group in now.items() if group is not None}
        RECORDED.write_text(json.dumps(found, indent=1) + "\n")
        click.echo(f"recorded in {RECORDED.relative_to(Path.cwd())}")
    recorded: dict[str, Any] = json.loads(RECORDED.read_text())
    skipped, failed = 0, list[str]()
    for name, group in now.items():
        rows, said = judged(group_of(recorded[name]), group, TOLERANCE[name])
        Console(width=110).print(table_of(name, rows))
        for line in said:
            click.echo(f"not compared: {line}")
        skipped += sum(row.verdict is Verdict.SKIPPED for row in rows)
        failed += [f"{row.name}: {row.verdict}" for row in rows if row.verdict in FAILS]
    click.echo(f"{skipped} figures skipped")
    if failed:
        sys.exit(
            "gate: these cost more than recorded, or are not recorded as they are (make gate-record"
            " if that is meant):\n  " + "\n  ".join(failed)
        )


def judged(recorded: Group, now: Group | None, tolerance: float) -> tuple[list[Row], list[str]]:
    """The rows of a group, and why they are skipped if they are."""
    if now is None:
        rows = [Row(name, n, None, Verdict.SKIPPED) for name, n in recorded.figures.items()]
        return rows, ["this kernel, or we without root, can't load the programs"]
    return compare(recorded, now, tolerance), differences(recorded, now)


def table_of(name: str, rows: list[Row]) -> Table:
    """A table for a person."""
    table = Table(title=f"{name}, more than {TOLERANCE[name]:.0%} over the record fails")
    for heading in ("figure", "recorded", "now", "ratio", ""):
        table.add_column(heading, justify="left" if heading in {"figure", ""} else "right")
    for row in rows:
        ratio = f"{row.ratio:.3f}" if row.ratio is not None else "-"
        table.add_row(row.name, _text(row.recorded), _text(row.now), ratio, str(row.verdict))
    return table


def _text(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


if __name__ == "__main__":
    main()
