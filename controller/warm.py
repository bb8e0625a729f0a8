"""What is remembered of an engine over a restart, so that a known load begins where it was left.

An engine is known again by its fingerprint: what it says of itself and what it was started with.
Remembered are its step model, which holds whatever the load, and the margin that was right for a
class of prompt lengths (seed A5). What is remembered is a beginning and no more: where it does not
fit, the model's error grows within some steps until it is not trusted, and it learns anew.
"""

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from controller.engines.contract import Hello
from controller.overrun import LARGEST, UNKNOWN
from controller.step_model import Matrix, StepModel, Vector, remembered
from controller.trim import HIGHEST, LOWEST, START, Trim

SAVE_NS: Final = 5_000_000_000
"""How often what was learnt is handed to the agent, if it changed."""

THETA_BAND: Final = 0.05
MARGIN_BAND: Final = 0.02
"""What changed by less is not worth keeping anew: of each coefficient, and of the margin."""

MOST_KEPT: Final = 64
"""Fingerprints kept; the oldest go first."""

LONGEST_PROMPT_CLASS: Final = 24


@dataclass(frozen=True, slots=True)
class Learnt:
    """The step model's `theta`, `covariance`, `error` and `spread`; margins by class of prompts."""

    theta: Vector
    covariance: Matrix
    error: float
    margins: Mapping[int, float] = field(default_factory=dict)
    spread: float = UNKNOWN

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        margins = {str(name): margin for name, margin in self.margins.items()}
        return {
            "theta": list(self.theta),
            "covariance": [list(row) for row in self.covariance],
            "error": self.error,
            "spread": self.spread,
            "margins": margins,
        }


def fingerprint(target: str, hello: Hello) -> str:
    """Of an engine as started: another model, version or size of it is another engine."""
    knobs = {name: (knob.minimum, knob.maximum, knob.start) for name, knob in hello.knobs.items()}
    said = [target, hello.engine, hello.version, sorted(knobs.items()), hello.graph_sizes]
    return hashlib.sha256(json.dumps(said).encode()).hexdigest()[:16]


def prompt_class(mean_prompt_tokens: float) -> int:
    """The class of a load by its mean prompt: each is twice the one before."""
    if not mean_prompt_tokens > 1:
        return 0
    return min(LONGEST_PROMPT_CLASS, int(math.log2(mean_prompt_tokens)))


def note(before: Learnt | None, model: StepModel, trim: Trim, lengths: int) -> Learnt | None:
    """What is to be remembered now; `before` itself if that still holds, or nothing can be said."""
    if not model.trusted:
        return before
    if before is not None and _is_near(before, model, trim.margin, lengths):
        return before
    margins = dict(before.margins) if before is not None else {}
    margins[lengths] = trim.margin
    return Learnt(model.theta, model.covariance, model.error, margins, model.spread)


def _is_near(before: Learnt, model: StepModel, margin: float, lengths: int) -> bool:
    if abs(before.margins.get(lengths, 0.0) - margin) > MARGIN_BAND:
        return False
    pairs = zip(before.theta, model.theta, strict=True)
    return all(abs(new - old) <= THETA_BAND * abs(old) for old, new in pairs)


def model_of(learnt: Learnt) -> StepModel:
    """A step model that begins with what was learnt."""
    return remembered(learnt.theta, learnt.covariance, learnt.error, learnt.spread)


def trim_of(learnt: Learnt, lengths: int) -> Trim:
    """The margin for a class of prompt lengths, or for the nearest class there is."""
    if not learnt.margins:
        return Trim()
    nearest = min(learnt.margins, key=lambda known: abs(known - lengths))
    margin = learnt.margins[nearest]
    return Trim(margin, margin - START)


def parse_learnt(raw: object) -> Learnt | None:
    """What `as_dict` gave; None for anything else, since a file may hold what it will."""
    if not isinstance(raw, dict):
        return None
    theta, rows, margins = (raw.get(name) for name in ("theta", "covariance", "margins"))
    # a file of an earlier version has no spread
    error, spread = raw.get("error"), raw.get("spread", UNKNOWN)
    if not isinstance(rows, list) or len(rows) != 4 or not isinstance(margins, dict):
        return None
    vectors = [_vector(row) for row in (theta, *rows)]
    numbers = [error, spread, *margins.values()]
    if not all(type(each) in {int, float} and math.isfinite(each) for each in numbers):
        return None
    if None in vectors or not all(str(name).isdecimal() for name in margins):
        return None
    model, p0, p1, p2, p3 = (each for each in vectors if each is not None)
    known = {
        min(LONGEST_PROMPT_CLASS, int(name)): min(HIGHEST, max(LOWEST, margin))
        for name, margin in margins.items()
    }
    error = min(1.0, max(0.0, float(error or 0)))
    spread = min(LARGEST, max(0.0, float(spread)))
    return Learnt(model, (p0, p1, p2, p3), error, known, spread)


def _vector(raw: object) -> Vector | None:
    if not isinstance(raw, list) or len(raw) != 4:
        return None
    if not all(type(each) in {int, float} and math.isfinite(each) for each in raw):
        return None
    a, b, c, d = (float(each) for each in raw)
    return a, b, c, d
