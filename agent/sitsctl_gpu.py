"""`sitsctl gpu`."""

import sys
from pathlib import Path
from typing import Final

import click

from agent.cli import (
    JSON,
    SOCKET,
    WRONG,
    asking,
    plain_console,
    print_for_people,
    print_json,
    readable,
)

WELL: Final = ("ok", "none", "off")


@click.command()
@SOCKET
@JSON
def gpu(socket_path: Path | None, as_json: bool) -> None:
    """The GPUs: use, memory, who is on them, heat maps. Exit code 1 if one is not seen."""
    with asking(socket_path) as agent:
        answer = agent.gpu()
    if as_json:
        print_json(answer)
    else:
        from agent import show_gpu
        from agent.words import printable

        with readable():
            print_for_people(plain_console(), show_gpu.gpu(printable(answer)))
    lost = any(each.get("lost") for each in answer.get("devices", ()))
    sys.exit(WRONG if lost or answer.get("state") not in WELL else 0)
