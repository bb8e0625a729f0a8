"""What users met under two policies in turn: slices of time, and pairs of them."""

from collections.abc import Sequence
from dataclasses import dataclass

from bpf.histogram import EMPTY, Histogram


@dataclass(frozen=True, slots=True)
class Tally:
    """What users met in some time. `streams` are those that began in it and whose fate is known.

    Of them `bad` missed the SLO or failed, `errors` failed.
    """

    streams: int = 0
    bad: int = 0
    errors: int = 0
    ttft: Histogram = EMPTY
    gap: Histogram = EMPTY

    def plus(self, other: "Tally") -> "Tally":
        """Both together."""
        return Tally(
            self.streams + other.streams,
            self.bad + other.bad,
            self.errors + other.errors,
            self.ttft.plus(other.ttft),
            self.gap.plus(other.gap),
        )


@dataclass(frozen=True, slots=True)
class Pair:
    """A slice under each policy. The `others` are engines that kept the old one in both."""

    old: Tally
    new: Tally
    others_old: Tally = Tally()
    others_new: Tally = Tally()


def total(pairs: Sequence[Pair]) -> Pair:
    """All pairs as one."""
    sums = [Tally()] * 4
    for pair in pairs:
        parts = (pair.old, pair.new, pair.others_old, pair.others_new)
        sums = [so_far.plus(part) for so_far, part in zip(sums, parts, strict=True)]
    return Pair(*sums)
