"""Pairs of slices as loads of several kinds would make them under two policies."""

import math
import random
from dataclasses import dataclass

from bpf.histogram import SLOTS, Histogram, slot_of
from controller.canary import Kind, Verdict, judge
from controller.pairs import Pair, Tally

SLO_MS = 500
PLANNED, MOST = 9, 27


@dataclass(frozen=True, slots=True)
class Load:
    """Streams a second, and how much slices differ by themselves: 0, or e to the power of it."""

    per_s: float = 5.0
    unsteady: float = 0.0


@dataclass(frozen=True, slots=True)
class Policy:
    """What a policy does: every latency this many times as long, and this share of failures."""

    slower: float = 1.0
    errors: float = 0.0


EQUAL = Policy()


def histogram(values_ns: list[float]) -> Histogram:
    slots = [0] * SLOTS
    for value in values_ns:
        slots[slot_of(int(value))] += 1
    return Histogram(tuple(slots), int(sum(values_ns)))


def tally(rng: random.Random, load: Load, policy: Policy, seconds: float = 7.0) -> Tally:
    """What one slice shows: Poisson arrivals, a TTFT of 80 ms or so and gaps of 20 ms."""
    level = policy.slower * math.exp(rng.gauss(0, load.unsteady))
    per_s = load.per_s * math.exp(rng.gauss(0, load.unsteady))
    count, at_s = 0, rng.expovariate(per_s)
    while at_s < seconds:
        count, at_s = count + 1, at_s + rng.expovariate(per_s)
    ttft = [1e6 * rng.lognormvariate(math.log(80 * level), 0.6) for _ in range(count)]
    gaps = [1e6 * rng.lognormvariate(math.log(20 * level), 0.4) for _ in range(4 * count)]
    failed = [rng.random() < policy.errors for _ in range(count)]
    bad = sum(fails or each > SLO_MS * 1e6 for fails, each in zip(failed, ttft, strict=True))
    return Tally(count, bad, sum(failed), histogram(ttft), histogram(gaps))


def run(seed: int, load: Load, new: Policy, others: Load | None = None) -> tuple[Verdict, int]:
    """A whole trial; its verdict and how many pairs it took."""
    rng = random.Random(seed)
    pairs: list[Pair] = []
    while True:
        first_is_new = rng.random() < 0.5
        first, second = (
            tally(rng, load, new if first_is_new is (at == 0) else EQUAL) for at in range(2)
        )
        old, tried = (second, first) if first_is_new else (first, second)
        beside = [tally(rng, others, EQUAL) if others else Tally() for _ in range(2)]
        pairs.append(Pair(old, tried, *beside))
        verdict = judge(pairs, PLANNED, MOST)
        if verdict.kind is not Kind.WAITING:
            return verdict, len(pairs)
