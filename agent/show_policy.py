"""What changed in the policy, as text for people."""

from collections.abc import Sequence
from typing import Final

from rich.console import Group, RenderableType
from rich.text import Text

from agent.layout import facts_of, heading, indent, table_of
from agent.words import Json, duration, figure, percent
from controller.policy_rules import shown

_STATES: Final = {"adopted": "adopted", "rolled_back": "rolled back", "aborted": "aborted"}


def changed(answer: Json) -> RenderableType:
    """`sitsctl policy diff`, `sitsctl policy apply` and `sitsctl reload`."""
    changes, source = answer["changes"], answer["source"]
    lines = [indent(Text(_change(each))) for each in changes]
    if "in_file" not in answer:
        return Group(heading(f"{source}: {_count(changes, 'would change')}"), *lines)
    canary = answer.get("canary")
    if canary is not None:
        head = heading(f"{source} is on trial: {_count(changes, 'would change')}")
        return Group(head, *lines, *map(Text, _trial(answer, canary)))
    head = heading(f"{source} is in force: {_count(changes, 'changed')}")
    return Group(head, *lines, *map(Text, _where(answer)))


def status(answer: Json) -> RenderableType:
    """`sitsctl policy status`."""
    lasts = "" if answer["in_file"] else ", until sitsd ends"
    parts: list[RenderableType] = [Text(f"{answer['source']} is in force{lasts}")]
    canary = answer["canary"]
    if canary is None:
        return Group(*parts, Text("no policy is on trial"))
    parts.append(heading(trial_text(canary)))
    facts = [("why", canary["reason"])] if canary["reason"] else []
    if canary["turn"]:
        facts = [("turn", f"the {canary['turn']} policy's"), ("so far", canary["reason"])]
    parts += [facts_of(facts), *(indent(Text(_change(each))) for each in canary["changes"])]
    for name, figures in canary["figures"].items():
        parts += [heading(f"{name}, {figures['pairs']} pairs of slices"), indent(_arms(figures))]
    return Group(*parts)


def trial_text(canary: Json) -> str:
    """How a trial stands, on one line."""
    elapsed = duration(canary["elapsed_s"])
    if canary["state"] == "running":
        how = f"on trial for {elapsed} of {duration(canary['planned_s'])}"
    else:
        how = f"{_STATES.get(canary['state'], canary['state'])} after {elapsed}"
    return f"{canary['source']}: {how}"


def _arms(figures: Json) -> RenderableType:
    rows = table_of("POLICY", "STREAMS", "BAD", "ERRORS", "TTFT p95 ms", "GAP p95 ms")
    for name in ("old", "new"):
        arm = figures[name]
        rows.add_row(
            name,
            figure(arm["streams"]),
            percent(arm["bad_share"]),
            percent(arm["error_share"]),
            figure(arm["ttft_p95_ms"]),
            figure(arm["gap_p95_ms"]),
        )
    return rows


def _trial(answer: Json, canary: Json) -> list[str]:
    """On whom, for how long, and what becomes of it."""
    engines = ", ".join(canary["engines"])
    planned, longest = duration(canary["planned_s"]), duration(canary["longest_s"])
    return [
        f"on {engines}, in turns with the old one, for {planned}; with too little traffic for"
        f" up to {longest}",
        f"if it does no harm {answer['file']} will say it; `sitsctl policy status` tells how it"
        " goes",
    ]


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
