"""Predictors that hold one level: what comes is what is."""

from typing import Final

MOMENTS_WEIGHT: Final = 0.02
"""Of the newest change in the Kalman level's estimate of the two variances."""

LEAST_SIGNAL: Final = 1e-3
"""The level is never taken to move less than this share of the noise: it has to follow a step."""


class LastValue:
    """The newest value: what all others have to beat."""

    __slots__ = ("_value",)

    def __init__(self) -> None:
        self._value = 0.0

    def observe(self, value: float) -> None:
        """Take in the next value."""
        self._value = value

    def forecast(self) -> float:
        """The newest value."""
        return self._value


class Ewma:
    """Exponentially weighted mean; `weight` is that of the newest value, over 0 and at most 1."""

    __slots__ = ("_share", "_value", "_weight")

    def __init__(self, weight: float) -> None:
        self._weight = weight
        self._share = 0.0
        self._value = 0.0

    def observe(self, value: float) -> None:
        """Take in the next value; the first ones count in full (no bias towards zero)."""
        self._share += self._weight * (1 - self._share)
        self._value += self._weight / self._share * (value - self._value)

    def forecast(self) -> float:
        """The weighted mean."""
        return self._value


class KalmanLevel:
    """A level that wanders, seen through noise, by a scalar Kalman filter.

    y = μ + ε, μ ← μ + η with variances R of ε and Q of η. They are estimated from the changes
    Δ of the values: cov(Δₜ, Δₜ₋₁) = −R and var Δ = Q + 2R (Harvey, Forecasting, Structural Time
    Series Models and the Kalman Filter, section 2.4). Both moments are weighted exponentially.
    """

    __slots__ = (
        "_change",
        "_count",
        "_covariance",
        "_level",
        "_uncertainty",
        "_value",
        "_variance",
    )

    def __init__(self) -> None:
        self._count = 0
        self._value = 0.0
        self._change = 0.0
        self._variance = 0.0
        self._covariance = 0.0
        self._level = 0.0
        self._uncertainty = 0.0

    def observe(self, value: float) -> None:
        """Take in the next value: learn the variances, then correct the level."""
        self._count += 1
        if self._count == 1:
            self._value = self._level = value
            return
        change = value - self._value
        weight = max(MOMENTS_WEIGHT, 1 / self._count)
        self._variance += weight * (change * change - self._variance)
        self._covariance += weight * (change * self._change - self._covariance)
        self._value, self._change = value, change
        noise = max(-self._covariance, 0.0)
        signal = max(self._variance - 2 * noise, LEAST_SIGNAL * noise)
        before = self._uncertainty + signal
        gain = before / (before + noise) if before + noise > 0 else 1.0
        self._level += gain * (value - self._level)
        self._uncertainty = (1 - gain) * before

    def forecast(self) -> float:
        """The level: it is as likely to rise as to fall."""
        return self._level
