"""How long an engine's step takes, learnt from its steps.

t = a + b·prefill + c·decode + d·kv (design section 6.2; the same form as Sarathi-Serve's and
Splitwise's linear step models), fitted by recursive least squares with forgetting (Ljung, System
Identification, section 11.2). Steady load says nothing of some combinations of the four; there a
weak pull towards the present estimate, one coefficient a step (Gunnarsson 1996), keeps forgetting
from blowing up. Plain Python: four unknowns do not need NumPy, and the fast loop's process stays
small without it.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from controller.changed import changed
from controller.engines.page import Step
from controller.overrun import LONG, UNKNOWN, spread_after

FORGETTING: Final = 0.998
"""Half of what was learnt is forgotten after about 350 steps."""

WARM_UP_STEPS: Final = 10
"""An engine's first steps page in memory and fill caches: they say nothing about later ones."""

TRUST_STEPS: Final = 40
TRUST_PREFILL_STEPS: Final = 5
TRUST_ERROR: Final = 0.25
LOST_ERROR: Final = 0.4
"""Trust is given below the one and taken above the other: an error about a single bound would have
the operating point go to and fro between the model's and none."""

SLOW_FACTOR: Final = 1.5
"""A step this many times the prediction says less the longer it is (as Huber's loss has it)."""

OUTLIER_FACTOR: Final = 4.0
"""A step this many times the prediction was disturbed, not computed. Several on end cost the model
its trust, and then it learns from them: the engine itself became slower."""

_LONGEST_NS: Final = 600_000_000_000
_MOST_TOKENS: Final = 1e9
"""Beyond these a step is not one, but nonsense on its engine's page."""

_KV_UNIT: Final = 1000.0
_PREFILL_UNIT: Final = 100.0
_ERROR_WEIGHT: Final = 0.05
WEIGHED_MS: Final = 10.0
"""A step counts by its share, not its milliseconds: what disturbs a step grows with its length, and
a long one would drown what short ones say of the base (weighted least squares, weights 1/length²).
A step of this length has the weight 1."""

_START_VARIANCE: Final = 1e4
_PULL_VARIANCE: Final = _START_VARIANCE / (4 * (1 - FORGETTING))
"""Of the pull on one coefficient in four: what is not seen for long is as uncertain as at first."""

Vector = tuple[float, float, float, float]
Matrix = tuple[Vector, Vector, Vector, Vector]


def _diagonal(value: float) -> Matrix:
    return (
        (value, 0.0, 0.0, 0.0),
        (0.0, value, 0.0, 0.0),
        (0.0, 0.0, value, 0.0),
        (0.0, 0.0, 0.0, value),
    )


_UNKNOWN: Final = _diagonal(_START_VARIANCE)


@dataclass(frozen=True, slots=True)
class StepModel:
    """The fit so far: `theta` is ms for (1, 100 prefill tokens, 1 sequence, 1000 cached tokens)."""

    theta: Vector = (0.0, 0.0, 0.0, 0.0)
    covariance: Matrix = _UNKNOWN
    steps: int = 0
    prefill_steps: int = 0
    error: float = 1.0
    """Running mean of |predicted − measured| / measured."""
    was_trusted: bool = False
    """With the step before the last."""
    fit: Vector | None = None
    """`theta` under the constraint that no coefficient is below zero; None for what `theta` is."""
    spread: float = UNKNOWN
    """Standard deviation of log(measured / predicted) of long steps."""

    @property
    def trusted(self) -> bool:
        """Whether laws may be built on it."""
        return (
            self.steps >= TRUST_STEPS
            and self.prefill_steps >= TRUST_PREFILL_STEPS
            and self.error <= (LOST_ERROR if self.was_trusted else TRUST_ERROR)
            and self.theta[1] > 0
        )

    @property
    def base_ms(self) -> float:
        """`a`: what a step costs before any token."""
        return max(0.0, (self.fit or self.theta)[0])

    @property
    def prefill_ms(self) -> float:
        """`b`: one prompt token."""
        return max(0.0, (self.fit or self.theta)[1]) / _PREFILL_UNIT

    @property
    def decode_ms(self) -> float:
        """`c`: one sequence that generates."""
        return max(0.0, (self.fit or self.theta)[2])

    @property
    def kv_ms(self) -> float:
        """`d`: one cached token read by attention."""
        return max(0.0, (self.fit or self.theta)[3]) / _KV_UNIT

    def predict_ms(self, prefill_tokens: float, decode_seqs: float, kv_tokens: float) -> float:
        """How long such a step takes; coefficients below zero count as zero."""
        base, prefill, decode, kv = self.fit or self.theta
        return (
            max(0.0, base)
            + max(0.0, prefill) / _PREFILL_UNIT * prefill_tokens
            + max(0.0, decode) * decode_seqs
            + max(0.0, kv) / _KV_UNIT * kv_tokens
        )


def remembered(
    theta: Vector, covariance: Matrix, error: float, spread: float = UNKNOWN
) -> StepModel:
    """A model with what an earlier run learnt, and as sure of it: trusted at once if that one was.

    Steps that contradict it correct it; where they do so grossly, its error costs it the trust.
    """
    return StepModel(
        theta,
        covariance,
        TRUST_STEPS,
        TRUST_PREFILL_STEPS,
        error,
        fit=at_least_zero(theta, covariance),
        spread=spread,
    )


def of_ms(base_ms: float, prefill_ms: float, decode_ms: float, kv_ms: float) -> StepModel:
    """A model with these coefficients, in ms for a step, a prompt token, a sequence, a cached one.

    It predicts, and is not trusted: nothing says what it was learnt from.
    """
    return StepModel((base_ms, prefill_ms * _PREFILL_UNIT, decode_ms, kv_ms * _KV_UNIT))


def is_outlier(model: StepModel, step: Step) -> bool:
    """Whether a step took so much longer than its batch does that something disturbed it."""
    if not model.trusted:
        return False
    predicted = model.predict_ms(step.prefill_tokens, step.decode_seqs, step.kv_tokens)
    return step.step_ns / 1e6 > OUTLIER_FACTOR * max(predicted, 1e-6)


def as_felt(steps: Sequence[Step], before: Step | None) -> list[Step]:
    """`steps` that took as long as those who got a token from them waited for it.

    Between two steps an engine delivers tokens and plans; whoever generates feels that too. A
    sequence that generates in a step got its last token at the end of the step before, so its gap
    is from end to end. Where nobody generates nobody feels more than the step itself. `before` is
    the step before the first.
    """
    felt = []
    for step in steps:
        if before is not None and before.index == step.index - 1 and step.decode_seqs:
            gap_ns = step.end_ns - before.end_ns
            felt.append(changed(step, step_ns=max(step.step_ns, gap_ns)))
        else:
            felt.append(step)
        before = step
    return felt


def learn(model: StepModel, steps: Iterable[Step], disturbed: bool) -> StepModel:
    """The model after `steps`; nothing is learnt while the engine is `disturbed`.

    Warm-up steps, outliers and what can't be a step are refused. Disturbed means that others took
    the engine's CPU: a fit to such steps would shrink the batch for a fault that is not its own.
    """
    if disturbed:
        return model
    for step in steps:
        if step.index <= WARM_UP_STEPS or not _is_step(step):
            continue
        model = _update(model, step)
    return model


def _is_step(step: Step) -> bool:
    most = max(step.prefill_tokens, step.decode_seqs, step.kv_tokens)
    return 0 < step.step_ns <= _LONGEST_NS and most <= _MOST_TOKENS


def _update(model: StepModel, step: Step) -> StepModel:
    x = (
        1.0,
        step.prefill_tokens / _PREFILL_UNIT,
        float(step.decode_seqs),
        step.kv_tokens / _KV_UNIT,
    )
    y = step.step_ns / 1e6
    predicted = _dot(model.theta, x)
    error = abs(y - predicted) / y
    trusted, spread = model.trusted, _spread(model, step)
    if trusted and y > OUTLIER_FACTOR * max(predicted, 1e-6):
        error = _running_error(model, error)
        return changed(model, error=error, was_trusted=True, spread=spread)
    # by the prediction: by what was measured, long by chance would count less than short by chance
    weight = WEIGHED_MS / max(predicted, y / SLOW_FACTOR)
    x = (x[0] * weight, x[1] * weight, x[2] * weight, x[3] * weight)
    miss = (y - predicted) * weight
    px = (
        _dot(model.covariance[0], x),
        _dot(model.covariance[1], x),
        _dot(model.covariance[2], x),
        _dot(model.covariance[3], x),
    )
    scale = FORGETTING + _dot(px, x)
    if not 0 < scale < math.inf:
        return StepModel()  # rounding ate the covariance: what follows would be no number
    theta = (
        model.theta[0] + px[0] / scale * miss,
        model.theta[1] + px[1] / scale * miss,
        model.theta[2] + px[2] / scale * miss,
        model.theta[3] + px[3] / scale * miss,
    )
    covariance = _pulled(_reduced(model.covariance, px, scale, FORGETTING), model.steps % 4)
    return StepModel(
        theta,
        covariance,
        model.steps + 1,
        model.prefill_steps + (step.prefill_tokens > 0),
        _running_error(model, error),
        was_trusted=trusted,
        fit=at_least_zero(theta, covariance),
        spread=spread,
    )


def _spread(model: StepModel, step: Step) -> float:
    """With this step, if it is long and the model knew what to expect."""
    predicted = model.predict_ms(step.prefill_tokens, step.decode_seqs, step.kv_tokens)
    if not model.trusted or predicted < LONG * model.base_ms or predicted <= 0:
        return model.spread
    return spread_after(model.spread, step.step_ns / 1e6 / predicted)


def at_least_zero(theta: Vector, covariance: Matrix) -> Vector | None:
    """The fit with no coefficient below zero; None where that is `theta` itself.

    Steady load does not tell all four apart: one may come out below zero and the others make up for
    it. To count it as zero and leave the others as they are would be wrong by what they make up
    for. As P is the inverse of the normal matrix, the least squares with θᵢ = 0 are
    θ − P·eᵢ·θᵢ/Pᵢᵢ; the lowest goes first, then what is below zero after that.
    """
    if min(theta) >= 0:
        return None
    kept = [0, 1, 2, 3]
    values, rows = list(theta), [list(row) for row in covariance]
    while kept and min(values[i] for i in kept) < 0:
        out = min(kept, key=values.__getitem__)
        kept.remove(out)
        if rows[out][out] <= 0:
            return None  # rounding ate the covariance
        shares = [rows[out][i] / rows[out][out] for i in range(4)]
        below, dropped = values[out], rows[out]
        values = [values[i] - shares[i] * below if i in kept else 0.0 for i in range(4)]
        rows = [[rows[i][j] - shares[i] * dropped[j] for j in range(4)] for i in range(4)]
    return values[0], values[1], values[2], values[3]


def _running_error(model: StepModel, error: float) -> float:
    if model.steps < WARM_UP_STEPS:
        return min(1.0, error)
    return model.error + _ERROR_WEIGHT * (min(1.0, error) - model.error)


def _reduced(covariance: Matrix, px: Vector, scale: float, kept: float) -> Matrix:
    """(P − px·pxᵀ/scale) / kept, from the upper half: rounding must not make P asymmetric."""
    (p00, p01, p02, p03), (_, p11, p12, p13), (_, _, p22, p23), (_, _, _, p33) = covariance
    x0, x1, x2, x3 = px
    q0, q1, q2, q3 = x0 / scale, x1 / scale, x2 / scale, x3 / scale
    p00, p01, p02, p03 = p00 - q0 * x0, p01 - q0 * x1, p02 - q0 * x2, p03 - q0 * x3
    p11, p12, p13 = p11 - q1 * x1, p12 - q1 * x2, p13 - q1 * x3
    p22, p23, p33 = p22 - q2 * x2, p23 - q2 * x3, p33 - q3 * x3
    return (
        (p00 / kept, p01 / kept, p02 / kept, p03 / kept),
        (p01 / kept, p11 / kept, p12 / kept, p13 / kept),
        (p02 / kept, p12 / kept, p22 / kept, p23 / kept),
        (p03 / kept, p13 / kept, p23 / kept, p33 / kept),
    )


def _pulled(covariance: Matrix, i: int) -> Matrix:
    """As if coefficient `i` had been seen to be what it is, with `_PULL_VARIANCE`."""
    px = covariance[i]
    return _reduced(covariance, px, _PULL_VARIANCE + px[i], 1.0)


def _dot(left: Vector, right: Vector) -> float:
    return left[0] * right[0] + left[1] * right[1] + left[2] * right[2] + left[3] * right[3]
