"""`sitsctl gpu`: the GPUs, who is on them, and how busy they were."""

from collections.abc import Sequence
from typing import Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from agent.layout import bullets, cut, heading, indent, table_of
from agent.words import UNKNOWN, Json, figure

_SHADES: Final = " ▁▂▃▄▅▆▇█"
_COLUMNS: Final = 60


def gpu(answer: Json) -> RenderableType:
    """`sitsctl gpu`."""
    driver = f", driver {answer['driver']}" if answer["driver"] else ""
    parts: list[RenderableType] = [Text(f"GPUs: {answer['text']}{driver}", "bold")]
    devices = answer["devices"]
    lost = [f"GPU {each['name']}: {each['lost']}" for each in devices if each["lost"]]
    parts += [bullets(lost)] if lost else []
    if devices:
        parts.append(indent(_devices(devices)))
    processes = [(each["name"], one) for each in devices for one in each["processes"]]
    if processes:
        parts += [heading("processes"), indent(_processes(processes))]
    limits = answer.get("mps")
    if limits:
        parts += [heading("limits on MPS clients"), indent(_limits(limits))]
        said = [
            f"{each['name']}: {each['detail']}"
            for each in limits
            if each["state"] not in {"ok", "off", "shadow"}
        ]
        parts += [bullets(said)] if said else []
    for each in answer["heat"]:
        shown = min(_COLUMNS, max((len(row["sm_percent"]) for row in each["rows"]), default=0))
        minutes = figure(shown * each["step_s"] / 60)
        parts.append(heading(f"GPU {each['device']}, how busy, last {minutes} min"))
        parts.append(indent(_heat(each["rows"])))
    return Group(*parts)


def shade(percent: float | None) -> str:
    """A cell of the heat map: a bar as high as the percents, a dot for not known."""
    if percent is None:
        return "·"
    return _SHADES[min(8, max(0, round(percent / 12.5)))]


def _devices(devices: Sequence[Json]) -> Table:
    table = table_of("GPU", "MODEL", "USE", "MEMORY", "POWER", "HEAT", "HELD DOWN BY")
    for each in devices:
        table.add_row(
            each["name"],
            cut(Text(each["model"] + (" (MIG)" if each["mig"] else ""))),
            figure(each["sm_percent"], "%"),
            _memory(each["memory_used_bytes"], each["memory_total_bytes"]),
            f"{figure(each['power_w'])} of {figure(each['power_limit_w'], 'W')}",
            figure(each["temperature_c"], "°C"),
            UNKNOWN if each["throttled"] is None else ", ".join(each["throttled"]) or "nothing",
        )
        for one in each["instances"]:
            memory = _memory(one["memory_used_bytes"], one["memory_total_bytes"])
            table.add_row(f"  {one['name']}", Text("instance", "dim"), "", memory, "", "", "")
    return table


def _processes(processes: Sequence[tuple[str, Json]]) -> Table:
    table = table_of("GPU", "PID", "WHOSE", "COMMAND", "USE", "MEMORY")
    for name, each in processes:
        whose = f"{each['kind']} {each['target']}" if each["target"] else each["cgroup"] or UNKNOWN
        table.add_row(
            each["instance"] or name,
            str(each["pid"]),
            cut(Text(whose)),
            cut(Text(each["command"] or UNKNOWN)),
            figure(each["sm_percent"], "%"),
            _memory(each["memory_bytes"], None),
        )
    return table


def _limits(limits: Sequence[Json]) -> Table:
    table = table_of("DAEMON", "PIPE DIRECTORY", "ASKED", "NOW", "OF ITS OWN", "SERVERS", "STATE")
    for each in limits:
        held = each["percent"] is not None
        table.add_row(
            each["name"],
            cut(Text(each["pipe_directory"] or UNKNOWN)),
            figure(each["asked_percent"], "%"),
            figure(each["percent"], "%") if held else "no limit",
            figure(each["before"], "%"),
            str(each["servers"]) if held else UNKNOWN,
            each["state"],
        )
    return table


def _heat(rows: Sequence[Json]) -> Table:
    table = Table.grid(padding=(0, 2))
    for row in rows:
        cells = "".join(shade(percent) for percent in row["sm_percent"][-_COLUMNS:])
        table.add_row(cut(Text(row["name"])), Text(cells, no_wrap=True))
    return table


def _memory(used: int | None, total: int | None) -> str:
    text = UNKNOWN if used is None else f"{used / (1 << 30):.1f}"
    return f"{text} GiB" if total is None else f"{text} of {total / (1 << 30):.1f} GiB"
