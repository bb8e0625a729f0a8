"""`sitsctl neighbours`."""

from pathlib import Path

import click

from agent.cli import (
    JSON,
    SOCKET,
    asking,
    plain_console,
    print_for_people,
    print_json,
    readable,
)


@click.command()
@SOCKET
@JSON
def neighbours(socket_path: Path | None, as_json: bool) -> None:
    """Who shares the machine: class, limits, what each got and lost, and who is not named."""
    with asking(socket_path) as agent:
        answer = agent.neighbours()
    if as_json:
        print_json(answer)
        return
    from agent import show_neighbours
    from agent.words import printable

    with readable():
        print_for_people(plain_console(), show_neighbours.neighbours(printable(answer)))
