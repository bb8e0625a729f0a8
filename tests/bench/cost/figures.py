"""A figure: what each run of it gave, and what to make of that."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Figure:
    """One value a run; none where nothing was measured, and then `note` says why.

    `peers` are the same figure of others, from the same runs.
    """

    values: tuple[float, ...] = ()
    note: str = ""
    peers: Mapping[str, "Figure"] = field(default_factory=dict)

    @property
    def median(self) -> float | None:
        """Of all runs; None without any."""
        return statistics.median(self.values) if self.values else None

    @property
    def low(self) -> float | None:
        """The least run."""
        return min(self.values, default=None)

    @property
    def high(self) -> float | None:
        """The largest run."""
        return max(self.values, default=None)

    def as_json(self) -> dict[str, Any]:
        """For build/bench-runs.json: the runs, their median and spread, the note and the peers."""
        return {
            "median": rounded(self.median),
            "spread": [rounded(self.low), rounded(self.high)],
            "runs": [rounded(value) for value in self.values],
            "note": self.note,
            "peers": {name: peer.as_json() for name, peer in self.peers.items()},
        }


Found = dict[str, Figure]
"""What a part of the bench found, by the names in `budgets`."""


def ratios(ours: Sequence[float], others: Sequence[float]) -> tuple[float, ...]:
    """Ours by theirs, run by run: what both had in common, such as a busy machine, cancels."""
    return tuple(a / b for a, b in zip(ours, others, strict=True) if b)


def slowdowns(with_it: Sequence[float], without: Sequence[float]) -> tuple[float, ...]:
    """By what share something takes longer with it, run by run: 0.1 is a tenth longer."""
    return tuple(ratio - 1 for ratio in ratios(with_it, without))


def alternate(rounds: int, variants: Mapping[str, Callable[[], T]]) -> dict[str, list[T]]:
    """Run every variant once a round, every other round in the opposite order.

    So what drifts meanwhile falls on all of them alike.
    """
    found: dict[str, list[T]] = {name: [] for name in variants}
    for number in range(rounds):
        for name in list(variants)[:: -1 if number % 2 else 1]:
            found[name].append(variants[name]())
    return found


def rounded(value: float | None) -> float | None:
    """To four significant digits: more is noise."""
    return None if value is None else float(f"{value:.4g}")
