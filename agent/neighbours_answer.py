"""What the admin API says of neighbours and their classes."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from agent.discovery import Found
from controller.policy_model import Policy

_NOT_KNOWN = {
    "class": None,
    "weight": None,
    "idle": False,
    "frozen": False,
    "freezes": 0,
    "protected": None,
}
_SECONDS = {
    "held_s": "held_ns",
    "held_cpu_s": "held_used_ns",
    "held_back_cpu_s": "held_back_ns",
    "frozen_s": "frozen_ns",
    "longest_freeze_s": "longest_freeze_ns",
}


def neighbour_rows(found: Iterable[Found], held: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A row for each neighbour; `held` is the controller's part of it, by name."""
    rows = []
    for each in found:
        status = held.get(each.name, {})
        rows.append(
            {
                "name": each.name,
                "found": each.present,
                "cgroup": each.cgroup,
                "detail": each.detail,
                "used_cores": status.get("used_cores"),
                "quota_cores": status.get("quota_cores"),
                **{name: status.get(name) or default for name, default in _NOT_KNOWN.items()},
                **{name: status.get(ns, 0) / 1e9 for name, ns in _SECONDS.items()},
            }
        )
    return rows


def neighbours_answer(
    policy: Policy, rows: Sequence[Mapping[str, Any]], candidates: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Neighbours, the classes there are, and who is none and took the CPU."""
    return {
        "neighbours": list(rows),
        "classes": [
            {
                "name": each.name,
                "cpu_share": each.cpu_share,
                "freeze_ms": each.freeze_ms,
                "retry_ms": each.retry_ms,
                "idle": each.idle,
                "neighbours": sum(row["class"] == each.name for row in rows),
            }
            for each in policy.all_classes.values()
        ],
        "candidates": list(candidates),
        "limit_found": policy.discovery.limit_found,
    }
