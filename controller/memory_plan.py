"""How many requests memory holds: the running cap that stands before memory runs short.

No look comes in time for a burst: what is let in at once may take all that is left before the next.
What a request takes by its end is learnt while few run, so the cap is there when many come. Pure.
"""

import math
from typing import Final

PLANNED: Final = 0.9
"""Share of the memory for requests that is planned with: what one takes is known to about that, by
a fit over readings that scatter."""

BAND: Final = 0.25
"""A cap moves when what fits is so much of a request past the next whole number: what fits goes
with every reading."""

GROWTH: Final = 1.25
"""The most that a cap is raised at once: what it let in has to show first."""


def room_for(left: float, per_request: float | None, had: float, most_had: float) -> float:
    """How many requests may run, each to its end; infinity where that is not known.

    `left` bytes can be had, a request takes `per_request` by its end, and those that run have as
    much as `had` of them. As many as `most_had` fitted before and do again: engines keep what
    requests gave back.
    """
    if not per_request:
        return math.inf
    return max(most_had, PLANNED * (had + max(0.0, left) / per_request))


def moved(cap: float, fits: float, least: float, most: float) -> float:
    """`cap`, gone on to what `fits`: down at once, up by a step, between `least` and `most`."""
    if fits < cap - BAND:
        return float(max(least, math.floor(fits)))
    if fits >= cap + 1 + BAND:
        grown = min(max(cap + 1, GROWTH * cap), fits - BAND, most)
        return float(max(cap, math.floor(grown)))
    return cap
