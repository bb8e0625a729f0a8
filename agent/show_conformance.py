"""What the conformance suite found, and what it checks, as text for people."""

from typing import Final

from rich.console import Group, RenderableType
from rich.text import Text

from agent.layout import cut, facts_of, heading, indent, table_of
from agent.words import Json

DOCUMENT: Final = "docs/engine-protocol.md"
_STYLES: Final = {"pass": "green", "fail": "bold red", "n/a": "dim"}


def shown_report(report: Json) -> RenderableType:
    """The verdicts in order, then each failure with what was sent, expected and got."""
    rows = table_of("RESULT", "CHECK", "WHAT")
    for each in report["checks"]:
        rows.add_row(
            Text(each["result"], _STYLES.get(each["result"], "")),
            Text(each["name"], no_wrap=True),
            cut(Text(_what(each))),
        )
    parts: list[RenderableType] = [
        heading(f"{report['engine']} {report['version']} at {report['socket']}"),
        indent(rows),
    ]
    for each in report["checks"]:
        if each["result"] == "fail":
            parts += [heading(f"{each['name']}: {each['title']}"), _failure(each)]
    parts.append(Text(_sum(report), "" if report["conforms"] else "bold red"))
    return Group(*parts)


def shown_list(checks: list[Json]) -> RenderableType:
    """Every check, what it proves and where that stands."""
    rows = table_of("CHECK", "SECTION", "PROVES")
    for each in checks:
        thorough = " (--thorough)" if each["thorough"] else ""
        rows.add_row(
            Text(each["name"] + thorough), Text(f"#{each['section']}"), Text(each["proves"])
        )
    return Group(Text(f"sentences of {DOCUMENT}"), rows)


def _what(verdict: Json) -> str:
    if verdict["result"] == "n/a" and verdict["reason"]:
        return str(verdict["reason"])
    return str(verdict["title"])


def _failure(verdict: Json) -> RenderableType:
    facts = [(name, verdict[name]) for name in ("sent", "expected", "got") if verdict[name]]
    where = f"{verdict['proves']} ({DOCUMENT}#{verdict['section']})"
    return facts_of([*facts, ("contract", where)])


def _sum(report: Json) -> str:
    checks = len(report["checks"])
    counts = f"{report['passed']} of {checks} checks passed, {report['failed']} failed"
    word = "keeps the contract" if report["conforms"] else "does not keep the contract"
    return f"{word}: {counts}, {report['not_applicable']} not applicable"
