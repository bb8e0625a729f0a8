"""What was found, as one table and as two files.

build/bench.json holds a number, or null, for each key of `budgets` and nothing else;
build/bench-runs.json every run behind it, the spread, the peers, and why something is missing.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from rich.table import Table
from rich.text import Text

from .budgets import BUDGETS
from .figures import Figure, rounded

HEADINGS: Final = ("figure", "budget", "measured", "within", "peers")
WITHIN: Final = {True: "yes", False: "NO", None: ""}


def numbers(found: Mapping[str, Figure]) -> dict[str, float | None]:
    """Exactly the keys there are, in their order."""
    return {key: rounded(found[key].median) if key in found else None for key in BUDGETS}


def runs(found: Mapping[str, Figure]) -> dict[str, Any]:
    """All there is to know of each figure."""
    return {key: found[key].as_json() for key in BUDGETS if key in found}


def parse_runs(told: Mapping[str, Any]) -> dict[str, Figure]:
    """The figures of a file that `runs` made; keys that are no more are left out."""
    return {key: _figure(each) for key, each in told.items() if key in BUDGETS}


def write(found: Mapping[str, Figure], numbers_file: Path, runs_file: Path) -> None:
    """Both files."""
    for path, content in ((numbers_file, numbers(found)), (runs_file, runs(found))):
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")


def rows(found: Mapping[str, Figure]) -> Iterator[tuple[str, str, str, str, list[str]]]:
    """For each key: itself, budget, what was measured with its spread, whether it holds, peers."""
    for key, budget in BUDGETS.items():
        figure = found.get(key, Figure(note="not run"))
        measured = f"{text(figure)} {budget.unit}".strip() if figure.values else figure.note
        peers = [f"{name}: {text(peer)}" for name, peer in figure.peers.items()]
        yield key, allowed(found, key), measured, WITHIN[budget.holds(found, key)], peers


def table(found: Mapping[str, Figure]) -> Table:
    """All of it, for a terminal."""
    made = Table(title="what sits costs: medians, least and largest run in brackets")
    for heading in HEADINGS:
        made.add_column(heading)
    for *cells, peers in rows(found):
        made.add_row(*map(Text, (*cells, "\n".join(peers))))
    return made


def markdown(found: Mapping[str, Figure]) -> str:
    """The same for a document."""
    lines: list[Sequence[str]] = [HEADINGS, ["---"] * len(HEADINGS)]
    lines += [(f"`{key}`", *cells, "; ".join(peers)) for key, *cells, peers in rows(found)]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def notes(found: Mapping[str, Figure]) -> list[str]:
    """What is to be said of figures that were measured, a line each."""
    return [
        f"{key}: {found[key].note}"
        for key in BUDGETS
        if key in found and found[key].values and found[key].note
    ]


def allowed(found: Mapping[str, Figure], key: str) -> str:
    """A budget in words, empty without one."""
    budget = BUDGETS[key]
    most, least = budget.limits(found)
    if least is not None:
        return f"≥ {least:,.4g}" if least < 1000 else f"≥ {least:,.0f}"
    return "" if most is None else f"≤ {most:.3g}"


def text(figure: Figure) -> str:
    """Median and spread, or why there is none."""
    if not figure.values:
        return figure.note
    if len(figure.values) == 1:
        return _short(figure.median)
    return f"{_short(figure.median)} ({_short(figure.low)}…{_short(figure.high)})"


def _short(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _figure(told: Mapping[str, Any]) -> Figure:
    peers = {name: _figure(peer) for name, peer in told["peers"].items()}
    return Figure(tuple(told["runs"]), told["note"], peers)
