"""How far off a predictor was lately, so that what is planned for is a quantile and no mean."""

import math
from array import array
from bisect import bisect_left, insort
from typing import Final

KEPT: Final = 240
"""Residuals remembered in each regime."""

FEW: Final = 10
"""With fewer in a regime the widest regime speaks for it."""

QUIET: Final = 0.25
"""A forecast below this share of the mean is of a quiet time."""


class Window:
    """The last `KEPT` numbers, and their quantiles."""

    __slots__ = ("_next", "_ring", "_sorted")

    def __init__(self) -> None:
        self._ring = array("d")
        self._sorted = array("d")
        self._next = 0

    def __len__(self) -> int:
        """How many it holds."""
        return len(self._ring)

    def add(self, value: float) -> None:
        """Keep `value`, and let the oldest go where it is full."""
        if len(self._ring) < KEPT:
            self._ring.append(value)
        else:
            del self._sorted[bisect_left(self._sorted, self._ring[self._next])]
            self._ring[self._next] = value
            self._next = (self._next + 1) % KEPT
        insort(self._sorted, value)

    def quantile(self, q: float) -> float:
        """The ⌈q·(n + 1)⌉th smallest of n, at most the largest; 0 of none.

        By it the next number is at or below the quantile with a chance of at least q, if it is
        drawn as the others were (split conformal prediction; Vovk et al., Algorithmic Learning in
        a Random World, 2005).
        """
        if not self._sorted:
            return 0.0
        rank = min(max(math.ceil(q * (len(self._sorted) + 1)), 1), len(self._sorted))
        return self._sorted[rank - 1]


class Residuals:
    """Outcome − forecast, kept apart by regime: what a burst teaches says nothing of quiet times.

    Three regimes, by the forecast against the running mean: quiet, below the mean, above it
    (conformal prediction by category, Vovk et al. section 4.5).
    """

    __slots__ = ("_regimes",)

    def __init__(self) -> None:
        self._regimes = (Window(), Window(), Window())

    def add(self, forecast: float, mean: float, outcome: float) -> None:
        """Keep what came of `forecast`, made when the running mean was `mean`."""
        self._regimes[_regime(forecast, mean)].add(outcome - forecast)

    def quantile(self, q: float, forecast: float, mean: float) -> float:
        """What has to be added to such a forecast to be enough with a chance of `q`."""
        own = self._regimes[_regime(forecast, mean)]
        if len(own) >= FEW:
            return own.quantile(q)
        return max(window.quantile(q) for window in self._regimes)


def _regime(forecast: float, mean: float) -> int:
    if forecast < QUIET * mean:
        return 0
    return 1 if forecast < mean else 2
