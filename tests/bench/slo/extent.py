"""How much the bench runs: all of it, or just enough to see that it works."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Extent:
    """How much is run: seeds, windows, and the points of the sweep.

    The sweep runs on the first seed with its own window; its best `finalists` then run on every
    seed, and the best of those over all seeds is the best static setting. `deadline_shares` are of
    the TTFT SLO, for the points with relegation.
    """

    seeds: tuple[int, ...]
    window_s: float
    sweep_window_s: float
    budgets: tuple[int, ...]
    running: tuple[int, ...]
    finalists: int
    deadline_shares: tuple[float, ...]
    unloaded_requests: int
    warm_up: int
    overload_shares: tuple[float, ...]


FULL: Final = Extent(
    seeds=(1, 2, 3),
    window_s=12.0,
    sweep_window_s=6.0,
    budgets=(128, 192, 256, 384, 512, 1024),
    running=(16, 32, 64),
    finalists=3,
    deadline_shares=(0.75, 0.95),
    unloaded_requests=12,
    warm_up=6,
    overload_shares=(0.9, 1.0, 1.2, 1.5),
)
QUICK: Final = Extent(
    seeds=(1,),
    window_s=3.0,
    sweep_window_s=2.0,
    budgets=(128, 256),
    running=(64,),
    finalists=1,
    deadline_shares=(0.95,),
    unloaded_requests=6,
    warm_up=4,
    overload_shares=(1.0, 1.5),
)
