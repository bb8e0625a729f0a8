"""What the bench of scale found, for a person, for the file and as plots."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from tests.bench.ground import Part
from tests.bench.scale.plot import Panel, svg

Parts = Mapping[str, Sequence[Part]]
"""Points of each part, the smallest first."""

KEYS: Final = {
    "scale.streams": ("streams", "streams"),
    "scale.cgroups": ("cgroups", "cgroups"),
    "scale.cpus_simulated": ("cpus", "cpus"),
    "scale.connections_per_s": ("churn", "reached_per_s"),
}
"""Each key's part, and the figure of it that says how far it went."""


def keys(found: Parts) -> dict[str, float | None]:
    """The most of each at which nothing was lost and every figure was right; None for none."""
    return {
        key: max((point[figure] for point in found.get(part, ()) if is_exact(point)), default=None)
        for key, (part, figure) in KEYS.items()
    }


def is_exact(point: Part) -> bool:
    """Whether nothing was lost and nothing was seen otherwise than it was."""
    zeros = ("wrong", "lost", "unheard", "event_drops")
    return not any(point.get(name) for name in (*zeros, "total_mismatch"))


def plots(found: Parts) -> dict[str, str]:
    """The drawings by the names of their files, of the parts that were measured."""
    made = {}
    for part, label in (("streams", "streams at once"), ("cgroups", "cgroups, each a target")):
        if points := found.get(part):
            made[f"performance-{part}.svg"] = svg(
                [
                    Panel("CPU, % of a core", label, lines(points, part, CPU)),
                    Panel("memory, MB", label, lines(points, part, MEMORY)),
                    Panel("one answer, ms", label, lines(points, part, ANSWERS)),
                ]
            )
    if points := found.get("cpus"):
        made["performance-cpus.svg"] = svg(
            [
                Panel("reading a target, µs", "possible CPUs", lines(points, "cpus", READS)),
                Panel("maps for 200 targets, MB", "possible CPUs", lines(points, "cpus", MAPS)),
            ]
        )
    if points := found.get("churn"):
        made["performance-churn.svg"] = svg(
            [
                Panel("reached a second", "connections asked, a second", _churn(points)),
                Panel(
                    "CPU of the agent, % of a core",
                    "connections asked, a second",
                    lines(points, "asked_per_s", {"agent": "agent_cpu_percent"}),
                ),
            ]
        )
    return made


CPU: Final = {"agent": "agent_cpu_percent", "controller": "controller_cpu_percent"}
MEMORY: Final = {"agent": "agent_rss_mb", "controller": "controller_rss_mb", "maps": "maps_mb"}
ANSWERS: Final = {"scrape": "scrape_ms", "status": "status_ms", "tick P99": "tick_ms_p99"}
READS: Final = {"counters": "counters_us", "histogram": "histogram_us", "CPU time": "run_us"}
MAPS: Final = {"by CPU": "maps_mb"}


def lines(
    points: Sequence[Part], x: str, figures: Mapping[str, str]
) -> dict[str, list[tuple[float, float]]]:
    """A line for each figure, over the figure `x`."""
    return {
        name: [(point[x], point[figure]) for point in points if point[figure] is not None]
        for name, figure in figures.items()
    }


def _churn(points: Sequence[Part]) -> dict[str, list[tuple[float, float]]]:
    figures = {"watched": "reached_per_s", "not watched": "reached_unwatched_per_s"}
    return lines(points, "asked_per_s", figures)


def table(found: Parts) -> str:
    """Markdown: one table a part, a column a point."""
    return "\n\n".join(_part(name, points) for name, points in found.items() if points)


def _part(name: str, points: Sequence[Part]) -> str:
    rows = [
        [figure, *(_text(point.get(figure)) for point in points)]
        for figure, value in points[0].items()
        if not isinstance(value, dict | list)
    ]
    head = [
        f"| {name} | " + " | ".join("" for _ in points) + " |",
        "|---" * (1 + len(points)) + "|",
    ]
    return "\n".join([*head, *(f"| {' | '.join(row)} |" for row in rows)])


def _text(value: Any) -> str:
    return "-" if value is None else f"{value:,}" if isinstance(value, int) else f"{value:g}"
