"""`python -m tests.engines.vllm.cost`: what the plug-in adds to a step, to build/plugin.json."""

import json
import tempfile
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

from demo.rig import ROOT
from tests.engines.vllm.inside_run import run_inside

OUT: Final = ROOT / "build" / "plugin.json"
PARTS: Final = {"step": "a step", "page": "of it the page"}


def main() -> None:
    """Measure, print a table, write the file."""
    with tempfile.TemporaryDirectory() as directory:
        rows = run_inside("cost.py", Path(directory))
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_text(json.dumps(rows, indent=1) + "\n")
    table = Table(title="what the plug-in adds to a step of vLLM, µs")
    for heading in ("running", "when", *PARTS.values()):
        table.add_column(heading, justify="left" if heading == "when" else "right")
    for row in rows:
        costs = (f"{row[part]:.2f}" for part in PARTS)
        table.add_row(str(row["running"]), row["when"], *costs)
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
