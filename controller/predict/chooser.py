"""Runs all predictors side by side and believes the one that planned best lately."""

import math
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, NamedTuple

from controller.predict.autoregression import Autoregression
from controller.predict.predictor import MOST, Predictor, RunningMean
from controller.predict.recurrent import Recurrent
from controller.predict.residuals import Residuals
from controller.predict.smoothing import Ewma, KalmanLevel, LastValue

PREDICTORS: Final[Mapping[str, Callable[[int], Predictor]]] = MappingProxyType(
    {
        "last": lambda _: LastValue(),
        "ewma_fast": lambda _: Ewma(0.5),
        "ewma_slow": lambda _: Ewma(0.05),
        "kalman": lambda _: KalmanLevel(),
        "ar": Autoregression,
        "lstm": Recurrent,
    }
)
"""How each predictor is made for a horizon; the first is believed before any has been tried."""

LOSS_WEIGHT: Final = 0.005
"""Of the newest loss in a predictor's mean loss: it covers about the last 200 values."""


@dataclass(frozen=True, slots=True)
class Outlook:
    """What comes in the next `horizon` intervals, as a mean over them, in the values' unit."""

    forecast: float
    """The best guess."""

    plan: float
    """What is enough with a chance of the chooser's `q`."""

    predictor: str
    """Whose outlook it is."""


class Chooser:
    """The outlook of the predictor whose plans had the least pinball loss of late.

    The pinball loss of a plan p is q·(y − p) where more came (y > p) and (1 − q)·(p − y) where
    less did; its least mean is at the q-quantile (Koenker and Bassett 1978). So both planning for
    too little and planning for too much count, as they are worth. Memory is bounded; a value that
    is no number, infinite or below zero is taken as not measured, and left out.
    """

    def __init__(
        self,
        horizon: int,
        q: float = 0.9,
        predictors: Mapping[str, Callable[[int], Predictor]] = PREDICTORS,
    ) -> None:
        self._q = q
        self._mean = RunningMean()
        self._recent: deque[float] = deque(maxlen=horizon)
        self._tracks = [_Track(name, make(horizon)) for name, make in predictors.items()]
        self._outlook = Outlook(0.0, 0.0, self._tracks[0].name)

    @property
    def outlook(self) -> Outlook:
        """What comes next; zero before the first value."""
        return self._outlook

    def observe(self, value: float) -> None:
        """Take in the next interval's value."""
        if not (math.isfinite(value) and value >= 0):
            return
        value = min(value, MOST)
        self._mean.observe(value)
        self._recent.append(value)
        outcome = sum(self._recent) / len(self._recent)
        for track in self._tracks:
            if len(track.pending) == self._recent.maxlen:
                track.settle(outcome, self._q)
            track.predictor.observe(value)
            track.look_ahead(self._mean.value, self._q, value)
        best = min(self._tracks, key=lambda track: track.loss)
        newest = best.pending[-1]
        self._outlook = Outlook(newest.forecast, newest.plan, best.name)


class _Promise(NamedTuple):
    """A forecast, made when the running mean was `mean`, and the plan built on it."""

    forecast: float
    mean: float
    plan: float


class _Track:
    """One predictor, what it has promised, and how it kept it."""

    __slots__ = ("_residuals", "_share", "loss", "name", "pending", "predictor")

    def __init__(self, name: str, predictor: Predictor) -> None:
        self.name = name
        self.predictor = predictor
        self.loss = 0.0
        self.pending: deque[_Promise] = deque()
        self._share = 0.0
        self._residuals = Residuals()

    def settle(self, outcome: float, q: float) -> None:
        """Hold the oldest promise against what came."""
        promise = self.pending.popleft()
        self._residuals.add(promise.forecast, promise.mean, outcome)
        short = outcome - promise.plan
        loss = max(q * short, (q - 1) * short)
        self._share += LOSS_WEIGHT * (1 - self._share)
        self.loss += LOSS_WEIGHT / self._share * (loss - self.loss)

    def look_ahead(self, mean: float, q: float, newest: float) -> None:
        """Ask the predictor; the newest value stands in for a forecast that can't be."""
        forecast = self.predictor.forecast()
        forecast = min(max(forecast, 0.0), MOST) if math.isfinite(forecast) else newest
        more = self._residuals.quantile(q, forecast, mean)
        self.pending.append(_Promise(forecast, mean, min(max(forecast + more, 0.0), MOST)))
