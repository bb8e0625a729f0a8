"""`python -m demo`: the command."""

import json
import shutil
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Final

import click
from rich.console import Console

from agent.client import ClientError
from demo.report import broken_claims, render
from demo.rig import ROOT, Rig, RigError
from demo.run import demonstrate, timing
from demo.screen import screen_for

QUICK_S: Final = 20.0
_KEPT: Final = {".log", ".plan", ".jsonl", ".toml", ".db", ".db-wal"}


@click.command()
@click.option(
    "--seconds",
    type=click.FloatRange(20, 3600),
    default=90.0,
    show_default=True,
    help="How long all of it takes, about.",
)
@click.option("--quick", is_flag=True, help=f"The shortest run that shows anything: {QUICK_S:g} s.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON, nothing else.")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=ROOT / "build" / "demo.json",
    help="Where the result is written; build/demo.json without this.",
)
@click.option(
    "--keep-logs",
    type=click.Path(path_type=Path),
    help="Copy logs, plans, records, the policy and the journal to this directory.",
)
def main(*, seconds: float, quick: bool, as_json: bool, out: Path, keep_logs: Path | None) -> None:
    """Show what sits does for an engine that six neighbours take the CPU from.

    A real request trace is replayed twice, first while sits only measures, then while it acts.
    The figures of both are a client's. Ends with 1 if what is to be shown does not hold.
    """
    # a service manager's stop and a lost terminal clean up like Ctrl-C
    signal.signal(signal.SIGTERM, _interrupt)
    signal.signal(signal.SIGHUP, _interrupt)
    console = Console(stderr=as_json)
    try:
        with Rig() as rig:
            try:
                with screen_for(console) as screen:
                    report = demonstrate(rig, screen, timing(QUICK_S if quick else seconds))
            finally:
                if keep_logs is not None:
                    _keep(rig, keep_logs)
    except (RigError, ClientError) as error:
        raise click.ClickException(str(error)) from None
    except KeyboardInterrupt:
        click.echo("stopped; everything is cleaned up", err=True)
        sys.exit(130)
    result = json.dumps(report.as_dict(), indent=2)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(result + "\n")
    console.print()
    console.print(render(report))
    if as_json:
        click.echo(result)
    broken = broken_claims(report)
    for claim in broken:
        console.print(f"[bold red]does not hold:[/bold red] {claim}", highlight=False)
    sys.exit(1 if broken else 0)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _keep(rig: Rig, where: Path) -> None:
    where.mkdir(parents=True, exist_ok=True)
    for file in (*rig.run_dir.iterdir(), *(rig.run_dir / "state").glob("*")):
        if file.suffix in _KEPT:
            shutil.copy(file, where)


if __name__ == "__main__":
    main()
