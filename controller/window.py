"""How long an engine that batches by window should gather requests: 5 to 200 ms in steps of 1 ms.

For engines that close a batch when its window ends, as the text's does (seeds B1, B10). One that
goes on filling the next batch while it computes, as Triton's dynamic batcher does, gathers what it
needs by itself under load; there a window costs nothing while every instance is busy, and all that
it can do is make the first request of a batch late. Continuous batching has none.
`controller.window_choice` says when a change is worth its price.
"""

import math
from dataclasses import dataclass
from typing import Final

LOWEST_MS: Final = 5
HIGHEST_MS: Final = 200
"""The range of seed B1, which also gives the step of 1 ms."""


@dataclass(frozen=True, slots=True)
class BatchTime:
    """A batch of B requests takes `base_ms` + `item_ms`·B."""

    base_ms: float
    item_ms: float

    def of(self, requests: float) -> float:
        """How long a batch of so many takes, in ms."""
        return self.base_ms + self.item_ms * requests


@dataclass(frozen=True, slots=True)
class Window:
    """The window to set, whether its batches keep up with the arrivals, and meet the SLO."""

    ms: int
    keeps_up: bool
    meets_slo: bool


def needed_window_ms(batch: BatchTime, arrival_rps: float) -> float:
    """The smallest window whose batches keep up; below zero where none is needed.

    A window opens with its first request, so a batch is of B = 1 + λ·W requests, and one comes
    every W + 1/λ. It keeps up if T(B) = s + k·B is no longer than that:

        W ≥ (s + k − 1/λ) / (1 − k·λ)

    with λ in requests a ms. Infinity from k·λ = 1 on: no batch is large enough. The same reasoning
    as the rate floor's (`laws.rate_floor`).
    """
    rate = arrival_rps / 1e3
    if rate <= 0:
        return -math.inf
    share = batch.item_ms * rate
    alone_ms = batch.of(1) - 1 / rate
    if share >= 1:
        return math.inf
    return alone_ms / (1 - share)


def allowed_window_ms(
    batch: BatchTime, arrival_rps: float, latency_slo_ms: float, margin: float
) -> float:
    """The largest window after which its first request still meets the SLO; below zero for none.

    That request waits W, and then T(1 + λ·W) for its batch:

        W + T(1 + λ·W) ≤ m·SLO, so W ≤ (m·SLO − s − k) / (1 + k·λ)

    The batch before is over by then if the window keeps up; `margin` m leaves room for the times
    when it is not.
    """
    left_ms = margin * latency_slo_ms - batch.of(1)
    return left_ms / (1 + batch.item_ms * max(0.0, arrival_rps) / 1e3)


def batch_window(
    batch: BatchTime,
    arrival_rps: float,
    latency_slo_ms: float,
    margin: float = 0.85,
    largest_batch: float = math.inf,
) -> Window:
    """The smallest window that keeps up with `arrival_rps`, within what the SLO and a batch allow.

    `arrival_rps` is to be a planning quantile, no mean: a window that keeps up with the mean falls
    behind half of the time. A batch of `largest_batch` leaves at once, so no window need be longer
    than it takes to fill. Where the load can't be kept up with, the longest window allowed serves
    the most; the rest has to be refused at the door.
    """
    arrival_rps = min(max(0.0, arrival_rps), 1e9) if not math.isnan(arrival_rps) else 0.0
    allowed_ms = allowed_window_ms(batch, arrival_rps, latency_slo_ms, margin)
    fills_ms = (largest_batch - 1) * 1e3 / arrival_rps if arrival_rps > 0 else math.inf
    most_ms = min(math.floor(_in_range(allowed_ms)), math.ceil(_in_range(fills_ms)))
    window_ms = min(math.ceil(_in_range(needed_window_ms(batch, arrival_rps))), most_ms)
    reached = min(largest_batch, 1 + arrival_rps * window_ms / 1e3)
    return Window(
        window_ms,
        keeps_up=arrival_rps / 1e3 * batch.of(reached) <= reached * (1 + 1e-9),
        meets_slo=window_ms <= allowed_ms,
    )


def _in_range(ms: float) -> float:
    return min(max(ms, LOWEST_MS), HIGHEST_MS)
