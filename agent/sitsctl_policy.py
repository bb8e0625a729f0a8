"""`sitsctl policy`: look at policies, and change the one in force."""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click

from agent.cli import (
    JSON,
    SOCKET,
    WRONG,
    Json,
    asking,
    fail,
    print_answer,
    print_json,
    readable,
    seconds_in,
)
from controller.plain import plain

# The policy's own modules are imported where they are needed: most commands do without.

SHORTEST_S: Final = 36.0
LONGEST_S: Final = 3600.0
"""Of a canary; as in `agent.api`, which is not imported for it."""

_FILE: Final = click.argument("file", type=click.Path(path_type=Path))


@click.group()
def policy() -> None:
    """Look at policies, and change the one in force."""


@policy.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print what was found as JSON.")
def check(file: Path, as_json: bool) -> None:
    """Check the policy in FILE; needs no agent. Exit code 1 if it does not hold."""
    from controller.policy import PolicyError, load_policy

    try:
        loaded = load_policy(file)
    except PolicyError as error:
        if not as_json:
            fail(str(error), WRONG)
        print_json({"ok": False, "problems": str(error).split("\n")})
        sys.exit(WRONG)
    if as_json:
        print_json({"ok": True, "problems": []})
        return
    counts = (
        f"{len(items)} {name}{'' if len(items) == 1 else 's'}"
        for name, items in (("engine", loaded.engines), ("neighbour", loaded.neighbours))
    )
    click.echo(plain(f"{file}: holds: mode {loaded.mode}, {', '.join(counts)}"))


@policy.command("show")
@SOCKET
@JSON
def show_policy(socket_path: Path | None, as_json: bool) -> None:
    """The policy in force, every default written out, in TOML."""
    with asking(socket_path) as agent:
        answer = agent.policy()
    if as_json:
        print_json(answer)
        return
    with readable():
        fields = dict(answer)
        lines = [f"# {fields.pop('source')}", *_toml(fields)]
    for line in lines:
        click.echo(plain(line))


@policy.command()
@_FILE
@SOCKET
@JSON
def diff(file: Path, socket_path: Path | None, as_json: bool) -> None:
    """What the policy in FILE would change, key by key; changes nothing.

    Exit code 1 if the policy does not hold.
    """
    text = _read(file)
    with asking(socket_path) as agent:
        answer = agent.policy_diff(text, str(file))
    print_policy_answer(answer, as_json)


def _seconds(_: click.Context, param: click.Parameter, value: str | None) -> float | None:
    """A length of time such as 180s, 3m or 1h."""
    if value is None:
        return None
    seconds = seconds_in(value)
    if not SHORTEST_S <= seconds <= LONGEST_S:
        raise click.BadParameter(
            f"a time from {SHORTEST_S:g}s to {LONGEST_S / 3600:g}h, such as 180s or 3m", param=param
        )
    return seconds


@policy.command()
@_FILE
@click.option("--temporary", is_flag=True, help="Until sitsd ends: its policy file is not written.")
@click.option(
    "--canary",
    callback=_seconds,
    metavar="TIME",
    help="Try it beside the old one for so long (180s, 3m) first; what does harm is rolled back.",
)
@click.option("--engine", help="With --canary: the engine to try it on.")
@SOCKET
@JSON
def apply(
    file: Path,
    temporary: bool,
    canary: float | None,
    engine: str | None,
    socket_path: Path | None,
    as_json: bool,
) -> None:
    """Put the policy in FILE in force: whole, or not at all.

    It becomes the content of the file that sitsd was started with; what that said before is kept
    beside it, as `.previous`. Exit code 1 if the policy does not hold, 2 if it needs a restart.

    With --canary it is tried first, in turns with the old one, and this command does not wait:
    `sitsctl policy status` tells how it goes.
    """
    if canary is None and engine is not None:
        raise click.UsageError("--engine goes with --canary")
    if canary is not None and temporary:
        raise click.UsageError("--temporary does not go with --canary")
    text = _read(file)
    with asking(socket_path) as agent:
        if canary is None:
            answer = agent.policy_apply(text, str(file), temporary)
        else:
            answer = agent.policy_try(text, str(file), canary, engine)
    print_policy_answer(answer, as_json)


@policy.command("status")
@SOCKET
@JSON
def policy_status(socket_path: Path | None, as_json: bool) -> None:
    """Which policy is in force, and how the canary goes, or how the last one went."""
    with asking(socket_path) as agent:
        answer = agent.policy_status()
    _print_status(answer, as_json)


@policy.command()
@click.option("--reason", default="", help="Kept in the journal.")
@SOCKET
@JSON
def abort(reason: str, socket_path: Path | None, as_json: bool) -> None:
    """End the canary under way: the old policy stays. Exit code 2 if there is none."""
    with asking(socket_path) as agent:
        answer = agent.policy_abort(reason)
    _print_status(answer, as_json)


def _print_status(answer: Json, as_json: bool) -> None:
    def render(_: object, shown: Json) -> object:
        from agent.show_policy import status

        return status(shown)

    print_answer(answer, as_json, render)


def print_policy_answer(answer: Json, as_json: bool) -> None:
    """Print what a policy changed, or would change."""

    def render(_: object, shown: Json) -> object:
        from agent.show_policy import changed

        return changed(shown)

    print_answer(answer, as_json, render)


def _read(file: Path) -> str:
    from controller.policy import PolicyError, policy_text

    try:
        return policy_text(file)
    except PolicyError as error:
        fail(str(error), WRONG)


def _toml(fields: Json, prefix: str = "") -> Iterator[str]:
    """A nested dict as lines of dotted TOML keys."""
    for name, value in fields.items():
        key = name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else json.dumps(name)
        if isinstance(value, dict):
            yield from _toml(value, f"{prefix}{key}.")
        elif value is not None:
            yield f"{prefix}{key} = {json.dumps(value)}"
