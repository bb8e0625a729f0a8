"""What changed in the policy, as text for people."""

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from agent.layout import heading, indent
from agent.words import Json
from controller.policy_rules import shown


def changed(answer: Json) -> RenderableType:
    """`sitsctl policy diff`, `sitsctl policy apply` and `sitsctl reload`."""
    changes, source = answer["changes"], answer["source"]
    lines = [indent(Text(_change(each))) for each in changes]
    if "in_file" not in answer:
        return Group(heading(f"{source}: {_count(changes, 'would change')}"), *lines)
    head = heading(f"{source} is in force: {_count(changes, 'changed')}")
    return Group(head, *lines, *map(Text, _where(answer)))


def _count(changes: Sequence[Json], verb: str) -> str:
    count = len(changes)
    return f"{count or 'no'} key{'' if count == 1 else 's'} {verb}"


def _change(change: Json) -> str:
    old, new = (
        "none" if value is None else shown(value) for value in (change["from"], change["to"])
    )
    return f"{change['key']} {old} → {new}{'' if change['live'] else ', needs a restart'}"


def _where(answer: Json) -> list[str]:
    """Whether it stays, and where what was there before is now."""
    file = answer["file"]
    if not answer["in_file"]:
        return [f"until sitsd ends; {file} says what it said"]
    if answer["previous"] is None:
        return [] if file == answer["source"] else [f"{file} says the same"]
    return [f"{file} says it now, and {answer['previous']} what it said before"]
