"""`sitsctl set` and `sitsctl release`: knobs by hand, under a lease."""

import re
import sys
from pathlib import Path
from typing import Final

import click

from agent.cli import JSON, SOCKET, WRONG, Json, asking, print_answer, seconds_in
from agent.progress import waiting

LONGEST_S: Final = 86_400.0
"""As in `agent.api`, which is not imported for it."""

_ENGINE: Final = click.option(
    "--engine",
    "engines",
    multiple=True,
    help="The engine meant; may be given several times.",
)


def _values(_: click.Context, param: click.Parameter, given: tuple[str, ...]) -> dict[str, float]:
    """KNOB=NUMBER, each once."""
    found: dict[str, float] = {}
    for text in given:
        name, equals, number = text.partition("=")
        if not equals or not re.fullmatch(r"[0-9]{1,15}(\.[0-9]{1,9})?", number):
            raise click.BadParameter(f"KNOB=NUMBER, such as max_running=8, not {text!r}")
        if name in found:
            raise click.BadParameter(f"{name} is given twice")
        found[name] = float(number)
    return found


def _lease(_: click.Context, param: click.Parameter, value: str) -> float:
    """A length of time such as 60s, 5m or 1h."""
    seconds = seconds_in(value)
    if not 1 <= seconds <= LONGEST_S:
        raise click.BadParameter("a time from 1s to 24h, such as 90s or 5m", param=param)
    return seconds


@click.command("set")
@click.argument("values", nargs=-1, required=True, metavar="KNOB=VALUE...", callback=_values)
@_ENGINE
@click.option("--reason", required=True, help="Kept in the journal.")
@click.option(
    "--lease",
    callback=_lease,
    default="60s",
    show_default=True,
    metavar="TIME",
    help="For how long (60s, 5m, 1h); then the knobs go back.",
)
@SOCKET
@JSON
def set_knobs(
    values: dict[str, float],
    engines: tuple[str, ...],
    reason: str,
    lease: float,
    socket_path: Path | None,
    as_json: bool,
) -> None:
    """Set knobs of engines by hand, in any mode: on all of them, or on two thirds at least.

    All other knobs of theirs are as at the engine's start meanwhile, and the agent decides nothing
    about them. Exit code 1 if it was not done everywhere.
    """
    with asking(socket_path) as agent, waiting("waiting for the engines"):
        answer = agent.set_knobs(values, engines, lease, reason)
    if not as_json:
        answer = answer | {"values": values}

    def render(_: object, shown: Json) -> object:
        from agent.show_hand import changed

        return changed(shown)

    print_answer(answer, as_json, render)
    people = answer.get("engines", {}).values()
    everywhere = answer.get("state") == "applied" and all(
        each["standing"] == "committed" for each in people
    )
    sys.exit(0 if everywhere else WRONG)


@click.command()
@_ENGINE
@click.option("--reason", default="", help="Kept in the journal.")
@SOCKET
@JSON
def release(engines: tuple[str, ...], reason: str, socket_path: Path | None, as_json: bool) -> None:
    """Give back what was set by hand, before its time: on all engines, or those named."""
    with asking(socket_path) as agent, waiting("waiting for the engines"):
        answer = agent.release(engines, reason)

    def render(_: object, shown: Json) -> object:
        from agent.show_hand import given_back

        return given_back(shown)

    print_answer(answer, as_json, render)
