"""The streams of a trace, as text for people."""

from rich.console import Group, RenderableType
from rich.text import Text

from agent import show
from agent.layout import facts_of
from agent.words import Json, figure


def trace(answer: Json) -> RenderableType:
    """`sitsctl trace`: the streams, and below each that was slow what speaks for its cause."""
    if not answer["streams"]:
        return Text(f"no stream of trace {answer['trace_id']} ended lately")
    facts = [
        (
            str(stream["cause"]),
            ", ".join(f"{name} {figure(value)}" for name, value in stream["evidence"].items()),
        )
        for stream in answer["streams"]
        if stream["evidence"]
    ]
    return Group(show.streams(answer), *([facts_of(facts)] if facts else []))
