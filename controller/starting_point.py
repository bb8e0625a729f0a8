"""Batch-like knobs of engines of which no model is known: where to start, and how to step on.

Both laws are the text's (seeds B5 and B14). They know nothing of the engine; where steps can be
seen, the step model's laws (`controller.laws`) take over.
"""

from dataclasses import dataclass
from typing import Final

LEAST_BATCH: Final = 1.0
MOST_BATCH: Final = 512.0

LEAST_RATIO: Final = 0.5
MOST_RATIO: Final = 2.0

NO_VARIANCE: Final = 1e-6
"""Added to the variance, as in the text, so that none divides by none."""

LEAST_KV: Final = 0.4
MOST_KV: Final = 0.95


def noise_step(
    batch: float, variance: float, target_variance: float, learning_rate: float = 0.05
) -> float:
    """The next batch size: B ← clamp(B·(1 + lr·(ratio − 1)), 1, 512), seed B5.

    ratio = clamp(target / variance, 0.5, 2). The text measures the variance of gradients in
    training; here it is that of chunk gaps, whose target is the jitter target squared (same unit,
    ms²). Keep the result as it is and round only what is written to the knob: the text's code
    truncates B at each step, and then a batch below 20 can't grow (10 → 10.5 → 10) while any can
    shrink.
    """
    ratio = min(max(target_variance / (max(variance, 0.0) + NO_VARIANCE), LEAST_RATIO), MOST_RATIO)
    return min(max(batch * (1 + learning_rate * (ratio - 1)), LEAST_BATCH), MOST_BATCH)


def kv_cache_ratio(max_batch: float, prefill_chunk: float) -> float:
    """Share of the free memory for the KV cache that goes with a batch and a chunk, seed B14.

    ratio = clamp(base·chunk / 1024, 0.4, 0.95), base = 0.7 + 0.2·min(batch / 16, 1). The text's own
    table disagrees: for 4 and 512 it has 0.6 where the formula gives 0.4 (0.375 clamped), for 32
    and 2048 0.9 where it gives 0.95 (1.8 clamped).
    """
    base = 0.7 + 0.2 * min(max_batch / 16, 1.0)
    return min(max(base * prefill_chunk / 1024, LEAST_KV), MOST_KV)


@dataclass(frozen=True, slots=True)
class StartingPoint:
    """Three knobs that belong together: sequences at once, prompt tokens a step, KV share."""

    max_running: int
    long_prefill_tokens: int
    kv_cache_ratio: float


INTERACTIVE: Final = StartingPoint(4, 512, 0.6)
THROUGHPUT: Final = StartingPoint(32, 2048, 0.9)
"""The rows of the text's table (seed B14)."""

INTERACTIVE_GAP_MS: Final = 120.0
"""Longer gaps than this are felt in a dialogue (seed A16's alert)."""


def starting_point(gap_slo_ms: float) -> StartingPoint:
    """Where to start an engine that owes this chunk gap: the table's row for its kind of load.

    The table, not the formula, because it is what the author measured. Which row a gap SLO belongs
    to is ours.
    """
    return INTERACTIVE if gap_slo_ms <= INTERACTIVE_GAP_MS else THROUGHPUT
