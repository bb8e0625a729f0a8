"""An engine to simulate, from what a journal recorded of a real one."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from statistics import median
from typing import Any, Final

from controller.recording import Inputs, StepSample
from controller.simulate.virtual_engine import EngineSpec, StepTimes
from controller.step_model import OUTLIER_FACTOR, TRUST_PREFILL_STEPS, TRUST_STEPS

REWEIGHTED: Final = 3
"""Fits after the first, each with errors relative to the one before; they settle in two."""

OWN_KNOBS: Final = ("max_running", "max_batched_tokens", "long_prefill_tokens", "max_queued")
SINGULAR: Final = 1e-9
"""A pivot that is this small a part of its column leaves nothing to tell it by."""


class FitError(ValueError):
    """There is too little recorded to fit an engine to; the message says what is missing."""


def fit(recorded: Iterable[Inputs]) -> EngineSpec:
    """The engine that was recorded: step times from its steps, knobs and cache as it offered them.

    Step times are fitted to the recorded steps; where these are too few or too much alike, the
    controller's own model stands in, which saw all of them. `FitError` if there is neither.
    """
    steps: list[StepSample] = []
    seen = learnt = last = None
    for inputs in recorded:
        steps += inputs.steps
        last = inputs
        if inputs.batch_view is not None and inputs.signals.engine is not None:
            seen = inputs
        if inputs.core.model.trusted:
            learnt = inputs.core.model
    if last is None:
        raise FitError("nothing is recorded of it")
    if seen is None or seen.batch_view is None or seen.signals.engine is None:
        raise FitError("its knobs were never offered: it has no admin socket, or it did not answer")
    times = step_times(steps)
    if times is None:
        if learnt is None:
            raise FitError(f"only {len(steps)} steps are recorded, too few or too much alike")
        times = StepTimes(learnt.base_ms, learnt.prefill_ms, learnt.decode_ms, learnt.kv_ms)
    times = replace(times, noise=noise_of(times, steps), between_ms=between_ms(steps))
    start = {name: int(knob.start) for name, knob in seen.batch_view.knobs.items()}
    sizes: dict[str, Any] = {name: start[name] for name in OWN_KNOBS if name in start}
    if seen.signals.engine.kv_total:
        sizes["kv_tokens"] = seen.signals.engine.kv_total
    return EngineSpec(times, graph_sizes=seen.batch_view.graph_sizes, **sizes)


def step_times(steps: Sequence[StepSample]) -> StepTimes | None:
    """Step times by least squares of relative errors; None if the steps do not tell them.

    Errors are relative to what is predicted. Relative to what was measured they would weigh short
    steps more than long ones alike in what they compute, and the fit would be below their mean:
    where a part of the steps took twice as long as the rest, by a fifth.

    Coefficients are not below zero: one that would be is left out, and the others fitted again.
    Steps many times as long as they should be are left out too: something disturbed them.
    """
    if len(steps) < TRUST_STEPS or sum(step[1] > 0 for step in steps) < TRUST_PREFILL_STEPS:
        return None
    kept = [step for step in steps if step[0] > 0]
    fitted = _least_squares(kept, [step[0] / 1e6 for step in kept])
    for _ in range(REWEIGHTED):
        if fitted is None:
            return None
        expected = [(step, fitted.mean_ms(*step[1:4])) for step in kept]
        likely = [(step, ms) for step, ms in expected if 0 < step[0] / 1e6 <= OUTLIER_FACTOR * ms]
        fitted = _least_squares([step for step, _ in likely], [ms for _, ms in likely])
    return fitted


def noise_of(times: StepTimes, steps: Iterable[StepSample]) -> float:
    """Standard deviation of log(measured / predicted), from the median absolute deviation.

    The median, times 1.4826 (of a normal distribution), because some steps were disturbed.
    """
    misses = [
        math.log(step[0] / 1e6 / predicted)
        for step in steps
        if (predicted := times.mean_ms(*step[1:4])) > 0 and step[0] > 0
    ]
    if not misses:
        return 0.0
    middle = median(misses)
    return 1.4826 * median(abs(miss - middle) for miss in misses)


def between_ms(steps: Iterable[StepSample]) -> float:
    """The median of what passes from a step to the next; 0 where that is not known."""
    pauses = [step[4] / 1e6 for step in steps if step[4] >= 0]
    return median(pauses) if pauses else 0.0


def _least_squares(steps: Sequence[StepSample], scales_ms: Sequence[float]) -> StepTimes | None:
    """The least squares of errors in parts of `scales_ms`, one for each step."""
    # in units that make the four columns of like size, so that elimination stays exact
    units = (1.0, 100.0, 1.0, 1000.0)
    rows, took = [], []
    for step, scale_ms in zip(steps, scales_ms, strict=True):
        columns = (1.0, *step[1:4])
        rows.append([x / unit / scale_ms for x, unit in zip(columns, units, strict=True)])
        took.append(step[0] / 1e6 / scale_ms)
    used = [0, 1, 2, 3]
    while used:
        matrix = [[sum(row[i] * row[j] for row in rows) for j in used] for i in used]
        vector = [sum(row[i] * ms for row, ms in zip(rows, took, strict=True)) for i in used]
        found = _solved(matrix, vector)
        if found is None:
            used.pop()  # the steps do not tell the last from the others
            continue
        negative = [i for i, value in zip(used, found, strict=True) if value < 0]
        if not negative:
            values = dict(zip(used, found, strict=True))
            return StepTimes(*(values.get(i, 0.0) / units[i] for i in range(4)))
        used.remove(negative[-1])
    return None


def _solved(matrix: list[list[float]], vector: list[float]) -> list[float] | None:
    """The solution of a small symmetric system by Gauss-Jordan; None if it has none."""
    size = len(vector)
    rows = [[*row, value] for row, value in zip(matrix, vector, strict=True)]
    for i in range(size):
        pivot = max(range(i, size), key=lambda r: abs(rows[r][i]))
        if abs(rows[pivot][i]) <= SINGULAR * max(abs(matrix[i][i]), 1e-300):
            return None
        rows[i], rows[pivot] = rows[pivot], rows[i]
        rows[i] = [value / rows[i][i] for value in rows[i]]
        for r in range(size):
            if r != i:
                factor = rows[r][i]
                rows[r] = [a - factor * b for a, b in zip(rows[r], rows[i], strict=True)]
    return [row[-1] for row in rows]
