"""The API's answers as text for people: compact, aligned, plain where it is piped.

Every answer comes through `words.printable` first, so that nothing from outside reaches the
terminal raw.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from agent.layout import also, bullets, cut, facts_of, heading, indent, table_of
from agent.show_memory import memory_text
from agent.show_sockets import sockets_of
from agent.words import (
    CAUSE_STYLES,
    UNKNOWN,
    Json,
    ack_text,
    against_slo,
    bar,
    cause_text,
    changes,
    clock,
    core_share,
    cores,
    duration,
    figure,
    good_text,
    injected_text,
    mode_text,
    outcome_text,
    percent,
    sockets_text,
    value,
)

_MODEL_TERMS: Final = ("base", "prefill", "decode", "kv")


def status(answer: Json) -> RenderableType:
    """`sitsctl status`."""
    kernel, controller, loop = answer["kernel"], answer["controller"], answer["loop"]
    head = Text.assemble(
        f"sitsd {answer['version']}, mode ",
        mode_text(answer["mode"]),
        f", up {duration(answer['uptime_s'])}",
    )
    streams = "streams followed" if kernel["follows_streams"] else "streams not followed"
    loaded = "no programs" if kernel["loaded"] == "none" else f"programs {kernel['loaded']}"
    facts = [
        ("kernel", f"{kernel['release']}, {loaded}, {streams}{also(kernel['detail'])}"),
        ("controller", _controller(controller)),
        ("loop", _loop(loop)),
        ("losses", _losses(answer)),
        *_injected(answer.get("injected")),
        *_policy(answer["policy"]),
        *_gpus(answer.get("gpu")),
        *_mps(answer.get("mps", ())),
    ]
    parts = [head, facts_of(facts)]
    if answer["engines"]:
        parts += [heading("engines"), _engine_rows(answer["engines"])]
    if answer["neighbours"]:
        parts += [heading("neighbours"), _neighbour_rows(answer["neighbours"])]
    if answer.get("candidates"):
        rows = [Text(f"{each['cgroup']} ({each['command']})") for each in answer["candidates"]]
        parts += [heading("took the CPU, and no table names it"), indent(Group(*rows))]
    problems = answer["problems"]
    parts += [heading("problems"), bullets(problems)] if problems else [Text("no problems")]
    return Group(*parts)


def engines(answer: Json) -> RenderableType:
    """`sitsctl engines`: each engine in full."""
    if not answer["engines"]:
        return Text("the policy has no engines")
    parts: list[RenderableType] = []
    for item in answer["engines"]:
        parts += [_engine(item), Text()]
    return Group(*parts[:-1])


def streams(answer: Json) -> RenderableType:
    """`sitsctl streams`: a line each."""
    return _stream_rows(answer["streams"]) if answer["streams"] else Text("no streams")


def decisions(
    items: Sequence[Json], *, reasons: bool, nothing: str = "no decisions"
) -> RenderableType:
    """Decisions, the first one last, as a log has it.

    Below when, for whom and its ack are what, why and what came of it; `nothing` is said of none.
    An operator's reason is told without `reasons` too.
    """
    from controller.journal_rows import OPERATOR  # which a status can do without

    if not items:
        return Text(nothing)
    widths = [max(len(item[name]) for item in items) for name in ("engine", "mode", "cause")]
    rows = Table.grid(padding=(0, 2))
    for item in reversed(items):
        cells = (Text(item["engine"]), mode_text(item["mode"]), cause_text(item["cause"]))
        entry = Text()
        for cell, width in zip(cells, widths, strict=True):
            cell.pad_right(max(0, min(width, 24) - cell.cell_len) + 2)
            entry.append_text(cell)
        entry.append_text(ack_text(item)).append("\n").append_text(changes(item))
        if item["reason"] and (reasons or item["cause"] == OPERATOR):
            entry.append(f"\n{item['reason']}", "dim")
        if item["outcome"]:
            entry.append("\n").append_text(outcome_text(item["outcome"]))
        rows.add_row(Text(clock(item["wall_ns"] / 1e9), no_wrap=True), entry)
    return rows


def events(items: Sequence[Json]) -> RenderableType:
    """Events, oldest first."""
    if not items:
        return Text("no events")
    table = table_of("TIME", "EVENT", "SUBJECT", "DETAIL")
    for item in reversed(items):
        detail = ", ".join(f"{name} {what}" for name, what in item["detail"].items())
        table.add_row(
            clock(item["wall_ns"] / 1e9),
            cut(Text(item["kind"])),
            cut(Text(item["subject"])),
            Text(detail),
        )
    return table


def explain(answer: Json) -> RenderableType:
    """`sitsctl explain`: the verdict first, then what it rests on."""
    parts: list[RenderableType] = [Text(answer["verdict"], "bold")]
    if answer["causes"]:
        rows = Table.grid(padding=(0, 2))
        for item in answer["causes"]:
            style = CAUSE_STYLES.get(item["cause"], "bold")
            rows.add_row(
                Text(percent(item["share"]), justify="right"),
                Text(bar(item["share"], 10), style),
                cause_text(item["cause"]),
                Text(item["meaning"]),
            )
        parts += [heading(f"causes, last {figure(answer['seconds'])} s"), indent(rows)]
    if evidence := {name: number for name, number in answer["evidence"].items() if number}:
        parts += [heading("evidence"), indent(_evidence(evidence))]
    if answer["culprits"]:
        rows = Table.grid(padding=(0, 2))
        for item in answer["culprits"]:
            waited = f"{figure(item['wait_ms'])} ms in {item['waits']} waits"
            rows.add_row(Text(item["command"]), Text(waited), Text(item["cgroup"]))
        parts += [heading("who had the CPU"), indent(rows)]
    if answer["threads"]:
        rows = Table.grid(padding=(0, 2))
        for item in answer["threads"]:
            waited = f"waited {figure(item['wait_ms'])} ms ({item['waits']} times)"
            others = f"{figure(item['wait_other_ms'])} ms of it for others"
            rows.add_row(Text(item["name"]), Text(f"{waited}, {others}"))
        parts += [heading("its threads"), indent(rows)]
    if answer["slow_streams"]:
        parts += [heading("slow streams"), indent(_stream_rows(answer["slow_streams"]))]
    if answer["decisions"]:
        done = decisions(answer["decisions"], reasons=True)
        parts += [heading("what was done about it"), indent(done)]
    return Group(*parts)


def doctor(answer: Json, findings: Iterable[Json]) -> RenderableType:
    """`sitsctl doctor`: what is there, what its lack costs, and what our limits and programs do."""
    table = Table.grid(padding=(0, 1))
    for item in findings:
        detail = Text(item["detail"])
        if not item["ok"] and item["cost"]:
            detail.append(f"\nso: {item['cost']}", "yellow")
        mark = Text("ok", "green") if item["ok"] else Text("--", "bold red")
        table.add_row(mark, Text(item["name"], no_wrap=True), detail)
    parts: list[RenderableType] = [table]
    if answer.get("limits"):
        hits = ", ".join(f"{name} {count}" for name, count in answer["limits"].items())
        parts += [heading("limits, and how often each was hit"), indent(Text(hits))]
    if answer.get("programs"):
        counted_s = answer["counted_s"]
        rows = _program_rows(answer["programs"], counted_s)
        parts += [heading(f"programs, counted for {figure(counted_s, 's')}"), indent(rows)]
    return Group(*parts)


def _program_rows(items: Iterable[Json], counted_s: float) -> Table:
    table = table_of("PROGRAM", "RUNS/s", "EACH ns", "OF A CORE", "MISSED")
    for item in items:
        per_s = item["runs"] / counted_s if counted_s else None
        each_ns = item["run_ns"] / item["runs"] if item["runs"] else None
        share = item["run_ns"] / 1e9 / counted_s if counted_s else None
        missed = str(item["missed"])
        table.add_row(Text(item["name"]), figure(per_s), figure(each_ns), core_share(share), missed)
    return table


def _gpus(gpu: Json | None) -> list[tuple[str, str]]:
    """A line where there are GPUs, or should be."""
    if gpu is None or gpu["state"] in {"none", "off"}:
        return []
    devices = gpu["devices"]
    busy = ", ".join(
        f"{each['name']} {'lost' if each['lost'] else figure(each['sm_percent'], '%')}"
        for each in devices
    )
    return [("GPUs", f"{gpu['text']}{also(busy)}")]


def _mps(limits: Sequence[Json]) -> list[tuple[str, str]]:
    """A line for each limit on an MPS daemon's clients that is held, or would be."""
    return [
        ("MPS", f"{each['name']}: {each['percent']:g}% for clients that start now")
        for each in limits
        if each["percent"] is not None
    ]


def _injected(injected: Json | None) -> list[tuple[str, str]]:
    """A line while the agent goes by something it was told."""
    return [] if injected is None else [("injected", injected_text(injected))]


def _policy(policy: Json) -> list[tuple[str, str]]:
    """What there is to say of the policy: nothing where it is that of the file."""
    canary = policy["canary"]
    if canary is not None and canary["state"] == "running":
        from agent.show_policy import trial_text  # as above

        return [("policy", trial_text(canary))]
    if policy["in_file"]:
        return []
    return [("policy", f"{policy['source']}, until sitsd ends; {policy['file']} says another")]


def _controller(controller: Json) -> str:
    restarts = f"{controller['restarts']} restart{'' if controller['restarts'] == 1 else 's'}"
    return f"pid {controller['pid']}, {restarts}" if controller["alive"] else f"dead, {restarts}"


def _loop(loop: Json | None) -> str:
    if loop is None:
        return "not running"
    tick, reaction = loop["tick_ms"], loop["reaction_ms"]
    return (
        f"tick {figure(tick['p50'])}/{figure(tick['p99'])} ms p50/p99, {loop['late_ticks']} late;"
        f" reaction {figure(reaction['p50'])}/{figure(reaction['p99'])} ms"
    )


def _losses(answer: Json) -> str:
    lost = [f"{name} {count}" for name, count in answer["health"].items() if count]
    journal = answer["journal"]
    lost += [f"journal rows {journal['dropped']}"] if journal["dropped"] else []
    lost += [journal["error"]] if journal["error"] else []
    return ", ".join(lost) or "none"


def _engine_rows(items: Sequence[Json]) -> RenderableType:
    table = table_of("ENGINE", "GOOD", "TTFT p50/p99 ms", "GAP p50/p99 ms", "RUN", "WAIT", "CAUSE")
    for item in items:
        if item["found"]:
            table.add_row(
                cut(Text(item["name"])),
                good_text(item),
                against_slo(item["ttft_ms"], item["slo"]["ttft_ms"]),
                against_slo(item["gap_ms"], item["slo"]["gap_ms"]),
                figure(item["running"]),
                figure(item["waiting"]),
                cause_text(item["cause"]),
            )
    lost = [_engine(item) for item in items if not item["found"]]
    return indent(Group(*([table] if table.rows else []), *lost))


def _neighbour_rows(items: Iterable[Json]) -> RenderableType:
    rows = Table.grid(padding=(0, 2))
    for _ in range(2):
        rows.add_column(no_wrap=True)
    for item in items:
        rows.add_row(cut(Text(item["name"])), Text(cores(item)), Text(item["cgroup"] or ""))
    return indent(rows)


def _engine(item: Json) -> RenderableType:
    if not item["found"]:
        return Text.assemble((item["name"], "bold"), f": not found{also(item['detail'])}")
    known = item["engine"]
    head = [f"{known['name']} {known['version']}"] if known else []
    head += [f"pid {', '.join(map(str, item['pids']))}"] if item["pids"] else []
    head += [f"port {', '.join(map(str, item['ports']))}"] if item["ports"] else []
    slo, totals = item["slo"], item["totals"]
    facts: list[tuple[str, RenderableType]] = [
        (
            "good",
            Text.assemble(
                good_text(item),
                f" of streams in the last {figure(item['window_s'])} s,"
                f" {percent(slo['attainment'])} promised",
            ),
        ),
        ("TTFT", _latency(item["ttft_ms"], slo["ttft_ms"])),
        ("gap", _latency(item["gap_ms"], slo["gap_ms"])),
        ("run queue", _latency(item["run_queue_ms"], None)),
        (
            "load",
            f"{figure(item['requests_per_s'])} requests/s, {figure(item['chunks_per_s'])} chunks/s,"
            f" {figure(item['running'])} running, {figure(item['waiting'])} waiting"
            f"{f' ({deferred} of them deferred)' if (deferred := item['deferred']) else ''},"
            f" KV {percent(item['kv_use'])}",
        ),
        ("stalls", f"{percent(item['stall_rate'])} of writes left bytes unsent"),
        ("pressure", _pressure(item["backpressure"])),
        ("cause", Text.assemble(cause_text(item["cause"]), f": {item['cause_meaning']}")),
    ]
    facts += [("evidence", _evidence(item["evidence"]))] if item["evidence"] else []
    facts += [("knobs", _knobs(item["knobs"]))] if item["knobs"] else []
    weight = item["cpu_weight"]
    facts += [("CPU weight", f"{weight['value']} (base {weight['base']})")] if weight else []
    facts.append(("admin", f"{item['admin']['state']}{also(item['admin']['detail'])}"))
    facts += sockets_of(item)
    facts += [("adapter", _adapter(item["adapter"]))] if item.get("adapter") else []
    facts += [("model", _model(item["model"]))] if item["model"] else []
    facts += [("plan", _plan(item["plan"]))] if item["plan"] else []
    facts += [("memory", memory_text(item["memory"]))] if item.get("memory") else []
    facts.append(("totals", ", ".join(f"{name} {count}" for name, count in totals.items())))
    untold = item["no_first_token"]
    if untold:
        reasons = ", ".join(f"{why} {count}" for why, count in untold.items())
        facts.append(("no token", reasons))
    facts += [("sockets", sockets_text(item["sockets"]))] if item["found"] else []
    facts += [("cgroup", item["cgroup"])] if item["cgroup"] else []
    title = Text.assemble((item["name"], "bold"), f"  {', '.join(head)}{also(item['detail'])}")
    return Group(title, facts_of(facts))


def _adapter(adapter: Json) -> str:
    parts = [adapter["kind"], adapter["state"]]
    parts += [f"pid {adapter['pid']}"] if adapter["pid"] is not None else []
    parts += [f"{adapter['restarts']} restarts"] if adapter["restarts"] else []
    return f"{', '.join(parts)}{also(adapter['detail'])}"


def _latency(quantiles: Json, slo_ms: float | None) -> Text:
    over = slo_ms is not None and quantiles["p99"] is not None and quantiles["p99"] > slo_ms
    text = Text(f"p50 {figure(quantiles['p50'], 'ms')}, p99 ")
    text.append(figure(quantiles["p99"], "ms"), "bold red" if over else "")
    return text.append("" if slo_ms is None else f", SLO {figure(slo_ms, 'ms')}")


def _pressure(pressure: Json | None) -> str:
    if pressure is None:
        return UNKNOWN
    stages = ", ".join(
        f"{name} {share:.2f}" for name, share in pressure.items() if name != "value" and share
    )
    return f"{pressure['value']:.2f}{f' ({stages})' if stages else ''}"


def _knobs(knobs: Json) -> str:
    return ", ".join(
        f"{name} {value(knob['value'])} {knob['unit']}"
        + (f" (start {value(knob['start'])})" if knob["value"] != knob["start"] else "")
        for name, knob in knobs.items()
    )


def _model(model: Json) -> str:
    parts = ", ".join(f"{name} {figure(model[f'{name}_ms'])}" for name in _MODEL_TERMS)
    trusted = "trusted" if model["trusted"] else "not yet trusted"
    return f"{parts} ms; error {percent(model['error'])} over {model['steps']} steps, {trusted}"


def _plan(plan: Json) -> str:
    text = (
        f"steps of {percent(plan['margin'])} of the gap SLO;"
        f" {figure(plan['prompt_tokens_per_s'])} prompt tokens/s expected by {plan['predictor']}"
    )
    return text + (f"; paused: {plan['paused']}" if plan["paused"] else "")


def _evidence(evidence: Json) -> Text:
    return Text(", ".join(f"{name} {figure(number)}" for name, number in evidence.items()))


def _stream_rows(items: Sequence[Json]) -> Table:
    # a column of its own only where there are versions to tell apart
    versions = ["VERSION"] if any(item["version"] is not None for item in items) else []
    table = table_of("ENDED", "TTFT ms", "GAP ms", "CHUNKS", "RESULT", *versions, "PATH", "CLIENT")
    for item in items:
        result = cause_text(item["cause"])
        if item["good"]:
            result = Text("good", "green")
        elif item["reason"] != "complete":
            result = Text(item["reason"], "bold")
        table.add_row(
            clock(item["ended_unix_s"]),
            figure(item["ttft_ms"]),
            figure(item["gap_max_ms"]),
            figure(item["chunks"]),
            result,
            *(cut(Text(item["version"] or UNKNOWN)) for _ in versions),
            cut(Text(item["path"])),
            cut(Text(item["remote"])),
        )
    return table
