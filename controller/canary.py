"""The canary's verdict: whether a policy on trial does harm beside the old one.

Everything is judged by the old policy's SLO: a lax new one can't hide harm.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from controller.measures import findings
from controller.pairs import Pair, total

LEAST_STREAMS: Final = 30
"""Under each policy, to say anything good of the new one."""


class Kind(StrEnum):
    """How a trial stands. Adopted are `better` and `no worse`; all others end in the old policy."""

    WAITING = "waiting"
    BETTER = "better"
    NO_WORSE = "no worse"
    WORSE = "worse"
    TOO_LITTLE = "too little traffic"
    UNCLEAR = "unclear"

    @property
    def is_good(self) -> bool:
        """Whether the new policy is to be adopted."""
        return self in {Kind.BETTER, Kind.NO_WORSE}


@dataclass(frozen=True, slots=True)
class Verdict:
    """How the trial stands, and why, in words."""

    kind: Kind
    reason: str


def judge(pairs: Sequence[Pair], planned: int, most: int) -> Verdict:
    """How a trial of `planned` pairs stands after `pairs`; after `most` of them it is over."""
    found = findings(pairs)
    worse = [each.text for each in found if each.clear or (each.worse and len(pairs) >= planned)]
    if worse:
        return Verdict(Kind.WORSE, "; ".join(worse))
    if len(pairs) < planned:
        return Verdict(Kind.WAITING, f"{len(pairs)} of {planned} pairs of slices")
    over = len(pairs) >= most
    whole = total(pairs)
    fewest = min(whole.old.streams, whole.new.streams)
    if fewest < LEAST_STREAMS:
        reason = f"{fewest} streams under one of the policies, {LEAST_STREAMS} are needed"
        return Verdict(Kind.TOO_LITTLE if over else Kind.WAITING, reason)
    doubts = [each.text for each in found if each.doubtful]
    if doubts:
        return Verdict(Kind.UNCLEAR if over else Kind.WAITING, "; ".join(doubts))
    better = [each.text for each in found if each.better]
    if better:
        return Verdict(Kind.BETTER, "; ".join(better))
    return Verdict(Kind.NO_WORSE, found[0].text)


def together(verdicts: Sequence[Verdict]) -> Verdict:
    """The verdict on engines that were tried each by itself: harm to one is enough.

    One without traffic has no voice where another has.
    """
    order = (Kind.WORSE, Kind.WAITING, Kind.UNCLEAR, Kind.BETTER, Kind.NO_WORSE, Kind.TOO_LITTLE)
    return min(verdicts, key=lambda verdict: order.index(verdict.kind))
