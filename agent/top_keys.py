"""What the keys of `sitsctl top` change: the order of the engines, and whether it stands still."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import cycle, islice
from typing import Final

from agent.words import Json

ORDERS: Final = ("policy", "name", "good", "ttft", "gap", "waiting", "pressure")
"""By what engines can be sorted: as the policy has them, by name, or the worst first."""


HINT: Final = "q quit · s, S sort · space hold"
"""What the keys do."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What the user chose so far."""

    by: str = ORDERS[0]
    held: bool = False

    def press(self, keys: str) -> "Choice":
        """After these keys: `s` and `S` for the next order and the one before, space holds."""
        chosen = self
        for key in keys:
            if key in "sS":
                step = 1 if key == "s" else len(ORDERS) - 1
                at = ORDERS.index(chosen.by) + step
                chosen = replace(chosen, by=next(islice(cycle(ORDERS), at, None)))
            elif key == " ":
                chosen = replace(chosen, held=not chosen.held)
        return chosen

    @property
    def said(self) -> str:
        """What to say of it: nothing where all is as at the start."""
        parts = [f"by {self.by}"] if self.by != ORDERS[0] else []
        return " · ".join([*parts, *(["held"] if self.held else [])])


AS_IT_IS: Final = Choice()
"""Before any key."""


def ordered(engines: Sequence[Json], by: str) -> list[Json]:
    """The engines in that order; what is not known comes last."""
    match by:
        case "policy":
            return list(engines)
        case "name":
            return sorted(engines, key=lambda item: str(item["name"]))
        case _:
            return sorted(engines, key=lambda item: -_badness(item, by))


def _badness(item: Json, by: str) -> float:
    """The larger, the worse: a latency in its SLO, the share of bad streams, what waits."""
    match by:
        case "good":
            found = None if item["attainment"] is None else 1 - item["attainment"]
        case "ttft" | "gap":
            p99 = item[f"{by}_ms"]["p99"]
            found = None if p99 is None else p99 / item["slo"][f"{by}_ms"]
        case "waiting":
            found = item["waiting"]
        case _:
            found = item["backpressure"] and item["backpressure"]["value"]
    return -1.0 if found is None else float(found)
