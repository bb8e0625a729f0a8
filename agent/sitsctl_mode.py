"""`sitsctl mode`, `pause`, `resume` and `inject`: what the agent does, and what it is told."""

from pathlib import Path

import click

from agent.cli import JSON, SOCKET, asking, print_json, readable, seconds_in
from controller.plain import plain

LONGEST_INJECTION_S = 600.0
"""As in `agent.api`, which is not imported for it."""


@click.command()
@click.argument("mode", required=False, type=click.Choice(["observe", "shadow", "control"]))
@click.option("--reason", default="", help="Kept in the journal.")
@SOCKET
@JSON
def mode(mode: str | None, reason: str, socket_path: Path | None, as_json: bool) -> None:
    """Change what the agent does, until it ends; without MODE, say what it does now.

    observe: measure. shadow: also decide, and write it down. control: also act.
    """
    with asking(socket_path) as agent, readable():
        answer = agent.set_mode(mode, reason) if mode else {"mode": agent.status()["mode"]}
        now = answer["mode"]
    if as_json:
        print_json(answer)
    else:
        click.echo(f"mode {'is now' if mode else 'is'} {plain(str(now))}")


@click.command()
@click.option("--reason", default="", help="Kept in the journal.")
@SOCKET
@JSON
def pause(reason: str, socket_path: Path | None, as_json: bool) -> None:
    """Stop acting and give everything back; go on measuring. The same as mode observe."""
    with asking(socket_path) as agent:
        answer = agent.set_mode("observe", reason or "paused by an operator")
    if as_json:
        print_json(answer)
    else:
        click.echo("paused: mode is now observe; `sitsctl resume` goes on")


@click.command()
@click.option("--reason", default="", help="Kept in the journal.")
@SOCKET
@JSON
def resume(reason: str, socket_path: Path | None, as_json: bool) -> None:
    """Go on in the mode of the policy in force."""
    with asking(socket_path) as agent, readable():
        wanted = str(agent.policy()["mode"])
        answer = agent.set_mode(wanted, reason or "resumed by an operator")
    if as_json:
        print_json(answer)
    else:
        click.echo(f"mode is now {plain(wanted)}, as the policy says")


@click.command()
@click.argument("what", type=click.Choice(["backpressure"]))
@click.argument("intensity", type=click.FloatRange(0, 1))
@click.option(
    "--for",
    "duration",
    default="5s",
    show_default=True,
    metavar="TIME",
    help="For how long (0.5s, 5s, 2m), at most 10m.",
)
@click.option("--reason", required=True, help="Kept in the journal.")
@SOCKET
@JSON
def inject(
    what: str,
    intensity: float,
    duration: str,
    reason: str,
    socket_path: Path | None,
    as_json: bool,
) -> None:
    """Tell the agent of backpressure that it can't see, INTENSITY 0 to 1: an upstream's, say.

    It counts like the agent's own until it is over: the loop ticks faster and may shed load. A
    later one takes an earlier one's place.
    """
    seconds = seconds_in(duration)
    if not 0 < seconds <= LONGEST_INJECTION_S:
        raise click.BadParameter("a time up to 10m, such as 0.5s, 5s or 2m", param_hint="--for")
    with asking(socket_path) as agent:
        answer = agent.inject(what, intensity, seconds, reason)
    if as_json:
        print_json(answer)
    else:
        click.echo(f"{what} {intensity:g} for {seconds:g} s")
