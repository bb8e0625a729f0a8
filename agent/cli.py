"""How a command of sitsctl finds the agent, asks it, prints its answer and ends.

rich is imported only where something is printed for people: a script that asks for JSON once a
second should not pay for pictures.
"""

import io
import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

import click

from agent.client import AgentClient, ClientError, RefusedError, UnreachableError
from controller.plain import plain

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

POLICY_PATH: Final = Path("/etc/sits/policy.toml")
DEFAULT_SOCKET: Final = Path("/run/sits/admin.sock")
DEFAULT_PIN_DIR: Final = Path("/sys/fs/bpf/sits")

WRONG: Final = 1
USAGE: Final = 2
UNREACHABLE: Final = 3

NOT_ALLOWED: Final = 403
DOES_NOT_HOLD: Final = 422
"""HTTP's statuses where one may not operate, and where a policy that was sent does not hold."""

SOCKET: Final = click.option(
    "--socket",
    "socket_path",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="The agent's admin socket. [default: $SITS_SOCKET, else that of"
    f" {POLICY_PATH}, else {DEFAULT_SOCKET}]",
)
JSON: Final = click.option(
    "--json", "as_json", is_flag=True, help="Print the agent's answer as JSON, unchanged."
)

Json = dict[str, Any]

_UNITS_S: Final = {"s": 1, "m": 60, "h": 3600}


def seconds_in(text: str) -> float:
    """A length of time such as 90s, 3m or 1h; 0 where it is none."""
    found = re.fullmatch(r"(\d{1,6}(?:\.\d{1,3})?)([smh])", text)
    return float(found[1]) * _UNITS_S[found[2]] if found else 0.0


def fail(message: str, exit_code: int) -> NoReturn:
    """End the command with a message on stderr."""
    for line in message.split("\n"):
        click.echo(f"sitsctl: {plain(line)}", err=True)
    sys.exit(exit_code)


def agent_setting(name: str, default: Path, policy_path: Path = POLICY_PATH) -> Path:
    """A path of the policy file's `[agent]` table, even of a policy that does not hold.

    `default` where the file can't be read or does not say.
    """
    try:
        text = policy_path.read_text("utf-8-sig")
    except (OSError, ValueError):
        return default
    import tomllib

    try:
        found = tomllib.loads(text).get("agent", {}).get(name)
    except (ValueError, AttributeError, RecursionError):
        return default
    return Path(found) if isinstance(found, str) else default


def agent_client(socket_path: Path | None) -> AgentClient:
    """The client of the agent at `socket_path`, else where the environment or the policy says."""
    given = socket_path or click.get_current_context().find_root().params["socket_path"]
    if given is None and (named := os.environ.get("SITS_SOCKET")):
        given = Path(named)
    return AgentClient(given or agent_setting("admin_socket", DEFAULT_SOCKET))


@contextmanager
def asking(socket_path: Path | None) -> Iterator[AgentClient]:
    """The agent's client; what goes wrong with it ends the command as it should."""
    try:
        yield agent_client(socket_path)
    except UnreachableError as error:
        fail(str(error), UNREACHABLE)
    except RefusedError as error:
        possible = error.status >= 500 or error.status in {NOT_ALLOWED, DOES_NOT_HOLD}
        fail(str(error), WRONG if possible else USAGE)
    except ClientError as error:
        fail(str(error), WRONG)


@contextmanager
def readable() -> Iterator[None]:
    """What makes no sense in an answer ends the command with a message, not a traceback."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        why = f"no {error}" if isinstance(error, KeyError) else str(error)
        fail(
            f"could not read the agent's answer: {why}; are sitsd and sitsctl of one version?",
            WRONG,
        )


def print_answer(answer: Json, as_json: bool, render: Callable[[Any, Any], Any]) -> None:
    """Print an answer as it is, or as `render` makes it of module `show` and the printable one."""
    if as_json:
        print_json(answer)
        return
    from agent import show
    from agent.words import printable

    with readable():
        print_for_people(plain_console(), render(show, printable(answer)))


def print_for_people(console: "Console", what: "RenderableType") -> None:
    """Print `what`, without the spaces that pad tables: in a pipe they are of no use."""
    with console.capture() as captured:
        console.print(what)
    lines = captured.get().split("\n")
    click.echo("\n".join(line.rstrip() for line in lines), nl=False, color=True)


def print_json(answer: Json) -> None:
    """Print `answer` on one line."""
    click.echo(json.dumps(answer, separators=(",", ":")))


def plain_console() -> "Console":
    """A rich console that takes text as it is: no markup, no emoji, no highlights."""
    from rich.console import Console

    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # an arrow is no reason to fail in a C locale
    return Console(highlight=False, markup=False, emoji=False)
