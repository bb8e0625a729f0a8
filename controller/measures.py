"""Two policies' pairs of slices compared, measure by measure.

Slices of a pair come in an order that was drawn. Were the policies equal, each pair would be a fair
coin whatever the load does; that is what the sign test rests on. The rule is that of seed row B16,
P95 at 1.5 times the baseline (120 ms against 80) for as long as the trial lasts or errors above 2%
and above the baseline's, and beside it the share of bad streams.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from bpf.histogram import Histogram
from controller.pairs import Pair, Tally, total

P95_RATIO: Final = 1.5
ERROR_SHARE: Final = 0.02
"""Both of B16."""

P95_LEAST_NS: Final = 5e6
"""A P95 that grew by less is no harm, by whatever factor."""

BAD_LEAST: Final = 0.02
"""A share of bad streams that grew by less is none either."""

NOISE_P: Final = 0.01
"""A difference that chance makes of so few streams no more often than this is none of chance."""

LOAD_P: Final = 0.01
"""Pairs that equal policies split so unevenly no more often than this are the policy's doing."""

DOUBT_P: Final = 0.3
"""Pairs split as unevenly as this leave a doubt."""

MARGIN: Final = 0.10
"""There is a doubt unless it is 95% sure that a share grew by no more than this."""

SURE_Z: Final = 1.645
"""The 95% quantile of the normal distribution."""

CLEAR_PAIRS: Final = 5
CLEAR_SHARE: Final = 0.2
CLEAR_RATIO: Final = 3.0
CLEAR_P: Final = 0.001
"""Harm is clear when it is this large, and was harm in every pair of at least so many."""

P95_SAMPLES: Final = 20
"""Fewer values have no 95th percentile of their own."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One measure: `text` is the comparison in words."""

    text: str
    worse: bool = False
    clear: bool = False
    doubtful: bool = False
    better: bool = False


def findings(pairs: Sequence[Pair]) -> list[Finding]:
    """Every measure, the share of bad streams first."""
    whole = total(pairs)
    return [
        _share(pairs, whole, "bad streams", lambda tally: tally.bad, _is_bad),
        _share(pairs, whole, "errors", lambda tally: tally.errors, _is_erring),
        _p95(pairs, whole, "TTFT", lambda tally: tally.ttft),
        _p95(pairs, whole, "gap", lambda tally: tally.gap),
    ]


def sign_p(wins: int, losses: int) -> float:
    """How often so many heads or more come of `wins + losses` fair coins."""
    coins = wins + losses
    return float(sum(math.comb(coins, heads) for heads in range(wins, coins + 1)) / 2**coins)


def _is_bad(grew: float, share: float) -> bool:
    return grew >= BAD_LEAST


def _is_erring(grew: float, share: float) -> bool:
    return grew > 0 and share > ERROR_SHARE


def _share(
    pairs: Sequence[Pair],
    whole: Pair,
    name: str,
    count: Callable[[Tally], int],
    matters: Callable[[float, float], bool],
) -> Finding:
    """Compare the shares of streams that `count` counts, by a two-proportion test.

    Its standard error is the larger of two: of independent streams, pooled as for equal shares,
    and of slices of which each has its own luck (streams of one burst share their fate).
    """
    grew = _growth(whole, count)
    if grew is None:
        return Finding(f"{name}: not seen under both policies")
    before, share = (count(each) / each.streams for each in (whole.old, whole.new))
    error = max(_pooled_error(whole, count), _sliced_error(pairs, whole, count))
    wins, losses = _split(_growth(pair, count) for pair in pairs)
    up, down = _tail(grew, error), _tail(-grew, error)
    bad = matters(grew, share)
    text = (
        f"{name} {before:.1%} → {share:.1%}, more in {wins} and fewer in"
        f" {losses} of {len(pairs)} pairs"
    )
    worse = bad and up <= NOISE_P and sign_p(wins, losses) <= LOAD_P
    return Finding(
        text,
        worse=worse,
        clear=grew >= CLEAR_SHARE and up <= CLEAR_P and not losses and wins >= CLEAR_PAIRS,
        doubtful=not worse and ((bad and up <= NOISE_P) or grew + SURE_Z * error > MARGIN),
        better=grew <= -BAD_LEAST and down <= NOISE_P and sign_p(losses, wins) <= LOAD_P,
    )


def _p95(
    pairs: Sequence[Pair], whole: Pair, name: str, of: Callable[[Tally], Histogram]
) -> Finding:
    """Compare 95th percentiles; that it is no chance is told by the pairs alone."""
    old, new = of(whole.old).quantile_ns(0.95), of(whole.new).quantile_ns(0.95)
    ratio = _ratio(whole, of)
    if old is None or new is None or ratio is None:
        return Finding(f"{name}: not seen under both policies")
    ratios = (_ratio(pair, of) for pair in pairs)
    wins, losses = _split(None if each is None else each - 1 for each in ratios)
    text = (
        f"P95 of the {name} {_ms(old)} → {_ms(new)} ms, more in {wins} and less in {losses} of"
        f" {len(pairs)} pairs"
    )
    grown = new - old >= P95_LEAST_NS
    luck = sign_p(wins, losses)
    known = min(of(whole.old).count, of(whole.new).count) >= P95_SAMPLES
    worse = known and grown and ratio >= P95_RATIO and luck <= LOAD_P
    return Finding(
        text,
        worse=worse,
        clear=known and grown and ratio >= CLEAR_RATIO and not losses and wins >= CLEAR_PAIRS,
        doubtful=not worse and grown and ratio >= P95_RATIO and luck <= DOUBT_P,
        better=ratio <= 1 / P95_RATIO
        and old - new >= P95_LEAST_NS
        and sign_p(losses, wins) <= LOAD_P,
    )


def _ms(value_ns: float) -> str:
    ms = value_ns / 1e6
    return f"{ms:.0f}" if ms >= 100 else f"{ms:.3g}"


def _split(differences: Iterable[float | None]) -> tuple[int, int]:
    """In how many pairs there was more of it, and in how many less; the others say nothing."""
    values = [value for value in differences if value is not None]
    return sum(value > 0 for value in values), sum(value < 0 for value in values)


def _growth(pair: Pair, count: Callable[[Tally], int]) -> float | None:
    """By how much a share grew, less what it grew by with the others, who kept the old policy."""
    if not (pair.old.streams and pair.new.streams):
        return None
    grew = count(pair.new) / pair.new.streams - count(pair.old) / pair.old.streams
    return grew - _excuse(pair, count)


def _excuse(pair: Pair, count: Callable[[Tally], int]) -> float:
    old, new = pair.others_old, pair.others_new
    if not (old.streams and new.streams):
        return 0.0
    return max(0.0, count(new) / new.streams - count(old) / old.streams)


def _ratio(pair: Pair, of: Callable[[Tally], Histogram]) -> float | None:
    """The same for a 95th percentile: by what factor it grew."""
    old, new, others_old, others_new = (
        of(tally).quantile_ns(0.95)
        for tally in (pair.old, pair.new, pair.others_old, pair.others_new)
    )
    if old is None or new is None:
        return None
    return new / old / (max(1.0, others_new / others_old) if others_old and others_new else 1.0)


def _pooled_error(whole: Pair, count: Callable[[Tally], int]) -> float:
    def variance(one: Tally, other: Tally) -> float:
        if not (one.streams and other.streams):
            return 0.0
        share = (count(one) + count(other)) / (one.streams + other.streams)
        return share * (1 - share) * (1 / one.streams + 1 / other.streams)

    excused = _excuse(whole, count) > 0
    others = variance(whole.others_old, whole.others_new) if excused else 0.0
    return math.sqrt(variance(whole.old, whole.new) + others)


def _sliced_error(pairs: Sequence[Pair], whole: Pair, count: Callable[[Tally], int]) -> float:
    """For each side √(Σ(xₖ − p·nₖ)² · K/(K − 1)) / N, then both together.

    The standard error of a ratio of sums over K slices (Cochran, Sampling Techniques, 1977).
    """

    def variance(slices: Sequence[Tally], sum_: Tally) -> float:
        if len(slices) < 2 or not sum_.streams:
            return 0.0
        share = count(sum_) / sum_.streams
        spread = sum((count(each) - share * each.streams) ** 2 for each in slices)
        return spread * len(slices) / (len(slices) - 1) / sum_.streams**2

    old = variance([pair.old for pair in pairs], whole.old)
    return math.sqrt(old + variance([pair.new for pair in pairs], whole.new))


def _tail(difference: float, error: float) -> float:
    """How often chance alone makes a difference as large, for a normal standard error."""
    if error <= 0:
        return 0.0 if difference > 0 else 1.0
    return math.erfc(difference / error / math.sqrt(2)) / 2
