"""The ranks of an engine with several admin sockets: data-parallel schedulers of one server.

Each rank has a scheduler, a queue and a page of its own, and so is decided about alone; the SLO,
the streams, the CPU and the policy are the engine's. The policy names their sockets by a pattern.
"""

import stat
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

MOST_RANKS: Final = 64
"""More sockets than this are not looked at: a pattern that fits too much."""

_STATES: Final = ("unreachable", "refused", "held", "connected", "none")
"""The worst first."""

_SUMS: Final = (
    "running",
    "waiting",
    "steps",
    "preemptions",
    "lease_expiries",
    "deferred",
    "deferred_total",
    "shed_total",
    "on_time_tokens",
    "kv_total",
    "requests_total",
    "finished_total",
    "prompt_tokens_total",
    "generated_tokens_total",
)


def is_pattern(path: Path | None) -> bool:
    """Whether a policy's admin socket stands for those of several ranks."""
    return path is not None and "*" in path.name


def sockets_at(pattern: Path) -> list[Path]:
    """The sockets that the pattern fits now, `admin.sock` before `admin-1.sock`."""
    try:
        found = [path for path in pattern.parent.glob(pattern.name) if _is_socket(path)]
    except OSError:
        return []
    return sorted(found, key=lambda path: (len(path.name), path.name))[:MOST_RANKS]


def merged(statuses: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The status of an engine out of those of its ranks, the first one's where it is one for all.

    Requests are summed; the cause and the pressure are those of the rank under most pressure.
    """
    first, *others = ranks = list(statuses)
    if not others:
        return dict(first)
    worst = max(ranks, key=lambda each: each["backpressure"]["value"])
    admin = min((each["admin"] for each in ranks), key=lambda each: _STATES.index(each["state"]))
    pressed = ("backpressure", "cause", "cause_meaning", "evidence")
    return {
        **first,
        **{name: worst[name] for name in pressed},
        "admin": admin,
        "admin_sockets": [each for rank in ranks for each in rank["admin_sockets"]],
        "now": _summed([each["now"] for each in ranks]),
        "loads": _loads([each["loads"] for each in ranks]),
        "doubt": next((each["doubt"] for each in ranks if each["doubt"]), ""),
    }


def _is_socket(path: Path) -> bool:
    try:
        return stat.S_ISSOCK(path.stat().st_mode)
    except OSError:
        return False


def _summed(ranks: list[Mapping[str, Any] | None]) -> dict[str, Any] | None:
    """What the ranks that show something do together."""
    shown = [each for each in ranks if each is not None]
    if not shown:
        return None
    uses = [each["kv_use"] for each in shown if each["kv_use"] is not None]
    return {
        **shown[0],
        **{name: sum(each[name] for each in shown) for name in _SUMS},
        "kv_use": max(uses, default=None),
        "longest_deferral_ms": max(each["longest_deferral_ms"] for each in shown),
    }


def _loads(ranks: list[list[tuple[int, ...]]]) -> list[tuple[int, ...]]:
    """Queues summed, moment by moment, where every rank has that moment."""
    moments: defaultdict[int, list[tuple[int, ...]]] = defaultdict(list)
    for loads in ranks:
        for index, *queues in loads:
            moments[index].append(tuple(queues))
    whole = {index: each for index, each in moments.items() if len(each) == len(ranks)}
    return [(index, *map(sum, zip(*each, strict=True))) for index, each in sorted(whole.items())]
