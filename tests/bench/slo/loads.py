"""The loads: stretches of two real traces and two synthetic ones, the same for every contender.

Lengths are divided by four and capped, as in the demonstration. Time is scaled by one factor a
stretch, so that it asks for a stated share of the capacity this machine was measured to have for
requests of that trace. A seed chooses the stretch, or draws the step.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from demo.trace import LengthScale, Load, Request, fit

TRACES: Final = Path(__file__).parents[1] / "traces"
CODE: Final = "azure_code"
CONVERSATION: Final = "azure_conv"
LENGTHS: Final = LengthScale()

BURSTY_SHARE: Final = 0.85
"""Of the code trace: one second of its bursts asks for several times the capacity, the mean for
less than all of it."""

STEADY_SHARE: Final = 0.6
STEP_SHARE: Final = 0.6
STEP_FACTOR: Final = 2.0
"""The middle third of the step asks for twice its beginning, 1.2 × capacity."""

SHORT_RPS: Final = 20.0
LONG_RPS: Final = 4.0
SHORT: Final = (16, 64)
"""Tokens of prompt and answer; such an answer takes some tenths of a second."""

_GOLDEN: Final = 0.618033988749895


def stretch(requests: Sequence[Request], seed: int, requests_per_s: float, window_s: float) -> Load:
    """The stretch of a trace that `seed` stands for, at this mean rate.

    Where it begins follows the multiples of the golden ratio, so that few seeds are already spread
    over the whole trace.
    """
    count = min(max(2, int(requests_per_s * window_s)), len(requests))
    first = int(seed * _GOLDEN % 1 * (len(requests) - count))
    return fit(requests[first:], LENGTHS, requests_per_s, window_s)


def step(requests: Sequence[Request], seed: int, requests_per_s: float, window_s: float) -> Load:
    """Poisson arrivals at `requests_per_s`, in the middle third at `STEP_FACTOR` times that.

    Each has the lengths of a request drawn from the trace.
    """
    draw = random.Random(seed)
    made: list[Request] = []
    at_s = 0.0
    while True:
        rising = window_s / 3 <= at_s < 2 * window_s / 3
        at_s += draw.expovariate(requests_per_s * (STEP_FACTOR if rising else 1.0))
        if at_s >= window_s:
            return Load(tuple(made), 1.0, window_s)
        like = LENGTHS.apply(draw.choice(requests))
        made.append(Request(at_s, like.prompt_tokens, like.answer_tokens))


def stalling(seed: int, window_s: float) -> Load:
    """Short requests, and among them some with the longest prompt there is, all evenly apart.

    Where a step may have all of that prompt at once it keeps every answer waiting that runs: the
    SLO is missed all the time, not now and then. `seed` moves the one kind against the other.
    """
    shift = seed * _GOLDEN % 1
    short = [Request(n / SHORT_RPS, *SHORT) for n in range(int(window_s * SHORT_RPS))]
    long = [
        Request((n + shift) / LONG_RPS, LENGTHS.max_prompt_tokens, 1)
        for n in range(int(window_s * LONG_RPS))
    ]
    made = sorted(short + long, key=lambda each: each.arrival_s)
    return Load(tuple(made), 1.0, window_s)


@dataclass(frozen=True, slots=True)
class Plan:
    """A load behind the warm-up that comes before each: `warm_up` requests, then the window's."""

    requests: tuple[Request, ...]
    warm_up: int
    window_s: float
    speed: float


def with_warm_up(load: Load, warm_up: Sequence[Request], pause_s: float) -> Plan:
    """`load` behind `warm_up`, with a pause between the two."""
    begins_s = max((each.arrival_s for each in warm_up), default=0.0) + pause_s
    later = (
        Request(begins_s + each.arrival_s, each.prompt_tokens, each.answer_tokens)
        for each in load.requests
    )
    return Plan((*warm_up, *later), len(warm_up), load.window_s, load.speed)
