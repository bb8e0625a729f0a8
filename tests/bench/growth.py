"""Whether a figure of a service that is the same all the time grows. Pure functions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

WARM_UP_SHARE: Final = 0.2
"""Of the samples, the first: what is kept of the past fills meanwhile, and is not looked at."""

LEAST_SAMPLES: Final = 20


@dataclass(frozen=True, slots=True)
class Allowance:
    """By how much a figure may grow: a share of what it was, and so much besides."""

    share: float = 0.0
    more: float = 0.0


@dataclass(frozen=True, slots=True)
class Growth:
    """A figure's medians in the first and in the last quarter, and the most the last may be."""

    name: str
    first: float
    last: float
    most: float

    @property
    def too_much(self) -> bool:
        """Whether it grew by more than is allowed."""
        return self.last > self.most


def growth(
    samples: Sequence[Mapping[str, float]], allowed: Mapping[str, Allowance]
) -> list[Growth]:
    """How each figure that is `allowed` something grew; `ValueError` with too few samples."""
    if len(samples) < LEAST_SAMPLES:
        raise ValueError(f"{len(samples)} samples are too few, {LEAST_SAMPLES} are needed")
    looked_at = samples[int(len(samples) * WARM_UP_SHARE) :]
    quarter = len(looked_at) // 4
    found = []
    for name, allowance in allowed.items():
        values = [sample[name] for sample in looked_at]
        first, last = median(values[:quarter]), median(values[-quarter:])
        found.append(Growth(name, first, last, first * (1 + allowance.share) + allowance.more))
    return found
