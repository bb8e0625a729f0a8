"""What became of a change by hand, as text for people."""

from typing import Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from agent.layout import heading, indent
from agent.words import Json, duration, value

_STANDINGS: Final = {
    "committed": "set",
    "aborted": "not set",
    "lost": "not known; what it set goes back by itself",
    "refused": "refused",
    "silent": "did not answer",
}


def changed(answer: Json) -> RenderableType:
    """`sitsctl set`."""
    wanted = ", ".join(f"{name} {value(number)}" for name, number in answer["values"].items())
    if answer["state"] == "under way":
        return Text(f"{wanted}: not decided yet; `sitsctl engines` shows what comes of it")
    if answer["state"] == "applied":
        head = heading(f"{wanted}: set by hand, for {duration(round(answer['left_s']))}")
    else:
        head = heading(f"{wanted}: nothing was changed: {answer['why']}")
    rows = Table.grid(padding=(0, 2))
    for name, each in answer["engines"].items():
        word = _STANDINGS.get(each["standing"], each["standing"])
        left = answer["state"] == "applied" and each["standing"] not in {"committed", "lost"}
        said = f"{word}: {each['detail']}" if each["detail"] else word
        rows.add_row(Text(name), Text(f"left behind: {said}" if left else said))
    return Group(head, indent(rows))


def given_back(answer: Json) -> RenderableType:
    """`sitsctl release`."""
    names = ", ".join(answer["engines"])
    return Text(f"{names}: at the start values again" if names else "nothing was set by hand")
