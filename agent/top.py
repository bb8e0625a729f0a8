"""`sitsctl top`: the agent at a glance, live.

`frame` is one picture of it, fitted to the size it is given; `watch` shows one after another.
"""

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Final

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.text import Text

from agent.client import AgentClient, ClientError
from agent.full_screen import full_screen
from agent.keys import keys
from agent.layout import ends, row_of
from agent.top_keys import AS_IT_IS, HINT, Choice, ordered
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
    cores,
    duration,
    figure,
    good_text,
    injected_text,
    mode_text,
    printable,
    value,
)

POINTS: Final = 600
"""Points of history kept for each engine: five minutes at the default interval."""

_PROBLEMS: Final = 3
_NEIGHBOURS: Final = 8
_DECISIONS: Final = 20
_LEVELS: Final = " ▁▂▃▄▅▆▇█"
_LABEL: Final = 9
_NO_LIMIT: Final = 1 << 16
_HINTED: Final = 12
"""The least height at which the keys have a line."""


@dataclass(slots=True)
class History:
    """What was seen so far: gap and TTFT P99 in ms by engine, newest last; the last decisions."""

    gap_ms: dict[str, deque[float | None]] = field(default_factory=dict)
    ttft_ms: dict[str, deque[float | None]] = field(default_factory=dict)
    decisions: list[Json] = field(default_factory=list)

    def add(self, status: Json, decisions: Sequence[Json] = ()) -> None:
        """Take in an answer of `status`, and the `decisions` of one of `journal`."""
        for past, name in ((self.gap_ms, "gap_ms"), (self.ttft_ms, "ttft_ms")):
            now = {printable(item["name"]): item[name]["p99"] for item in status["engines"]}
            for gone in past.keys() - now.keys():
                del past[gone]
            for engine, p99 in now.items():
                past.setdefault(engine, deque(maxlen=POINTS)).append(p99)
        self.decisions = printable(list(decisions))


def frame(
    status: Json,
    history: History,
    notice: str = "",
    choice: Choice = AS_IT_IS,
    hint: str = "",
) -> RenderableType:
    """One picture of an answer of `status`, after `history.add` of it; `notice` is a problem more.

    As wide as it is allowed to be, and never higher. `hint` stands on the last line, if there is
    room.
    """
    shown = printable(status)
    shown["engines"] = ordered(shown["engines"], choice.by)
    return _Frame(shown, history, printable(notice), choice.said, hint)


def watch(agent: AgentClient, console: Console, interval_s: float) -> None:
    """Show frame after frame until `q` or Ctrl-C; the terminal is then as it was before.

    Other keys are those of `Choice.press`.

    `ClientError` if the agent can't be asked at the start. If it goes away later, that is shown.
    """
    history = History()
    status = _look(agent, history)
    with keys() as pressed, full_screen(console) as show:
        notice, choice = "", AS_IT_IS
        while True:
            due = time.monotonic() + interval_s
            while (left := due - time.monotonic()) > 0:
                # after a key or at a new size: the same, ordered and fitted again
                show(frame(status, history, notice, choice, HINT))
                if not {"q", "Q"}.isdisjoint(given := pressed(left)):
                    return
                choice = choice.press(given)
            if choice.held:
                continue
            try:
                status, notice = _look(agent, history), ""
            except ClientError as error:
                notice = str(error)


def look(agent: AgentClient) -> RenderableType:
    """One frame of now."""
    history = History()
    return frame(_look(agent, history), history)


def _look(agent: AgentClient, history: History) -> Json:
    status = agent.status()
    history.add(status, agent.journal(limit=_DECISIONS)["decisions"])
    return status


@dataclass(frozen=True, slots=True)
class _Frame:
    status: Json
    history: History
    notice: str
    chosen: str
    hint: str

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width, height = options.max_width, options.height
        hinted = bool(self.hint) and height is not None and height >= _HINTED
        lines = self._lines(width, (height or _NO_LIMIT) - hinted)
        if hinted:
            assert height is not None
            lines = lines[: height - 1]
            lines += [Text()] * (height - 1 - len(lines))
            lines.append(Text(self.hint, "dim"))
        for line in lines[: options.height]:
            line.truncate(width, overflow="ellipsis")
            line.no_wrap = True
            yield line

    def _lines(self, width: int, height: int) -> list[Text]:
        """The parts that matter most first; each takes room only from what those before left."""
        engines, neighbours = self.status["engines"], self.status["neighbours"]
        lines = self._head(width)
        table = [_engine_head(width)] if engines else [Text("the policy has no engines")]
        room = height - len(lines) - len(table) - 1
        details = sum(2 + bool(_changed(item)) for item in engines if item["found"])
        others = 2 + min(len(neighbours), 3) + 5
        with_details = len(engines) + details + others <= room or len(engines) == 1
        for item in engines:
            table.append(_engine_row(item, width))
            if with_details and item["found"]:
                table += self._details(item, width)
        lines += [Text(), *table]
        if neighbours and height - len(lines) >= 3:
            lines += [
                Text(),
                *_neighbour_lines(neighbours, min(_NEIGHBOURS, height - len(lines) - 2)),
            ]
        if self.history.decisions and height - len(lines) >= 3:
            lines += [Text(), Text("DECISIONS", "dim")]
            lines += [
                _decision_line(item)
                for item in self.history.decisions[: min(_DECISIONS, height - len(lines))]
            ]
        return lines

    def _head(self, width: int) -> list[Text]:
        controller, loop = self.status["controller"], self.status["loop"]
        left = Text.assemble(("sits ", "bold"), mode_text(self.status["mode"]))
        left.append(" · controller ")
        if controller["alive"]:
            left.append(f"pid {controller['pid']}")
        else:
            left.append("dead", "bold red")
        if loop is not None:
            left.append(f" · loop p99 {figure(loop['tick_ms']['p99'])} ms")
        left.append(f" · up {duration(self.status['uptime_s'])}")
        problems = ([self.notice] if self.notice else []) + self.status["problems"]
        right = Text(f"{self.chosen}  " if self.chosen else "", "bold")
        lines = [ends(left, right.append(clock(time.time()), "dim"), width)]
        lines += [Text.assemble(("! ", "bold red"), item) for item in problems[:_PROBLEMS]]
        if len(problems) > _PROBLEMS:
            lines[-1].append(f" (+{len(problems) - _PROBLEMS} more)")
        if (injected := self.status.get("injected")) is not None:
            lines.append(Text.assemble(("injected ", "bold yellow"), injected_text(injected)))
        if problems:
            return lines
        reacts = "" if loop is None else f" · reacts in {figure(loop['reaction_ms']['p50'], 'ms')}"
        return [*lines, Text(f"no problems{reacts}", "dim")]

    def _details(self, engine: Json, width: int) -> list[Text]:
        """What was changed, and how gaps and TTFT went."""
        changed = _changed(engine)
        half = (width - 2) // 2
        charts = [
            _chart(name, list(past.get(engine["name"], ())), engine["slo"][slo], half)
            for name, past, slo in (
                ("gap p99", self.history.gap_ms, "gap_ms"),
                ("TTFT p99", self.history.ttft_ms, "ttft_ms"),
            )
        ]
        lines = [Text.assemble("  ", *pair) for pair in zip(*charts, strict=True)]
        return [Text(f"  {', '.join(changed)}", "cyan"), *lines] if changed else lines


def _changed(engine: Json) -> list[str]:
    """The knobs, and the CPU weight, that are not as they were at the start."""
    changed = [
        f"{name} {value(knob['start'])} → {value(knob['value'])}"
        for name, knob in engine["knobs"].items()
        if knob["value"] != knob["start"]
    ]
    weight = engine["cpu_weight"]
    if weight and weight["value"] != weight["base"]:
        changed.append(f"CPU weight {weight['base']} → {weight['value']}")
    return changed


def _columns(width: int) -> list[int]:
    """Widths of the columns of the engines' table, name first; negative: to the right."""
    fixed = [-6, -16, -14, 8, 9, 13]
    return [min(24, max(8, width - sum(map(abs, fixed)) - len(fixed))), *fixed]


def _engine_head(width: int) -> Text:
    names = ("ENGINE", "GOOD", "TTFT p50/p99 ms", "GAP p50/p99 ms", "RUN+Q", "PRESSURE", "CAUSE")
    return row_of([Text(name, "dim") for name in names], _columns(width))


def _engine_row(engine: Json, width: int) -> Text:
    name = Text(engine["name"], "bold")
    if not engine["found"]:
        return Text.assemble(name, (f" not found: {engine['detail']}", "dim"))
    slo, pressure = engine["slo"], engine["backpressure"]
    cells = [
        name,
        good_text(engine),
        against_slo(engine["ttft_ms"], slo["ttft_ms"]),
        against_slo(engine["gap_ms"], slo["gap_ms"]),
        Text(f"{figure(engine['running'])}+{figure(engine['waiting'])}"),
        Text(UNKNOWN) if pressure is None else _pressure(pressure["value"]),
        cause_text(engine["cause"]),
    ]
    return row_of(cells, _columns(width))


def _pressure(share: float) -> Text:
    style = "red" if share > 0.7 else "yellow" if share > 0.3 else "green"
    return Text.assemble((bar(share, 4), style), f" {share:.2f}")


def _chart(name: str, past: list[float | None], slo: float, width: int) -> tuple[Text, Text]:
    """`past` as columns of two rows, of which the upper is what is over the SLO, up to twice it.

    The SLO is so the line between the rows, dotted where nothing rises above it.
    """
    points = max(1, width - _LABEL - 2)
    shown = past[-points:]
    columns = [None] * (points - len(shown)) + shown
    upper = Text(f"{f'SLO {figure(slo)}':<{_LABEL}} ")
    lower = Text(f"{name:<{_LABEL}} ")
    upper.stylize("dim")
    lower.stylize("dim")
    # Runs of one style, not cells: an eighth of the bytes, which a slow line will notice.
    for over, run in groupby(columns, lambda number: number is not None and number > slo):
        times = [0.0 if number is None else number / slo for number in run]
        if over:
            upper.append("".join(_column(item - 1) for item in times), "red")
        else:
            upper.append("." * len(times), "dim")
        lower.append("".join(map(_column, times)), "red" if over else "green")
    return upper.append(" "), lower.append(" ")


def _column(share: float) -> str:
    """A share of one row's height; what is there at all is seen."""
    return _LEVELS[max(1, min(8, round(share * 8)))] if share > 0 else " "


def _neighbour_lines(neighbours: Sequence[Json], most: int) -> list[Text]:
    lines = [Text("NEIGHBOURS", "dim")]
    shown = neighbours if len(neighbours) <= most else neighbours[: most - 1]
    for item in shown:
        used, quota = item["used_cores"], item["quota_cores"]
        held = quota is not None or item["idle"]
        gauge = bar((used or 0.0) / quota, 5) if held and quota else " " * 5
        cells = [
            Text(item["name"]),
            Text(cores(item), "yellow" if held else ""),
            Text(gauge, "yellow"),
        ]
        row = row_of(cells, [16, 18, 5])
        row.pad_right(max(0, 41 - row.cell_len))
        lines.append(row.append(f" {item['cgroup'] or ''}", "dim"))
    if len(shown) < len(neighbours):
        lines.append(Text(f"+{len(neighbours) - len(shown)} more", "dim"))
    return lines


def _decision_line(item: Json) -> Text:
    named = [each | {"target": each["target"].rpartition("/")[2]} for each in item["action"]]
    what = changes(item | {"action": named}).plain.replace("\n", ", ")
    return Text.assemble(
        (f"{clock(item['wall_ns'] / 1e9)} ", "dim"),
        f"{item['engine']} ",
        (f"{item['cause']} ", CAUSE_STYLES.get(item["cause"], "bold")),
        f"{what} ",
        ack_text(item),
    )
