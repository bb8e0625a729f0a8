"""`sitsctl conformance`: whether an engine, or an adapter to one, keeps the engine contract."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import click

from agent.cli import (
    SOCKET,
    USAGE,
    WRONG,
    Json,
    asking,
    fail,
    plain_console,
    print_for_people,
    print_json,
    readable,
)
from agent.progress import Progress


@click.command()
@click.argument("target", required=False)
@click.option("--thorough", is_flag=True, help="Also what disturbs an engine that serves.")
@click.option("--only", multiple=True, metavar="CHECK", help="Only this check; may be repeated.")
@click.option(
    "--restart-command",
    metavar="COMMAND",
    help="Shell command that restarts the engine: that check is left out without.",
)
@click.option(
    "--patience",
    type=click.FloatRange(0.1, 100),
    default=1.0,
    show_default=True,
    help="Wait so many times as long as usual.",
)
@click.option("--list", "listing", is_flag=True, help="What is checked, and what it proves.")
@SOCKET
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def conformance(
    target: str | None,
    thorough: bool,
    only: tuple[str, ...],
    restart_command: str | None,
    patience: float,
    listing: bool,
    socket_path: Path | None,
    as_json: bool,
) -> None:
    """Check that the engine at TARGET keeps the engine contract of docs/engine-protocol.md.

    TARGET is the path of an engine's admin socket, or an engine of the agent's policy. Values are
    changed by one, under leases of seconds that are given back; an engine whose lease another holds
    is left alone. Exit code 1 if a check fails, 2 if the engine can't be checked now.
    """
    from controller.conformance.suite import CHECKS, CannotCheckError, run

    if strange := [name for name in only if name not in {check.name for check in CHECKS}]:
        raise click.BadParameter(f"no check is named {strange[0]!r}", param_hint="--only")
    if listing:
        _print_list([check.as_dict() for check in CHECKS], as_json)
        return
    if target is None:
        raise click.UsageError("needs a TARGET, or --list")
    path = Path(target) if "/" in target else _socket_of(target, socket_path)
    restart = None if restart_command is None else _restarter(restart_command)
    try:
        with Progress("checking", len(only) or len(CHECKS)) as progress:
            report = run(
                path,
                only=only,
                thorough=thorough,
                patience=patience,
                restart=restart,
                told=progress,
            )
    except CannotCheckError as error:
        fail(str(error), USAGE)
    if as_json:
        print_json(report.as_dict())
    else:
        from agent.show_conformance import shown_report
        from agent.words import printable

        print_for_people(plain_console(), shown_report(printable(report.as_dict())))
    sys.exit(0 if report.conforms else WRONG)


def _socket_of(engine: str, socket_path: Path | None) -> Path:
    """The admin socket of an engine in the agent's policy."""
    from controller.policy_model import adapter_socket, adapters_dir

    with asking(socket_path) as agent:
        answer = agent.policy()
    with readable():
        engines = dict(answer["engines"])
        if engine not in engines:
            names = ", ".join(sorted(engines)) or "none"
            fail(f"no engine {engine!r} in the agent's policy; there is {names}", USAGE)
        found = engines[engine].get("admin_socket")
        if "kind" in engines[engine].get("adapter", {}):
            run_dir = Path(answer["agent"]["run_dir"])
            return adapter_socket(adapters_dir(run_dir), engine)
    if not isinstance(found, str):
        fail(f"engine {engine!r} has neither admin_socket nor adapter in the policy", USAGE)
    return Path(found)


def _restarter(command: str) -> Callable[[], None]:
    def restart() -> None:
        done = subprocess.run(command, shell=True, stdout=subprocess.DEVNULL, check=False)
        if done.returncode != 0:
            fail(f"the restart command ended with {done.returncode}: {command}", USAGE)

    return restart


def _print_list(checks: list[Json], as_json: bool) -> None:
    if as_json:
        print_json({"checks": checks})
        return
    from agent.show_conformance import shown_list

    print_for_people(plain_console(), shown_list(checks))
