"""An autoregressive predictor, fitted by recursive least squares."""

from collections import deque
from operator import mul
from typing import Final

from controller.predict.predictor import RunningMean

LAGS: Final = 6

FORGETTING: Final = 0.998
"""Half of what was learnt is forgotten after about 350 values."""

LARGEST_TRACE: Final = 100.0
"""Where the covariance has grown this large nothing more is forgotten: in an idle hour nothing is
learnt either, and forgetting would blow it up."""


class Autoregression:
    """The mean of the next `horizon` values, linear in the last `LAGS` values and a constant.

    Fitted directly for the horizon, not step by step, on the logarithmic scale of `RunningMean`, by
    recursive least squares with forgetting (Ljung, System Identification, section 11.2). Starts
    as the last value.
    """

    __slots__ = ("_covariance", "_lags", "_mean", "_pending", "_recent", "_weights")

    def __init__(self, horizon: int) -> None:
        size = LAGS + 1
        self._mean = RunningMean()
        self._weights = [0.0, 1.0, *[0.0] * (LAGS - 1)]
        self._covariance = [[float(i == j) for j in range(size)] for i in range(size)]
        self._lags = (0.0,) * LAGS
        self._pending: deque[tuple[float, ...]] = deque(maxlen=horizon)
        self._recent: deque[float] = deque(maxlen=horizon)

    def observe(self, value: float) -> None:
        """Take in the next value: learn from the forecast that it completes."""
        self._mean.observe(value)
        self._recent.append(value)
        if len(self._pending) == self._pending.maxlen:
            outcome = sum(self._recent) / len(self._recent)
            self._fit(self._features(self._pending[0]), outcome)
        self._lags = (value, *self._lags[:-1])
        self._pending.append(self._lags)

    def forecast(self) -> float:
        """The fitted value; never below zero."""
        return self._mean.expand(sum(map(mul, self._weights, self._features(self._lags))))

    def _features(self, lags: tuple[float, ...]) -> list[float]:
        return [1.0, *map(self._mean.compress, lags)]

    def _fit(self, features: list[float], outcome: float) -> None:
        rows = self._covariance
        seen = [sum(map(mul, row, features)) for row in rows]
        kept = FORGETTING if sum(row[i] for i, row in enumerate(rows)) < LARGEST_TRACE else 1.0
        scale = kept + sum(map(mul, seen, features))
        miss = self._mean.compress(outcome) - sum(map(mul, self._weights, features))
        self._weights = [
            weight + one / scale * miss for weight, one in zip(self._weights, seen, strict=True)
        ]
        # one·other is the same both ways round, so that the matrix stays symmetric
        self._covariance = [
            [(old - one * other / scale) / kept for old, other in zip(row, seen, strict=True)]
            for row, one in zip(rows, seen, strict=True)
        ]
