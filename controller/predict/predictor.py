"""What every predictor does, and the mean against which some of them measure."""

import math
from typing import Final, Protocol

MOST: Final = 1e12
"""Larger values count as this, so that no square of them overflows."""

LARGEST_RATIO: Final = 100.0
"""No forecast is more than this many times the running mean."""

_WEIGHT: Final = 1 / LARGEST_RATIO


class Predictor(Protocol):
    """Forecasts the mean of the next few values of a series; how many is fixed when it is made.

    Values come at equal intervals, are finite, and lie within 0…`MOST`. A forecast may be any
    number, even none: `chooser.Chooser` keeps out what can't be.
    """

    def observe(self, value: float) -> None:
        """Take in the next value."""
        ...

    def forecast(self) -> float:
        """The mean of the values to come, in the unit of the values."""
        ...


class RunningMean:
    """A mean over about the last hundred values, and ratios to it on a logarithmic scale.

    One burst is hundreds of times an idle second. On the scale log(1 + v/mean) both teach a fit
    without either drowning the other.
    """

    __slots__ = ("_share", "value")

    def __init__(self) -> None:
        self.value = 0.0
        self._share = 0.0

    def observe(self, value: float) -> None:
        """Take in the next value; the first ones count in full (no bias towards zero)."""
        self._share += _WEIGHT * (1 - self._share)
        self.value += _WEIGHT / self._share * (value - self.value)

    def compress(self, value: float) -> float:
        """log(1 + value/mean): 0 for nothing, 0.69 for the mean, at most 4.6 for values seen."""
        return math.log1p(value / self.value) if self.value > 0 else 0.0

    def expand(self, compressed: float) -> float:
        """The value that `compress` makes `compressed` of, kept within what can be."""
        ratio = math.expm1(min(max(compressed, 0.0), math.log1p(LARGEST_RATIO)))
        return self.value * ratio
