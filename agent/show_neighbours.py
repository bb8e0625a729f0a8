"""`sitsctl neighbours`, for people."""

from rich.console import Group, RenderableType
from rich.text import Text

from agent.layout import cut, heading, indent, table_of
from agent.words import Json, cores, figure, percent


def neighbours(answer: Json) -> RenderableType:
    """Who shares the machine, what holds each, and what each got meanwhile."""
    parts: list[RenderableType] = []
    if answer["neighbours"]:
        table = table_of("NEIGHBOUR", "CLASS", "CPU", "STATE", "HELD", "GOT", "LOST")
        for item in answer["neighbours"]:
            held = item["held_s"] > 0
            table.add_row(
                cut(Text(item["name"])),
                item["class"] or "",
                cores(item),
                _state(item),
                figure(item["held_s"], "s") if held else "",
                figure(item["held_cpu_s"], "CPU s") if held else "",
                figure(item["held_back_cpu_s"], "CPU s") if held else "",
            )
        parts.append(table)
        parts += [
            Text(f"{item['name']}: {why}", "dim")
            for item in answer["neighbours"]
            if (why := _why(item))
        ]
    else:
        parts.append(Text("no neighbours"))
    table = table_of("CLASS", "IDLE", "CPU SHARE", "LONGEST FREEZE", "RUNS BETWEEN", "NEIGHBOURS")
    for item in answer["classes"]:
        freeze = figure(item["freeze_ms"], "ms") if item["freeze_ms"] else "never"
        retry = figure(item["retry_ms"], "ms") if item["freeze_ms"] else ""
        share, count = percent(item["cpu_share"]), str(item["neighbours"])
        idle = "may be" if item["idle"] else "never"
        table.add_row(item["name"], idle, share, freeze, retry, count)
    parts += [heading("classes"), indent(table)]
    if answer["candidates"]:
        title = "not named by the policy, but took the CPU"
        if answer["limit_found"]:
            title += ", and may be limited"
        table = table_of("CGROUP", "COMMAND", "OF", "TOOK", "SHARE", "")
        for item in answer["candidates"]:
            table.add_row(
                cut(Text(item["cgroup"])),
                item["command"],
                item["engine"],
                figure(item["wait_ms"], "ms"),
                percent(item["share"]),
                f"protected: {item['protected']}" if item["protected"] else "",
            )
        parts += [heading(title), indent(table)]
    return Group(*parts)


def _state(item: Json) -> Text:
    if not item["found"]:
        return Text("")
    if item["frozen"]:
        return Text("frozen", "bold yellow")
    if item["quota_cores"] is not None:
        return Text("quota", "yellow")
    if item["idle"]:
        return Text("idle", "yellow")
    return Text("protected" if item["protected"] else "free", "dim")


def _why(item: Json) -> str:
    return f"protected, {item['protected']}" if item["protected"] else str(item["detail"])
