"""A plain AIMD on the P99 gap: what one would write without a model (Chiu and Jain 1989).

Its gaps are those that the engine's steps make: every sequence that generates waits from the end
of one step to the end of the next.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Final

from controller.engines.page import Step

CUT: Final = 0.7
RAISE: Final = 32
"""Tokens added to the budget each time the gap is met."""

EVERY_S: Final = 0.25
LEAST_GAPS: Final = 20
"""Fewer say nothing of a P99."""


@dataclass(frozen=True, slots=True)
class Budget:
    """The token budget held, and since when (CLOCK_MONOTONIC): older gaps are another's."""

    tokens: float
    since_ns: int


def p99_gap_ms(steps: Sequence[Step], since_ns: int) -> float | None:
    """The P99 of the gaps in ms that ended with `steps`, of those that began after `since_ns`.

    None where there are too few. Where steps are missing in between, nothing is known of the gap.
    """
    gaps = sorted(
        ((step.end_ns - before.end_ns) / 1e6, step.decode_seqs)
        for before, step in pairwise(steps)
        if before.end_ns >= since_ns and step.index == before.index + 1
    )
    total = sum(count for _, count in gaps)
    if total < LEAST_GAPS:
        return None
    counts = accumulate(count for _, count in gaps)
    return next(gap for (gap, _), seen in zip(gaps, counts, strict=True) if seen >= 0.99 * total)


def following(
    held: Budget, p99_ms: float | None, slo_ms: float, now_ns: int, least: float, most: float
) -> Budget:
    """The next budget: × 0.7 when the P99 gap is over the SLO, a little more when it is not."""
    if p99_ms is None:
        return held
    if p99_ms > slo_ms:
        return Budget(max(least, held.tokens * CUT), now_ns)
    return Budget(min(most, held.tokens + RAISE), held.since_ns)
