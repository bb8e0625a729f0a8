"""Figures and names of the API as people read them. An unknown figure is "–".

What comes from outside is made `Text`, in which rich looks for no markup.
"""

import time
from collections.abc import Mapping
from typing import Any, Final

from rich.text import Text

from controller.plain import plain

Json = dict[str, Any]

UNKNOWN: Final = "–"
CAUSE_STYLES: Final[Mapping[str, str]] = {
    "none": "green",
    "neighbour_cpu": "bold red",
    "own_quota": "bold magenta",
    "memory": "magenta",
    "engine_stopped": "bold red",
    "network": "bold blue",
    "slow_reader": "blue",
    "batch": "bold yellow",
    "queue": "yellow",
    "application": "yellow",
    "unknown": "bold",
}
_ACK_STYLES: Final[Mapping[str, str]] = {"refused": "red", "lost": "red", "pending": "yellow"}
_MODE_STYLES: Final[Mapping[str, str]] = {"control": "bold green", "shadow": "bold cyan"}
_VERDICT_STYLES: Final[Mapping[str, str]] = {"worse": "bold red", "better": "green"}
_BLOCKS: Final = " ▏▎▍▌▋▊▉█"


def printable(answer: Any) -> Any:
    """`answer` with every string in it, names too, made fit for a terminal."""
    match answer:
        case str():
            return plain(answer)
        case dict():
            return {plain(name): printable(item) for name, item in answer.items()}
        case list():
            return [printable(item) for item in answer]
    return answer


def figure(value: float | None, unit: str = "") -> str:
    """A figure with three digits or so, and its unit."""
    if value is None:
        return UNKNOWN
    if value == 0 or abs(value) >= 99.95 or float(value).is_integer():
        text = f"{value:.0f}"
    else:
        text = f"{value:.1f}" if abs(value) >= 1 else f"{value:.2g}"
    return f"{text} {unit}" if unit else text


def percent(share: float | None) -> str:
    """A share as a percentage; one decimal only where it says something."""
    if share is None:
        return UNKNOWN
    text = f"{share * 100:.1f}"
    # 99.96% of streams is not all of them.
    return "99.9%" if text == "100.0" and share < 1 else f"{text.removesuffix('.0')}%"


def core_share(share: float | None) -> str:
    """A share of a core, which may be very small, as a percentage."""
    return UNKNOWN if share is None else f"{share * 100:.2g}%"


def duration(seconds: float) -> str:
    """A length of time in its two largest units."""
    whole = int(seconds)
    for size, unit, small_size, small in ((86_400, "d", 3600, "h"), (3600, "h", 60, "min")):
        if whole >= size:
            return f"{whole // size} {unit} {whole % size // small_size} {small}"
    return f"{whole // 60} min {whole % 60} s" if whole >= 60 else f"{whole} s"


def clock(unix_s: float) -> str:
    """A moment as local time of day, with the date unless it is today's."""
    then = time.localtime(unix_s)
    today = then[:3] == time.localtime()[:3]
    return time.strftime("%H:%M:%S" if today else "%m-%d %H:%M:%S", then)


def bar(share: float, width: int) -> str:
    """A share of `width` cells, in eighths."""
    eighths = round(min(max(share, 0.0), 1.0) * width * 8)
    full, rest = divmod(eighths, 8)
    return ("█" * full + (_BLOCKS[rest] if rest else "")).ljust(width)


def cause_text(cause: str) -> Text:
    """A cause in its colour."""
    return Text(cause, CAUSE_STYLES.get(cause, "bold"))


def good_text(engine: Json) -> Text:
    """The share of good streams, in the colour of whether it is what was promised."""
    share = engine["attainment"]
    if share is None:
        return Text(UNKNOWN, "dim")
    return Text(percent(share), "green" if share >= engine["slo"]["attainment"] else "bold red")


def changes(decision: Json) -> Text:
    """What a decision changes, one change a line: `max_batched_tokens 2048 → 412`."""
    lines = [
        ("" if item["target"] == decision["engine"] else f"{item['target']} ")
        + f"{item['knob']} {_short(item['from'])} → {_short(item['to'])}"
        for item in decision["action"]
    ]
    return Text("\n".join(lines) or "nothing", overflow="fold")


def _short(number: float | str | None) -> str:
    """A value that a law may have computed: four figures of it."""
    computed = isinstance(number, float) and abs(number) < 1000
    return f"{number:.4g}" if computed else value(number)


def ack_text(decision: Json) -> Text:
    """What became of a decision, and how long the answer took."""
    took = "" if decision["ack_us"] is None else f" {decision['ack_us']} µs"
    return Text(f"{decision['ack']}{took}", _ACK_STYLES.get(decision["ack"], ""))


def outcome_text(outcome: Json) -> Text:
    """What came of a decision: `worse: gaps late 0.2% → 3.1%, … while requests went 2 → 5.2/s`."""
    before, after = outcome["before"], outcome["after"]
    text = Text(outcome["verdict"], _VERDICT_STYLES.get(outcome["verdict"], ""))
    pairs = [
        (name, *(_shares(span, over, of) for span in (before, after)))
        for name, over, of in (
            ("gaps late", "gaps_over", "gaps"),
            ("starts late", "ttft_over", "started"),
        )
    ]
    text.append(": " + ", ".join(f"{name} {then} → {now}" for name, then, now in pairs))
    good, load = (
        tuple(figure(span[name] if span else None) for span in (before, after))
        for name in ("goodput_per_s", "requests_per_s")
    )
    text.append(f", good {good[0]} → {good[1]}/s, requests {load[0]} → {load[1]}/s")
    if outcome["load_changed"]:
        text.append(" (the load changed)", "yellow")
    return text


def _shares(span: Json | None, over: str, of: str) -> str:
    return percent(span[over] / span[of]) if span and span[of] else UNKNOWN


def injected_text(injected: Json) -> str:
    """What the agent was told from outside, and for how long that still counts."""
    left = duration(max(1, round(injected["left_s"])))
    why = f": {injected['reason']}" if injected["reason"] else ""
    return f"{injected['what']} {injected['value']:g}, for {left} more{why}"


def mode_text(mode: str) -> Text:
    """A mode in its colour."""
    return Text(mode, _MODE_STYLES.get(mode, "bold"))


def against_slo(quantiles: Json, slo_ms: float) -> Text:
    """`212/742 ≤ 800`: p50 and p99 in ms against their SLO, in colour when p99 is over it."""
    p50, p99 = (
        figure(item if item is None or item < 10 else round(item))
        for item in (quantiles["p50"], quantiles["p99"])
    )
    over = quantiles["p99"] is not None and quantiles["p99"] > slo_ms
    return Text.assemble(
        f"{p50}/",
        (p99, "bold red" if over else ""),
        (f" {'>' if over else '≤'} {figure(slo_ms)}", "dim"),
    )


def cores(neighbour: Json) -> str:
    """What a neighbour uses of what it may."""
    if not neighbour["found"]:
        return "not found"
    used, quota = neighbour["used_cores"], neighbour["quota_cores"]
    used_text = UNKNOWN if used is None else f"{used:.2f}"
    if quota is not None:
        return f"{used_text} of {quota:.2f} cores"
    return f"{used_text} cores, idle" if neighbour["idle"] else f"{used_text} cores"


def sockets_text(sockets: Json) -> str:
    """An engine's sockets on one line."""
    seeded = f" ({sockets['seeded']} not followed yet)" if sockets["seeded"] else ""
    return (
        f"{sockets['connections']} connections{seeded}, accept queue"
        f" {sockets['accept_backlog']} of {sockets['accept_limit']},"
        f" {sockets['unsent_bytes']} bytes unsent on {sockets['unsent']}"
    )


def value(number: float | str | None) -> str:
    """A value that is set somewhere, in full."""
    if number is None:
        return "none"
    return f"{number:.10g}" if isinstance(number, float) else str(number)
