"""How long a step may be planned: by how far steps overrun the time that their batch takes.

A step model tells the mean. What a machine shared with others, a garbage collector or a throttled
clock adds comes on top, and one late step makes a gap late for everybody who runs. So a step is
planned for a share of the gap SLO that follows from how unevenly the engine's steps come.
"""

import math
from typing import Final

LONG: Final = 2.0
"""A step counts if its batch takes this many times an empty one's time: what is added to a short
step is no share of a long one."""

WEIGHT: Final = 1 / 500
"""Of a new step in the mean square: the last 500 long steps count. A share that jumps costs more
than one that is a little off, for the sequences that run have to become fewer first."""

LARGEST: Final = math.log(2)
"""A step that took twice its batch's time or more was stopped, not uneven: it counts as this. The
margin (`controller.trim`) answers for those."""

UNKNOWN: Final = 0.12
"""Spread of an engine of which nothing is known: that of the engines seen so far on a machine that
is shared was 0.08 to 0.17."""

LEAST: Final = 0.02
_STEP: Final = 0.02
_MOST_STEPS: Final = 60


def spread_after(spread: float, ratio: float) -> float:
    """The standard deviation of log(measured / predicted) after one more long step."""
    if not 0 < ratio < math.inf:
        return spread
    off = min(abs(math.log(ratio)), LARGEST)
    return math.sqrt(spread * spread + WEIGHT * (off * off - spread * spread))


def planned_share(spread: float, base_share: float, gaps: float) -> float:
    """The share of the gap SLO that a step may be planned to take, for the most good streams.

    Steps planned for a share s serve 1 − β/s of what endless ones would: n/t with n = (t − a)/c
    (`laws.capacity_rps`), β = a/SLO. Step times are log-normal around the plan, so one overruns by
    1/s with P(s) = Q(−ln s/σ), and a stream of g gaps has no late one with (1 − P(s))^g. Taken is
    the s with the largest product of the two; σ is `spread`, β `base_share`, g `gaps`. Where even
    an empty step takes the SLO nothing can be served in time, and the largest share serves most.
    """
    scale = max(spread, LEAST) * math.sqrt(2)

    def log_good(at: int) -> float:
        off = at * _STEP
        served = 1 - base_share * math.exp(off)
        if served <= 0:
            return -math.inf
        return math.log(served) + gaps * math.log1p(-0.5 * math.erfc(off / scale))

    # both factors are log-concave, so there is one peak, and its side shows at any point
    low, high = 0, _MOST_STEPS - 1
    while low < high:
        at = (low + high) // 2
        if log_good(at) < log_good(at + 1):
            low = at + 1
        else:
            high = at
    return math.exp(-low * _STEP)
