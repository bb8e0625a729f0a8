"""A small recurrent net that learns while it predicts: the LSTM of seed row B1, in plain Python.

Two cells, each with input, forget and output gate, see the newest value and what both cells said
of the one before. It is trained at every value by the gradient that Hochreiter and Schmidhuber
gave with it (Long Short-Term Memory, 1997, appendix A): errors flow back through a cell's own
state for ever and through nothing else, so that a step costs the same whatever the past's length.
"""

import math
import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from operator import mul
from typing import Final

from controller.predict.predictor import RunningMean

CELLS: Final = 2

INPUTS: Final = CELLS + 2
"""Of a gate: the newest value, what each cell said, and a constant."""

LEARNING_RATE: Final = 0.05
"""Of the normalised gradient step (Nagumo and Noda 1967): by it the error shrinks by 5%."""

LARGEST_ERROR: Final = 1.0
"""On the logarithmic scale; a burst out of nothing teaches no more than this."""

SPREAD: Final = 0.5
"""The weights start evenly spread over ± this."""

LARGEST_STATE: Final = 10.0

Row = list[float]


@dataclass(slots=True)
class Cell:
    """One cell: its weights, its state, and how the state depends on the weights.

    `weights` has a row of one weight an input for each gate, one row after the other: input gate,
    forget gate, new content, output gate. `traces` has the first three of these.
    """

    weights: Row
    traces: Row
    state: float = 0.0
    said: float = 0.0


@dataclass(frozen=True, slots=True)
class Attempt:
    """One forecast, and what it depended on."""

    forecast: float
    features: Sequence[float]
    """What the readout saw."""

    slopes: Sequence[Row]
    """How what each cell said depends on its weights, in their order."""

    size: float
    """Squared length of the forecast's whole gradient."""


class Recurrent:
    """The mean of the next `horizon` values, by the net above; the same `seed`, the same net.

    Works on the logarithmic scale of `RunningMean`. The readout sees the newest value too, and
    starts as the last value.
    """

    __slots__ = ("_cells", "_mean", "_pending", "_readout", "_recent")

    def __init__(self, horizon: int, seed: int = 1) -> None:
        chance = random.Random(seed)
        self._mean = RunningMean()
        self._cells = [_cell(chance) for _ in range(CELLS)]
        self._readout = [*_row(chance, CELLS), 1.0, 0.0]
        self._pending: deque[Attempt] = deque(maxlen=horizon)
        self._recent: deque[float] = deque(maxlen=horizon)

    def observe(self, value: float) -> None:
        """Take in the next value: learn from the forecast that it completes, then go on."""
        self._mean.observe(value)
        self._recent.append(value)
        if len(self._pending) == self._pending.maxlen:
            outcome = self._mean.compress(sum(self._recent) / len(self._recent))
            self._learn(self._pending[0], outcome)
        self._pending.append(self._attempt(self._mean.compress(value)))

    def forecast(self) -> float:
        """What the net says; never below zero."""
        return self._mean.expand(self._pending[-1].forecast) if self._pending else 0.0

    def _attempt(self, value: float) -> Attempt:
        inputs = [value, *[cell.said for cell in self._cells], 1.0]
        slopes = [_step(cell, inputs) for cell in self._cells]
        features = [*[cell.said for cell in self._cells], value, 1.0]
        size = sum(map(mul, features, features))
        for share, slope in zip(self._readout, slopes, strict=False):
            size += share * share * sum(map(mul, slope, slope))
        return Attempt(sum(map(mul, self._readout, features)), features, slopes, size)

    def _learn(self, attempt: Attempt, outcome: float) -> None:
        miss = min(max(outcome - attempt.forecast, -LARGEST_ERROR), LARGEST_ERROR)
        rate = LEARNING_RATE * miss / (1 + attempt.size)
        for cell, share, slope in zip(self._cells, self._readout, attempt.slopes, strict=False):
            step = rate * share
            cell.weights = [
                weight + step * each for weight, each in zip(cell.weights, slope, strict=True)
            ]
        self._readout = [
            share + rate * each for share, each in zip(self._readout, attempt.features, strict=True)
        ]


def _cell(chance: random.Random) -> Cell:
    weights = _row(chance, 4 * INPUTS)
    weights[2 * INPUTS - 1] = 1.0  # the forget gate's constant: at first it remembers
    return Cell(weights, [0.0] * (3 * INPUTS))


def _row(chance: random.Random, size: int) -> Row:
    return [chance.uniform(-SPREAD, SPREAD) for _ in range(size)]


def _step(cell: Cell, inputs: Row) -> Row:
    """Move the cell one value on; returns how what it says depends on its weights.

    s ← f·s + i·g and h = o·tanh s, so that ds/dw ← f·ds/dw + (∂s/∂gate)·input.
    """
    weights = cell.weights
    # σ(x) as (1 + tanh(x/2))/2, which can't overflow
    i = 0.5 + 0.5 * math.tanh(0.5 * sum(map(mul, weights, inputs)))
    f = 0.5 + 0.5 * math.tanh(0.5 * sum(map(mul, weights[INPUTS:], inputs)))
    g = math.tanh(sum(map(mul, weights[2 * INPUTS :], inputs)))
    o = 0.5 + 0.5 * math.tanh(0.5 * sum(map(mul, weights[3 * INPUTS :], inputs)))
    by_gate = (i * (1 - i) * g, f * (1 - f) * cell.state, i * (1 - g * g))
    fresh = [by * each for by in by_gate for each in inputs]
    cell.traces = [f * old + new for old, new in zip(cell.traces, fresh, strict=True)]
    cell.state = min(max(f * cell.state + i * g, -LARGEST_STATE), LARGEST_STATE)
    shown = math.tanh(cell.state)
    cell.said = o * shown
    by_state, by_out = o * (1 - shown * shown), shown * o * (1 - o)
    return [by_state * each for each in cell.traces] + [by_out * each for each in inputs]
