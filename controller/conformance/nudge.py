"""Changes small enough for an engine that serves."""

from typing import Final

from controller.engines.contract import Knob

RATIO_STEP: Final = 0.01

ZERO_IS_OFF: Final = frozenset({"ttft_deadline_ms", "prefill_tokens_per_s", "max_deferral_ms"})
"""Knobs with which 0 means without: one above it is the largest change there is, and the highest
value (nobody is ever late, prompts take no time, an hour of patience) the smallest."""


def nudged(knob: Knob, steps: int = 1) -> float:
    """A value `steps` small steps from the start, down where there is room; the start if nowhere.

    Down costs an engine a request or a token of its batch, up could cost it memory.
    """
    if knob.start == 0 and knob.name in ZERO_IS_OFF:
        return max(knob.start, knob.maximum - steps + 1)
    size = RATIO_STEP if knob.unit == "ratio" else 1
    for value in (knob.start - steps * size, knob.start + steps * size):
        if knob.minimum <= value <= knob.maximum:
            return round(value, 6) if knob.unit == "ratio" else int(value)
    return knob.start


def outside(knob: Knob) -> tuple[float, float]:
    """The values next to the range, on either side."""
    return knob.minimum - 1, knob.maximum + 1
