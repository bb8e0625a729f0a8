"""The margin under the gap SLO, trimmed by what really came of it: layer 2 of the loop.

How much room a planned step needs below the gap SLO depends also on what the step model can't see:
the way through the front end and the kernel, steps longer than their batch. So m follows the
violation rate, by a PI controller; over its start it is what `controller.core.step_margin` trims
the planned share by.
"""

from dataclasses import dataclass
from typing import Final

START: Final = 0.85
LOWEST: Final = 0.70
HIGHEST: Final = 0.95
"""The range is the design's (section 6.2)."""

PROPORTIONAL: Final = 0.01
INTEGRAL_PER_S: Final = 0.005
"""From the start to the top in 20 s without a violation, and to the bottom in 6 s of many."""

LOWEST_ERROR: Final = -4.0
"""More than five times as many violations as allowed count as five times."""

LONGEST_S: Final = 5.0
"""A pause of the loop, or a jump of its clock, integrates no longer than this."""


@dataclass(frozen=True, slots=True)
class Trim:
    """`margin` is m, of which `START` leaves the plan as it is; `integral` is what the PI keeps."""

    margin: float = START
    integral: float = 0.0


def trim(
    state: Trim,
    violations: int,
    chunks: int,
    attainment: float,
    dt_s: float,
    pressed: bool = True,
) -> Trim:
    """The margin after `dt_s` seconds of which the last `chunks` gaps had `violations` over SLO.

    m = 0.85 + Kp·e + I, I ← I + Ki·e·dt, kept within 0.70…0.95 (design section 6, layer 2). The
    integral is frozen where m is at an end and the error pushes on, and everything is without
    chunks. `attainment` is the share of gaps that have to meet the SLO, so that
    x = (1 − attainment)·chunks violations are allowed and

        e = (x − violations) / (x + 1), at least −4

    This is (allowed − rate) / allowed where the rate starts from as many chunks as allow one
    violation: a few chunks prove little and move the margin little. Unless requests are `pressed`
    for time, e is at most 0: longer steps would be of use to nobody.
    """
    if chunks <= 0 or not dt_s > 0:
        return state
    allowed = min(max(1 - attainment, 0.0), 1.0) * chunks
    seen = min(max(violations, 0), chunks)
    error = max((allowed - seen) / (allowed + 1), LOWEST_ERROR)
    if not pressed:
        error = min(error, 0.0)
    wanted = START + PROPORTIONAL * error + state.integral
    pushes_on = (wanted >= HIGHEST and error > 0) or (wanted <= LOWEST and error < 0)
    integral = state.integral
    if not pushes_on:
        integral += INTEGRAL_PER_S * error * min(dt_s, LONGEST_S)
    margin = min(max(START + PROPORTIONAL * error + integral, LOWEST), HIGHEST)
    return Trim(margin, integral)
