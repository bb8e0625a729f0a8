"""How text for people is laid out: without lines, aligned, cut where there is no room."""

from collections.abc import Iterable
from typing import Final

from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

_FIGURES: Final = frozenset(
    {"GOOD", "RUN", "WAIT", "CHUNKS", "OF A CORE", "MISSED", "STREAMS", "BAD", "ERRORS"}
)
"""Columns of figures that have no unit."""


def table_of(*names: str) -> Table:
    """A table without lines, figures to the right; where it is too wide, text gives way first."""
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    for name in names:
        figures = name.endswith((" ms", " ns", "/s")) or name in _FIGURES
        table.add_column(
            name,
            justify="right" if figures else "left",
            min_width=len(name),
            no_wrap=figures or name in ("TIME", "ENDED", "RESULT"),
        )
    return table


def cut(text: Text) -> Text:
    """`text` on one line, its end cut where there is no room."""
    text.no_wrap, text.overflow = True, "ellipsis"
    return text


def facts_of(facts: Iterable[tuple[str, RenderableType]]) -> RenderableType:
    """Names and facts in two columns."""
    rows = Table.grid(padding=(0, 2))
    for name, fact in facts:
        rows.add_row(Text(name, "dim"), Text(fact) if isinstance(fact, str) else fact)
    return indent(rows)


def heading(text: str) -> Text:
    """The title of a part."""
    return Text(text, "bold")


def bullets(items: Iterable[str]) -> RenderableType:
    """Lines that call for attention."""
    rows = Table.grid(padding=(0, 1))
    for item in items:
        rows.add_row(Text("!", "bold red"), Text(item))
    return indent(rows)


def indent(part: RenderableType) -> RenderableType:
    """A part that belongs to the line above it."""
    return Padding(part, (0, 0, 0, 2), expand=False)


def also(detail: str) -> str:
    """What is added after a colon, if anything."""
    return f": {detail}" if detail else ""


def row_of(cells: Iterable[Text], widths: Iterable[int]) -> Text:
    """Cells cut or padded to their widths; a negative width puts its cell to the right."""
    fitted = []
    for cell, width in zip(cells, widths, strict=True):
        text = cell.copy()
        text.truncate(abs(width), overflow="ellipsis")
        text.align("right" if width < 0 else "left", abs(width))
        fitted.append(text)
    row = Text(" ").join(fitted)
    row.rstrip()
    return row


def ends(left: Text, right: Text, width: int) -> Text:
    """Both on one line, at its two ends; the left one is cut if need be."""
    left.truncate(max(0, width - right.cell_len - 1), overflow="ellipsis", pad=True)
    return Text.assemble(left, " ", right)
