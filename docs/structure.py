"""Draws docs/images/structure.svg: which package imports which, as the code has it.

`python docs/structure.py` writes it anew; a test holds it to the code. An arrow goes from what
imports to what is imported; where another way leads there, the direct arrow is left out.
"""

import ast
from collections import Counter
from collections.abc import Iterator, Mapping
from html import escape
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
DRAWING: Final = ROOT / "docs" / "images" / "structure.svg"

SAID: Final = {
    "agent": "sitsd and sitsctl",
    "controller": "the fast loop and its laws",
    "controller.adapters": "engines with another interface",
    "controller.conformance": "checks of the engine contract",
    "controller.engines": "links to engines, the contract",
    "controller.limits": "cgroups, undo, guard",
    "controller.plugins": "inside vLLM; relegation",
    "controller.predict": "what load comes next",
    "controller.reference": "an engine to try it with",
    "controller.serving": "the engine's half",
    "controller.simulate": "the same decisions, no engine",
    "bpf": "programs, maps, readers",
}
"""Every package drawn, and what it is. Smaller ones belong to the package above them."""

_WIDTH, _HEIGHT, _GAP, _ROW, _EDGE = 218, 48, 30, 104, 20

Graph = Mapping[str, set[str]]


def imports(root: Path = ROOT) -> Graph:
    """What each package imports of the others; of two that import each other, who does it more."""
    seen: Counter[tuple[str, str]] = Counter()
    for path in sorted(root.glob("*/**/*.py")):
        module = ".".join(path.relative_to(root).with_suffix("").parts)
        if module.partition(".")[0] in SAID:
            own = _package(module)
            seen.update((own, _package(name)) for name in _imported(path))
    graph: dict[str, set[str]] = {name: set() for name in SAID}
    for (one, other), count in seen.items():
        if one != other and count > seen[other, one]:
            graph[one].add(other)
    return graph


def reduced(graph: Graph) -> Graph:
    """Without arrows that another way makes needless."""
    return {
        one: {
            other
            for other in others
            if not any(other in reachable(graph, each) for each in others - {other})
        }
        for one, others in graph.items()
    }


def reachable(graph: Graph, start: str) -> set[str]:
    """All that can be come to from `start`."""
    found: set[str] = set()
    todo = [start]
    while todo:
        for each in graph[todo.pop()] - found:
            found.add(each)
            todo.append(each)
    return found


def places(graph: Graph) -> dict[str, tuple[float, float]]:
    """Where each package's box begins: below those that import it, near those that it imports."""
    depth = {name: _depth(graph, name) for name in graph}
    last = max(depth.values())
    found: dict[str, float] = {}
    for level in range(last + 1):
        row = [name for name in graph if depth[name] == level]
        near = {name: _mean([found[each] for each in graph[name]]) for name in row}
        row.sort(key=lambda name: (near[name], name))
        at = [near[row[0]]]
        for name in row[1:]:
            at.append(max(near[name], at[-1] + _WIDTH + _GAP))
        # what was pushed to the right goes back by as much on the whole
        too_far = _mean([x - near[name] for x, name in zip(at, row, strict=True)])
        found |= {name: x - too_far for x, name in zip(at, row, strict=True)}
    left = min(found.values()) - _EDGE
    return {name: (x - left, _EDGE + (last - depth[name]) * _ROW) for name, x in found.items()}


def drawing(graph: Graph) -> str:
    """The SVG, light or dark as its reader's system is."""
    shown = reduced(graph)
    at = places(shown)
    width = max(x for x, _ in at.values()) + _WIDTH + _EDGE
    height = max(y for _, y in at.values()) + _HEIGHT + _EDGE
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" role="img"'
        ' font-family="system-ui, DejaVu Sans, sans-serif">',
        "<title>Which package of sits imports which</title>",
        "<style>",
        "rect { fill: #fff; stroke: #536072 } text { fill: #17212d } .said { fill: #536072 }",
        "path { fill: none; stroke: #1c5ea8; stroke-width: 1.5 } marker path { fill: #1c5ea8 }",
        "@media (prefers-color-scheme: dark) {",
        "rect { fill: #151b23; stroke: #9ba8b8 } text { fill: #e3e9f0 } .said { fill: #9ba8b8 }",
        "path { stroke: #85bcff } marker path { fill: #85bcff } }",
        "</style>",
        '<defs><marker id="to" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7"'
        ' markerHeight="7" orient="auto"><path d="M0 0L8 4L0 8z" stroke="none"/></marker></defs>',
    ]
    for one in sorted(shown):
        for place, other in enumerate(sorted(shown[one], key=lambda name: at[name])):
            lines.append(_arrow(at[one], at[other], (place + 1) / (len(shown[one]) + 1)))
    for name, (x, y) in sorted(at.items()):
        middle = x + _WIDTH / 2
        lines += [
            f'<rect x="{x:g}" y="{y:g}" width="{_WIDTH}" height="{_HEIGHT}" rx="6"/>',
            f'<text x="{middle:g}" y="{y + 20:g}" text-anchor="middle" font-size="14"'
            f' font-weight="600">{escape(name)}</text>',
            f'<text class="said" x="{middle:g}" y="{y + 37:g}" text-anchor="middle"'
            f' font-size="12">{escape(SAID[name])}</text>',
        ]
    return "\n".join([*lines, "</svg>\n"])


def _arrow(one: tuple[float, float], other: tuple[float, float], share: float) -> str:
    x, y = one[0] + _WIDTH * share, one[1] + _HEIGHT
    to_x, to_y = other[0] + _WIDTH / 2, other[1] - 1
    bend = (to_y - y) / 2
    curve = f"M{x:g} {y:g}C{x:g} {y + bend:g} {to_x:g} {to_y - bend:g} {to_x:g} {to_y:g}"
    return f'<path d="{curve}" marker-end="url(#to)"/>'


def _depth(graph: Graph, name: str) -> int:
    return 1 + max((_depth(graph, each) for each in graph[name]), default=-1)


def _mean(places: list[float]) -> float:
    return sum(places) / len(places) if places else 0.0


def _package(module: str) -> str:
    """The package drawn that a module belongs to."""
    while module not in SAID:
        module = module.rpartition(".")[0]
    return module


def _imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        names = [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
        if isinstance(node, ast.Import):
            names = [each.name for each in node.names]
        yield from (name for name in names if name.partition(".")[0] in SAID)


if __name__ == "__main__":
    DRAWING.write_text(drawing(imports()), "utf-8")
