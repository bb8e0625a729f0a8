"""`sitsctl replay`: what other settings would have decided on what a journal recorded."""

import re
import time
from datetime import datetime
from pathlib import Path
from typing import Final

import click

from agent.cli import USAGE, Json, agent_setting, fail, plain_console, print_for_people, print_json
from agent.offline import listed, policy_at, recorded_in
from agent.progress import Progress

STATE_DIR: Final = Path("/var/lib/sits")
JOURNAL_NAME: Final = "journal.db"

_UNITS_S: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_LATEST_NS: Final = (1 << 63) - 1


def _since(_: click.Context, param: click.Parameter, value: str | None) -> int:
    """A moment as Unix time in ns: how long ago (90s, 10m, 2h, 1d), or a local date and time."""
    if value is None:
        return 0
    if found := re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?)([smhd])", value):
        ago_s = float(found[1]) * _UNITS_S[found[2]]
        return time.time_ns() - int(ago_s * 1e9)
    try:
        return min(int(datetime.fromisoformat(value).timestamp() * 1e9), _LATEST_NS)
    except (ValueError, OverflowError):
        raise click.BadParameter(
            f"{value!r} is neither like 10m (s, m, h, d) nor like 2026-03-04T09:40", param=param
        ) from None


@click.command()
@click.argument("journal", required=False, type=click.Path(path_type=Path))
@click.option(
    "--policy",
    "policy_path",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Decide under this policy. [default: as it was then]",
)
@click.option("--engine", metavar="NAME", help="Only this engine.")
@click.option(
    "--since",
    callback=_since,
    metavar="WHEN",
    help="Only from then on: 90s, 10m, 2h or 1d ago, or 2026-03-04T09:40.",
)
@click.option(
    "-n",
    "--limit",
    type=click.IntRange(0, 100_000),
    default=20,
    show_default=True,
    help="Rows shown, the newest.",
)
@click.option("--all", "every", is_flag=True, help="Rows that are the same, too.")
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
def replay(
    journal: Path | None,
    policy_path: Path | None,
    engine: str | None,
    since: int,
    limit: int,
    every: bool,
    as_json: bool,
) -> None:
    """What other settings would have decided on what JOURNAL recorded; needs no agent.

    JOURNAL is the agent's own if left out. Each tick is decided anew from the state of then; what
    the decisions would have done is not known. The SLO that the kernel counted against stays.
    """
    from controller.replay import LABEL, summary_of
    from controller.replay import replay as again

    path = journal or agent_setting("state_dir", STATE_DIR) / JOURNAL_NAME
    policy = policy_at(policy_path)
    recorded = recorded_in(path, engine, since)
    known = {each.name for each in policy.engines} if policy is not None else set()
    names = {each.engine for each in recorded}
    if policy is not None and not names & known:
        fail(f"policy '{policy_path}' names none of the engines recorded: {listed(names)}", USAGE)
    found = []
    with Progress("replaying", len(recorded)) as progress:
        for row in again(recorded, policy):
            found.append(row)
            progress()
    rows = [row for row in found if row is not None]
    shown = [row for row in rows if every or not row.equal]
    answer: Json = {
        "label": LABEL,
        "journal": str(path),
        "policy": str(policy_path) if policy_path is not None else None,
        "from_wall_ns": rows[0].wall_ns if rows else None,
        "to_wall_ns": rows[-1].wall_ns if rows else None,
        "unreadable": len(found) - len(rows),
        "not_in_policy": sorted(names - known) if policy is not None else [],
        "summary": summary_of(rows).as_dict(),
        "rows": [row.as_dict() for row in shown[len(shown) - min(limit, len(shown)) :]],
    }
    if as_json:
        print_json(answer)
        return
    from agent import show_offline
    from agent.words import printable

    print_for_people(plain_console(), show_offline.replay(printable(answer)))
