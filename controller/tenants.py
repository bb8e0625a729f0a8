"""Weights of tenants that share an engine or its CPU: who is behind gets more (seeds A6, B15)."""

from typing import Final

CPU_WEIGHTS: Final = (1, 10_000)
"""Range of a cgroup v2 cpu.weight."""

CEILING: Final = 1.5
"""A weight is at most this many times its base."""

FULL_MEMORY: Final = 85.0
"""Per cent of the memory in use above which a tenant is corrected."""

MEMORY_STEP: Final = 0.02
"""By this share of its weight for each further per cent."""


def attainment_ratio(target_ms: float, actual_ms: float) -> float:
    """min(1, target / actual): 1 where the latency meets its target, 0.5 where it takes twice."""
    return min(1.0, target_ms / max(actual_ms, 1e-6))


def tenant_weight(base: int, ratio: float) -> int:
    """max(1, int(base·(1.5 − 0.5·r))): from `base` where the SLO holds to 1.5 times where it fails.

    What the text says in words (seed A6): the lower the attainment, the higher the weight, 150% at
    the most, 1 at the least. `ratio` is `attainment_ratio`. Its code (`written_weight`) does the
    opposite.
    """
    return max(1, int(base * (CEILING - (CEILING - 1) * _share(ratio))))


def written_weight(base: int, ratio: float) -> int:
    """max(1, int(base·1.5·r)), as the text's code has it.

    It gives least to who is furthest behind, and half as much again to who needs nothing. Its table
    follows the code: a tenant of base 100 at r = 0.9 gets 135, one of base 50 at r = 0.33 gets 25.
    For comparison only.
    """
    return max(1, int(base * CEILING * _share(ratio)))


def memory_corrected(weight: float, memory_use_percent: float) -> float:
    """weight·(1 − max(0, use − 85)·0.02), not below zero (seed B15).

    Who holds so much of the memory that others can't be admitted gets less of the rest; at 100% it
    is 0.7 of its weight.
    """
    over = max(0.0, memory_use_percent - FULL_MEMORY)
    return weight * max(0.0, 1 - over * MEMORY_STEP)


def cpu_weight(base: int, ratio: float, memory_use_percent: float = 0.0) -> int:
    """The cgroup weight of a tenant: both laws, within what cgroup v2 takes."""
    least, most = CPU_WEIGHTS
    return min(
        max(int(memory_corrected(tenant_weight(base, ratio), memory_use_percent)), least), most
    )


def _share(ratio: float) -> float:
    return min(max(ratio, 0.0), 1.0)
