"""`sitsctl trace`: the streams of one trace, and what each was due to."""

import re
import sys
from pathlib import Path

import click

from agent.cli import JSON, SOCKET, WRONG, Json, asking, print_answer, readable

MAX_STREAMS = 10_000
"""As in `agent.api`, which is not imported for it: all that the agent keeps."""


def _trace_id(_: click.Context, param: click.Parameter, value: str) -> str:
    """A trace's id, or a whole `traceparent`."""
    found = re.fullmatch(r"(?:[0-9a-f]{2}-)?([0-9a-f]{32})(?:-.*)?", value.lower())
    if found is None:
        raise click.BadParameter("32 hexadecimal digits, or a traceparent", param=param)
    return found[1]


@click.command()
@click.argument("trace_id", metavar="ID", callback=_trace_id)
@SOCKET
@JSON
def trace(trace_id: str, socket_path: Path | None, as_json: bool) -> None:
    """The streams that were requested in trace ID, and what each was due to.

    Of the last 10,000 that ended. Exit code 1 if there is none.
    """
    with asking(socket_path) as agent, readable():
        answer = agent.streams(limit=MAX_STREAMS)
        found = [each for each in answer["streams"] if each["trace_id"] == trace_id]
    shown: Json = {"trace_id": trace_id, "streams": found}

    def render(_: object, answer: Json) -> object:
        from agent.show_trace import trace

        return trace(answer)

    print_answer(shown, as_json, render)
    sys.exit(0 if found else WRONG)
