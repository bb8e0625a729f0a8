"""Several runs of one contender as one entry of the result."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from .figures import Run, figures

_SMALLEST: Final = ("min_batched_tokens", "min_running")
_LARGEST: Final = ("most_waiting", "most_running", "longest_deferral_ms")
_SUMMED: Final = ("deferred", "decisions", "knob_decisions", "refused_or_lost")


def summary(runs: Sequence[Run]) -> dict[str, Any]:
    """The figures, with what the engine's page and sitsd showed during the runs."""
    seen = [run.seen for run in runs]
    found = figures(runs).as_dict()
    for names, of in ((_SMALLEST, min), (_LARGEST, max), (_SUMMED, sum)):
        for name in names:
            if all(name in each for each in seen):
                found[name] = of(each[name] for each in seen)
    took_s = sum(map(_took_s, runs))
    changes = sum(each["knob_changes"] for each in seen)
    found["knob_changes_per_min"] = changes * 60 / took_s if took_s else 0.0
    looks = sum(each.get("looks", 0) for each in seen)
    if looks:
        found["capped_share"] = sum(each["capped"] for each in seen) / looks
    loops = [each["loop"] for each in seen if each.get("loop")]
    if loops:
        found["loop"] = loop_of(loops)
    found["problems"] = sorted({text for each in seen for text in each.get("problems", ())})
    found["per_seed_goodput_rps"] = [round(figures([run]).goodput_rps, 3) for run in runs]
    return found


def loop_of(loops: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """sitsd's loop over several runs: the median of the medians, the worst of the P99s."""
    ticks = sum(loop["ticks"] for loop in loops)
    return {
        "reaction_ms": _quantiles([loop["reaction_ms"] for loop in loops]),
        "decide_us": _quantiles([loop["decide_us"] for loop in loops]),
        "ticks": ticks,
        "late_ticks": sum(loop["late_ticks"] for loop in loops),
    }


def all_loops(result: Mapping[str, Any]) -> dict[str, Any]:
    """sitsd's loop over all scenarios: the median of the medians, the worst of the P99s."""
    entries = [entry for scenario in result.values() for entry in _entries(scenario)]
    return loop_of([entry["loop"] for entry in entries if "loop" in entry])


def _entries(scenario: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for entry in scenario.values():
        if isinstance(entry, dict):
            yield entry
            yield from entry.get("levels", {}).values()


def ratio(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> float | None:
    """Our goodput over theirs; None if they have none."""
    if not theirs["goodput_rps"]:
        return None
    return float(ours["goodput_rps"] / theirs["goodput_rps"])


def _quantiles(found: Sequence[Mapping[str, float | None]]) -> dict[str, float | None]:
    p50 = [each["p50"] for each in found if each["p50"] is not None]
    p99 = [each["p99"] for each in found if each["p99"] is not None]
    return {"p50": statistics.median(p50) if p50 else None, "p99": max(p99, default=None)}


def _took_s(run: Run) -> float:
    records = (*run.warm_up, *run.records)
    if not records:
        return 0.0
    return (max(r.ended_ns for r in records) - min(r.sent_ns for r in records)) / 1e9
