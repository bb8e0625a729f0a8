"""The result as a table for people."""

from collections.abc import Mapping
from typing import Any, Final

_STARTS: Final = ("cold", "warm", "cold_engine_anew", "warm_engine_anew")
_CONTENDERS: Final = (
    "default",
    "best_static",
    "best_static_relegation",
    "aimd",
    "alone",
    "observe_without",
    "observe_at_once",
    "observe",
    "sits_without",
    "sits_at_once",
    "sits",
    *_STARTS,
)
_HEAD: Final = (
    f"{'':28}{'goodput':>9}{'att.':>8}{'ttft ok':>9}{'gap ok':>8}{'TTFT P50 / P99':>18}"
    f"{'gap P50 / P99':>16}{'tok/s':>7}{'bad':>5}{'chg/min':>8}{'least knobs':>13}"
)


def table(result: Mapping[str, Any]) -> str:
    """All scenarios, a line for each contender."""
    lines = [_HEAD]
    for name, scenario in result.items():
        if "slo" not in scenario or name == "setup":
            continue
        lines.append(_title(name, scenario))
        lines += [_line(each, scenario[each]) for each in _CONTENDERS if _has(scenario, each)]
        for contender in ("default", "sits"):
            levels = scenario.get(contender, {}).get("levels", {})
            lines += [_line(f"{contender} at {at}", entry) for at, entry in levels.items()]
        lines += [
            f"    {key.replace('_', ' ')}: {value:.3f}"
            for key, value in _ratios(scenario)
            if value is not None
        ]
    loop = result["loop"]
    if loop["ticks"]:
        lines.append(
            f"loop: edge to knob {_ms(loop['reaction_ms']['p50'])} /"
            f" {_ms(loop['reaction_ms']['p99'])} ms (P50 / worst P99),"
            f" deciding {_ms(loop['decide_us']['p99'])} µs (worst P99),"
            f" {loop['late_ticks']} of {loop['ticks']} ticks late"
        )
    return "\n".join(lines)


def _title(name: str, scenario: Mapping[str, Any]) -> str:
    slo = scenario["slo"]
    return (
        f"{name}: SLO {slo['ttft_ms']:g} / {slo['gap_ms']:g} ms,"
        f" capacity {scenario['capacity_rps']:.1f}/s"
        + (f" × {share:g}" if (share := scenario.get("share_of_capacity")) else "")
    )


def _has(scenario: Mapping[str, Any], contender: str) -> bool:
    return "goodput_rps" in scenario.get(contender, {})


def _line(name: str, entry: Mapping[str, Any]) -> str:
    ttft, gap = entry["ttft_ms"], entry["gap_ms"]
    knobs = ", ".join(f"{value:g}" for value in entry.get("knobs", {}).values())
    label = f"  {name}" + (f" ({knobs})" if knobs else "")
    least = f"{entry['min_batched_tokens']} × {entry['min_running']}"
    return (
        f"{label:28}{entry['goodput_rps']:9.2f}{entry['attainment']:8.1%}"
        f"{entry['ttft_attainment']:9.1%}{entry['gap_attainment']:8.1%}"
        f"{_ms(ttft['p50']):>9} /{_ms(ttft['p99']):>7}{_ms(gap['p50']):>8} /{_ms(gap['p99']):>6}"
        f"{entry['tokens_per_s']:7.0f}{entry['failed'] + entry['refused']:5}"
        f"{entry['knob_changes_per_min']:8.0f}{least:>13}"
    )


def _ms(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}"


_TIMES: Final = {
    "holds_from_s": "SLO holds after s",
    "engine_after_s": "it had the engine after s",
    "holds_with_engine_s": "SLO holds after s with the engine",
    "point_after_s": "a point by its model after s",
}


def _ratios(scenario: Mapping[str, Any]) -> list[tuple[str, float | None]]:
    found = [(key, value) for key, value in scenario.items() if "_ratio_vs_" in key]
    for contender in ("default", "sits"):
        entry = scenario.get(contender, {})
        if "goodput_share_of_peak" in entry:
            found.append((f"{contender} share of peak", entry["goodput_share_of_peak"]))
    found += [
        (f"{name}: {words}", scenario[name][figure])
        for name in _STARTS
        for figure, words in _TIMES.items()
        if "times" in scenario.get(name, {})
    ]
    return found
