"""Heat maps: how busy each GPU was, by who kept it busy, over the last half hour (seed B11)."""

import threading
from collections import deque
from collections.abc import Mapping
from typing import Any, Final

STEP_S: Final = 5
KEPT: Final = 360
"""Columns: half an hour."""

MOST_ROWS: Final = 32
"""Of one device; who comes when there are so many is added to `OTHERS`."""

WHOLE: Final = "all"
OTHERS: Final = "others"


class _Map:
    """One device: a mean of percents for each name and step; a step is `STEP_S` of the clock."""

    def __init__(self) -> None:
        self.steps: deque[tuple[int, dict[str, tuple[float, int]]]] = deque(maxlen=KEPT)

    def add(self, step: int, use: Mapping[str, float]) -> None:
        if not self.steps or self.steps[-1][0] < step:
            self.steps.append((step, {}))
        cells = self.steps[-1][1]
        for name, percent in use.items():
            total, count = cells.get(name, (0.0, 0))
            cells[name] = (total + percent, count + 1)

    def names(self) -> list[str]:
        found = dict.fromkeys([WHOLE])
        for _, cells in self.steps:
            found |= dict.fromkeys(cells)
        return list(found)


class HeatMaps:
    """The maps of all devices. From any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._maps: dict[str, _Map] = {}

    def take(self, at_s: float, device: str, use: Mapping[str, float | None]) -> None:
        """Add what was seen at `at_s` (unix time): percents by name, None for not known."""
        known = {name: percent for name, percent in use.items() if percent is not None}
        with self._lock:
            heat = self._maps.setdefault(device, _Map())
            there = set(heat.names())
            fits: dict[str, float] = {}
            for name, percent in known.items():
                kept = name if name in there or len(there) < MOST_ROWS else OTHERS
                there.add(kept)
                fits[kept] = fits.get(kept, 0.0) + percent
            heat.add(int(at_s // STEP_S), fits)

    def forget_old(self, at_s: float) -> None:
        """Drop devices that nothing was seen of for as long as is kept."""
        oldest = int(at_s // STEP_S) - KEPT
        with self._lock:
            for name, heat in list(self._maps.items()):
                if not heat.steps or heat.steps[-1][0] < oldest:
                    del self._maps[name]

    def answer(self) -> list[dict[str, Any]]:
        """For JSON: a map for each device; a cell that nothing is known of is null.

        `from_s` is the unix time at which the first cell begins, each is `step_s` long.
        """
        with self._lock:
            return [_answer(device, heat) for device, heat in sorted(self._maps.items())]


def _answer(device: str, heat: _Map) -> dict[str, Any]:
    first = heat.steps[0][0] if heat.steps else 0
    width = heat.steps[-1][0] - first + 1 if heat.steps else 0
    rows: dict[str, list[float | None]] = {name: [None] * width for name in heat.names()}
    for step, cells in heat.steps:
        if step - first >= width:
            continue
        for name, (total, count) in cells.items():
            rows[name][step - first] = round(total / count, 1)
    return {
        "device": device,
        "from_s": first * STEP_S,
        "step_s": STEP_S,
        "rows": [{"name": name, "sm_percent": cells} for name, cells in rows.items()],
    }
