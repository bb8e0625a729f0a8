"""`sitsctl replay` and `sitsctl simulate` as text for people; each says first what it is not."""

from collections.abc import Iterable

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from agent.layout import facts_of, heading, indent
from agent.words import Json, cause_text, changes, clock, figure, mode_text, percent


def replay(answer: Json) -> RenderableType:
    """`sitsctl replay`: the summary, then where the settings decide otherwise."""
    summary = answer["summary"]
    facts = [
        ("journal", f"{answer['journal']}, {_span(answer)}"),
        ("policy", answer["policy"] or "as it was then"),
        (
            "decided",
            f"{summary['decisions']} times in {summary['ticks']} recorded ticks:"
            f" {summary['equal']} the same, {summary['different']} different"
            f" ({summary['only_recorded']} only then, {summary['only_replayed']} only now)",
        ),
    ]
    if summary["observed"]:
        facts.append(
            ("observed", f"{summary['observed']} ticks: {summary['would_act']} would have acted")
        )
    facts += [
        (knob, f"then {_range(sides['recorded'])}, now {_range(sides['replayed'])}")
        for knob, sides in summary["values"].items()
    ]
    facts.append(("causes", _causes(summary["causes"])))
    if answer["unreadable"]:
        facts.append(("unreadable", f"{answer['unreadable']} ticks, of another version"))
    if answer["not_in_policy"]:
        facts.append(("passed over", f"{', '.join(answer['not_in_policy'])}: not in the policy"))
    parts: list[RenderableType] = [Text(answer["label"], "bold yellow"), facts_of(facts)]
    if answer["rows"]:
        parts += [heading("then and now, newest at the end"), indent(_rows(answer["rows"]))]
    return Group(*parts)


def simulation(answer: Json) -> RenderableType:
    """`sitsctl simulate`: a line for each control."""
    setting = answer["setting"]
    times, slo = setting["times"], setting["slo"]
    facts = [
        (
            "requests",
            f"{answer['requests']} in {figure(answer['seconds'])} s,"
            f" {figure(answer['asked_tokens_per_s'])} tokens/s",
        ),
        (
            "engine",
            f"steps of {figure(times['base_ms'])} ms + {figure(times['prefill_ms'] * 1e3)} µs a"
            f" prompt token + {figure(times['decode_ms'] * 1e3)} µs a sequence +"
            f" {figure(times['kv_ms'] * 1e6)} ns a cached token, noise {percent(times['noise'])}",
        ),
        ("SLO", f"TTFT {figure(slo['ttft_ms'], 'ms')}, gap {figure(slo['gap_ms'], 'ms')}"),
    ]
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    for name in ("CONTROL", "POINT", "GOOD", "GOOD/s", "TTFT p50/p99", "GAP p50/p99", "MOVES"):
        left = name in ("CONTROL", "POINT")
        table.add_column(name, justify="left" if left else "right", no_wrap=True)
    for item in answer["outcomes"]:
        run = item["runs"][0]
        table.add_row(
            Text(item["control"]),
            Text(", ".join(f"{value:g}" for value in item["point"].values())),
            percent(item["attainment"]),
            f"{item['goodput_rps']:.3f}",
            _pair(run["ttft_ms"]),
            _pair(run["gap_ms"]),
            figure(run["changes_per_min"]),
        )
    parts: list[RenderableType] = [
        Text(answer["label"], "bold yellow"),
        facts_of(facts),
        heading("the same requests under each control; times in ms, moves a minute"),
        indent(table),
    ]
    for name, what in (
        ("goodput_ratio_vs_best_static", "the best static point"),
        ("goodput_ratio_vs_best_static_relegation", "the best static point with relegation"),
    ):
        if (ratio := answer[name]) is not None:
            parts.append(Text(f"simulated goodput of sits: {ratio:.2f} × {what}"))
    return Group(*parts)


def _span(answer: Json) -> str:
    first, last = answer["from_wall_ns"], answer["to_wall_ns"]
    return f"{clock(first / 1e9)} to {clock(last / 1e9)}" if first else "nothing readable"


def _range(values: list[float] | None) -> str:
    if values is None:
        return "not set"
    low, high = (f"{value:.10g}" for value in values)
    return low if low == high else f"{low} to {high}"


def _causes(causes: Json) -> str:
    then, now = causes["recorded"], causes["replayed"]
    names = sorted({*then, *now}, key=lambda name: -max(then.get(name, 0), now.get(name, 0)))
    counts = [(name, then.get(name, 0), now.get(name, 0)) for name in names]
    return ", ".join(f"{name} {a}" if a == b else f"{name} {a} → {b}" for name, a, b in counts)


def _rows(items: Iterable[Json]) -> RenderableType:
    rows = Table.grid(padding=(0, 2))
    for item in items:
        head = Text.assemble(f"{item['engine']}  ", mode_text(item["mode"]))
        rows.add_row(Text(clock(item["wall_ns"] / 1e9), no_wrap=True), head)
        then = item["action"]
        rows.add_row("", _decision("then", item["cause"], item["engine"], then))
        rows.add_row(
            "", _decision("now", item["replayed_cause"], item["engine"], item["replayed_action"])
        )
    return rows


def _decision(when: str, cause: str, engine: str, action: list[Json] | None) -> Text:
    what = ", ".join(changes({"engine": engine, "action": action or []}).plain.split("\n"))
    if action is None:
        what = "not decided: observed"
    return Text.assemble((f"{when:5}", "dim"), cause_text(cause), f": {what}")


def _pair(spread: Json) -> str:
    return f"{figure(spread['p50'])}/{figure(spread['p99'])}"
