"""What every change of a knob has to pass: limits on how far, how fast and how often."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

GROWTH: Final = 1.05
"""Grow at most 5% an engine step since the last change (design section 6.6); a cut may be whole."""

GROWTH_STEPS: Final = 15
"""Steps that count for growth: the value at most doubles in one change."""

DEAD_BAND: Final = 0.15
"""Growth by less than this share of the value in force is not worth a write."""

CUT_BAND: Final = 0.06
"""A cut by less is not, either; a larger one is due, for the value in force is too much."""

DWELL_STEPS: Final = 10
"""Engine steps between a change and the next growth, so that its effect is seen first."""


REST: Final = 100
"""A change that takes long is followed by a rest so many times as long: changes take at most a
hundredth of the time, whatever the load asks for."""

LEAST_REST_NS: Final = 20_000_000_000
"""Nor is it made more often than this: what came of the last one has to be seen first."""


@dataclass(frozen=True, slots=True)
class Range:
    """A knob's range, from the engine's `hello` and the policy's floor."""

    minimum: float
    maximum: float
    start: float
    sizes: Sequence[int] = ()


def toward(current: float, wanted: float, allowed: Range, steps: int) -> float:
    """The next value on the way from `current` to `wanted`; `current` itself for no change.

    `steps` are those of the engine since the last change. Cut at once, grow by `GROWTH` a step and
    only after `DWELL_STEPS`, stay within the bands, never leave the range, never above the start
    value. The way ends at a whole number, and at a captured graph
    size where there are any.
    """
    if math.isnan(wanted):
        return current
    ceiling = min(allowed.maximum, allowed.start)
    goal = _snapped(max(wanted, allowed.minimum), allowed) if wanted < ceiling else ceiling
    band = DEAD_BAND if goal > current else CUT_BAND
    if abs(goal - current) <= band * current and goal != ceiling:
        return current
    if goal > current:
        if steps < DWELL_STEPS:
            return current
        grown = current * GROWTH ** min(steps, GROWTH_STEPS)
        goal = min(goal, float(math.floor(max(grown, current + 1))))
    return goal


def rest_ns(change_ns: int) -> int:
    """How long to leave a knob alone after a change that took so long to be in force."""
    return max(LEAST_REST_NS, REST * change_ns)


def _snapped(value: float, allowed: Range) -> float:
    """The largest captured size at or below the value, or the whole number below it.

    A graph is captured for some batch sizes only; between two of them the larger is paid for
    (seed A10).
    """
    below = [size for size in allowed.sizes if allowed.minimum <= size <= value]
    return float(max(below)) if below else max(allowed.minimum, float(math.floor(value)))
