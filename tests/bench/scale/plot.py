"""Plots as plain SVG: a row of panels, each with its lines over one logarithmic axis.

Colours follow the reader's scheme, light or dark. Every point is marked and the last one of a line
has its value beside it, so that a plot can be read without its table.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

Points = Sequence[tuple[float, float]]

WIDTH: Final = 300
HEIGHT: Final = 240
LEFT, RIGHT, TOP, BOTTOM = 48, 52, 44, 42
COLOURS: Final = ("a", "b", "c", "d")
STYLE: Final = """\
text{font:11px system-ui,sans-serif;fill:#444}.title{font-size:13px;fill:#111}
.grid{stroke:#ddd}.axis{stroke:#999}path,.key{fill:none;stroke-width:2}
.a{stroke:#1668b5}.b{stroke:#c2571a}.c{stroke:#2c8a4b}.d{stroke:#8a3ea8}
circle.a{fill:#1668b5}circle.b{fill:#c2571a}circle.c{fill:#2c8a4b}circle.d{fill:#8a3ea8}
@media(prefers-color-scheme:dark){text{fill:#bbb}.title{fill:#eee}.grid{stroke:#333}.axis{stroke:#777}
.a{stroke:#6db3f2}.b{stroke:#f2a36d}.c{stroke:#7fd39a}.d{stroke:#d39af0}
circle.a{fill:#6db3f2}circle.b{fill:#f2a36d}circle.c{fill:#7fd39a}circle.d{fill:#d39af0}}"""


@dataclass(frozen=True, slots=True)
class Panel:
    """One set of axes; `lines` by name, all over the same unit."""

    title: str
    x_label: str
    lines: Mapping[str, Points]


def svg(panels: Sequence[Panel]) -> str:
    """The drawing."""
    width = WIDTH * len(panels)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {HEIGHT}"'
        f' width="{width}" height="{HEIGHT}" role="img">',
        f"<style>{STYLE}</style>",
    ]
    for number, panel in enumerate(panels):
        parts += [f'<g transform="translate({number * WIDTH},0)">', *_panel(panel), "</g>"]
    return "\n".join([*parts, "</svg>"]) + "\n"


def _panel(panel: Panel) -> Iterator[str]:
    points = [point for line in panel.lines.values() for point in line]
    xs = sorted({x for x, _ in points})
    most = nice(max((y for _, y in points), default=1.0))
    yield f'<text class="title" x="{LEFT}" y="16">{escape(panel.title)}</text>'
    for step in range(5):
        value = most * step / 4
        y = _y(value, most)
        kind = "grid" if step else "axis"
        yield f'<line class="{kind}" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}"/>'
        yield f'<text x="{LEFT - 5}" y="{y + 4}" text-anchor="end">{short(value)}</text>'
    for x in xs:
        at = _x(x, xs)
        yield f'<text x="{at}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{short(x)}</text>'
    middle = (LEFT + WIDTH - RIGHT) // 2
    yield f'<text x="{middle}" y="{HEIGHT - 8}" text-anchor="middle">{escape(panel.x_label)}</text>'
    beside = LEFT
    for colour, (name, line) in zip(COLOURS, panel.lines.items(), strict=False):
        yield f'<line class="key {colour}" x1="{beside}" x2="{beside + 14}" y1="30" y2="30"/>'
        yield f'<text x="{beside + 18}" y="34">{escape(name)}</text>'
        beside += 30 + 6 * len(name)
        yield from _line(colour, line, xs, most)


def _line(colour: str, line: Points, xs: Sequence[float], most: float) -> Iterator[str]:
    at = [(_x(x, xs), _y(y, most)) for x, y in line]
    way = " L".join(f"{x},{y}" for x, y in at)
    yield f'<path class="{colour}" d="M{way}"/>'
    for x, y in at:
        yield f'<circle class="{colour}" cx="{x}" cy="{y}" r="3"/>'
    if at:
        (x, y), value = at[-1], line[-1][1]
        yield f'<text x="{x + 7}" y="{y + 4}">{short(value)}</text>'


def _x(value: float, xs: Sequence[float]) -> float:
    low, high = math.log(xs[0]), math.log(xs[-1])
    share = (math.log(value) - low) / (high - low) if high > low else 0.5
    return round(LEFT + share * (WIDTH - LEFT - RIGHT), 1)


def _y(value: float, most: float) -> float:
    return round(HEIGHT - BOTTOM - value / most * (HEIGHT - TOP - BOTTOM), 1)


def nice(value: float) -> float:
    """The next of 1, 2, 4 or 8 times a power of ten: the end of an axis."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 4, 8, 10) if value <= step * power * (1 + 1e-9))


def short(value: float) -> str:
    """A number in a few characters."""
    if value and value < 10 and value != round(value):
        return f"{value:.2g}"
    return f"{value:,.0f}"
