"""`sitsctl stages`: the verdict, a line for each stage, and how they follow each other."""

from typing import Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from agent.layout import bullets, heading, indent
from agent.words import Json, figure, percent, sockets_text

_ARROW: Final = "→"


def stages(answer: Json) -> RenderableType:
    """`sitsctl stages`."""
    parts: list[RenderableType] = [Text(answer["verdict"], "bold")]
    if answer["sockets"]["detail"]:
        parts.append(bullets([answer["sockets"]["detail"]]))
    if not answer["stages"]:
        return Group(*parts)
    table = _table("STAGE", "QUEUE", "MEAN", "", "IN/s", "OUT/s", "WAIT ms", "HELD", "GREW")
    for item in answer["stages"]:
        held = item["stage"] == answer["held_up_at"]
        table.add_row(
            Text(item["stage"], "bold red" if held else ""),
            figure(item["queue"]),
            figure(item["queue_mean"]),
            Text(item["queue_unit"], "dim"),
            figure(item["in_per_s"]),
            figure(item["out_per_s"]),
            figure(item["wait_ms"]),
            percent(item["pressure"]),
            figure(item["alarms"]),
        )
    parts += [heading(f"stages, last {figure(answer['seconds'])} s"), indent(table)]
    laws = _table("STAGE", "STEPS", "OFF BY mean", "max", "")
    for item in answer["stages"]:
        if (law := item["law"]) is not None:
            laws.add_row(
                item["stage"],
                figure(law["steps"]),
                figure(law["error_mean"]),
                figure(law["error_max"]),
                Text(item["queue_unit"], "dim"),
            )
    if laws.row_count:
        parts += [heading("queue law: queue + in - out, against the queue measured"), indent(laws)]
    links = _table("CAUSE", "", "EFFECT", "rho", "LAG ms", "n", "")
    known = [item for item in answer["links"] if item["rho"] is not None]
    for item in known:
        links.add_row(
            item["cause"],
            Text(_ARROW, "dim"),
            item["effect"],
            f"{item['rho']:+.2f}",
            figure(item["lag_ms"]),
            figure(item["samples"]),
            Text(item["detail"], "dim"),
        )
    parts.append(heading("what follows what"))
    parts += [indent(links)] if known else []
    if len(known) < len(answer["links"]):
        others = len(answer["links"]) - len(known)
        parts.append(indent(Text(f"{others} more vary too little, or are too few, to tell", "dim")))
    sockets = answer["sockets"]
    parts += [heading("sockets"), indent(Text(sockets_text(sockets)))]
    return Group(*parts)


def _table(*names: str) -> Table:
    """A table whose columns of figures, all but the first and the unnamed, are to the right."""
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    text = {"STAGE", "CAUSE", "EFFECT", ""}
    for name in names:
        table.add_column(name, justify="left" if name in text else "right", no_wrap=bool(name))
    return table
