"""The histograms the kernel fills: log-linear buckets, and what can be said from them.

Eight buckets an octave from 2^10 ns to 2^36 ns, one below and one above. A bucket's middle is
within 6.25% of every value in it (half of an eighth), from 2^10 ns (about 1 µs) to 68 s.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import sub
from typing import Final

FIRST_BIT: Final = 10
LAST_BIT: Final = 36
PER_OCTAVE: Final = 8
SLOTS: Final = 2 + (LAST_BIT - FIRST_BIT) * PER_OCTAVE


def slot_of(value_ns: int) -> int:
    """The slot a value falls into: the same arithmetic as `histogram_slot` in maps.h."""
    if value_ns < 1 << FIRST_BIT:
        return 0
    if value_ns >= 1 << LAST_BIT:
        return SLOTS - 1
    bit = value_ns.bit_length() - 1
    return 1 + (bit - FIRST_BIT) * PER_OCTAVE + (value_ns >> (bit - 3) & 7)


def upper_bound_ns(slot: int) -> float:
    """The first value above a slot; infinity for the overflow slot."""
    if slot == SLOTS - 1:
        return float("inf")
    octave, eighth = divmod(slot, PER_OCTAVE)
    return (PER_OCTAVE + eighth) << (octave + FIRST_BIT - 3)


def middle_ns(slot: int) -> float:
    """The value that stands for a slot; the overflow slot stands at its lower edge."""
    if slot == 0:
        return (1 << FIRST_BIT) / 2
    low = upper_bound_ns(slot - 1)
    return low if slot == SLOTS - 1 else (low + upper_bound_ns(slot)) / 2


UPPER_BOUNDS_NS: Final = tuple(upper_bound_ns(slot) for slot in range(SLOTS))


@dataclass(frozen=True, slots=True)
class Histogram:
    """Counts by slot, and the true sum of what was counted."""

    slots: tuple[int, ...]
    sum_ns: int

    @property
    def count(self) -> int:
        """How many values were counted."""
        return sum(self.slots)

    def since(self, earlier: "Histogram") -> "Histogram":
        """What was counted after `earlier` was read."""
        if earlier is self:
            return EMPTY
        return Histogram(
            tuple(map(sub, self.slots, earlier.slots)),
            self.sum_ns - earlier.sum_ns,
        )

    def plus(self, other: "Histogram") -> "Histogram":
        """What both counted."""
        slots = tuple(one + two for one, two in zip(self.slots, other.slots, strict=True))
        return Histogram(slots, self.sum_ns + other.sum_ns)

    def quantile_ns(self, q: float) -> float | None:
        """The q-quantile to within a slot, or None when nothing was counted."""
        totals = list(accumulate(self.slots))
        if not totals[-1]:
            return None
        # the smallest slot that has the rank in it; rank 1 is the least value
        return middle_ns(bisect_left(totals, max(1, q * totals[-1])))

    def cumulative(self, bounds_ns: Sequence[int]) -> list[int]:
        """How many values were at or below each bound, by whole slots.

        A bound inside a slot counts the slots that end at or below it.
        """
        totals = [0, *accumulate(self.slots)]
        return [totals[slot_of(bound)] for bound in bounds_ns]


EMPTY: Final = Histogram((0,) * SLOTS, 0)
