"""Whether an operating point did any good, and taking it back when it did not.

Goodput falling after a change rolls it back by itself (design section 6.8). Good and bad are the
users': how many of those who asked got a first chunk in time, and how many gaps were over their
SLO, while we hold a point and while we hold none. A bursty load is bad at times whatever anybody
does, so only a clear difference at no higher load counts, and being wrong costs no more than a
pause: after it the point is tried anew.
"""

import math
from dataclasses import dataclass, field
from typing import Final

from bpf.layout import Counters
from controller.changed import changed

MEMORY_S: Final = 10.0
"""Time constant with which what was seen is forgotten."""

PEAK_S: Final = 30.0
"""Time constant with which the highest load is forgotten: slower, because the requests of a burst
come late long after it."""

LEAST_S: Final = 5.0
LEAST_REQUESTS: Final = 5.0
"""What each side has to have been seen for; the latter weighs less the longer ago they came."""

RECENT_NS: Final = 600_000_000_000
"""What the engine did without us longer ago says nothing about now."""

WORSE: Final = 0.15
"""How much larger the share of the bad has to be while we hold the point."""

LOAD_BAND: Final = 1.1
"""This many times as many requests explain being worse."""

PAUSE_S: Final = 30.0
LONGEST_PAUSE_S: Final = 600.0
"""After each roll-back in a row the pause doubles, up to this."""

FORGIVEN_S: Final = 120.0
"""A point held for so long without being worse has no history any more."""


@dataclass(frozen=True, slots=True)
class Side:
    """What was counted with (or without) a point in force; older seconds weigh less.

    `peak_per_s` is the highest load of them, in requests; `seconds` how many there were.
    """

    requests: float = 0.0
    in_time: float = 0.0
    gaps: float = 0.0
    gaps_over: float = 0.0
    peak_per_s: float = 0.0
    seconds: float = 0.0

    @property
    def bad(self) -> float:
        """The larger share, 0…1: requests without a first chunk in time, or gaps over the SLO."""
        late = 1 - min(1.0, self.in_time / self.requests) if self.requests > 0 else 0.0
        return max(late, self.gaps_over / self.gaps if self.gaps > 0 else 0.0)

    @property
    def known(self) -> bool:
        """Whether enough was seen to judge by."""
        return self.seconds >= LEAST_S and self.requests >= LEAST_REQUESTS


@dataclass(frozen=True, slots=True)
class Trial:
    """What was seen with and without a point of ours, and the pause, if there is one."""

    held: Side = field(default_factory=Side)
    free: Side = field(default_factory=Side)
    free_ns: int = 0
    paused_until_ns: int = 0
    pause_s: float = PAUSE_S
    roll_backs: int = 0
    reason: str = ""


def judge(trial: Trial, passed: Counters, passed_s: float, holding: bool, now_ns: int) -> Trial:
    """The trial after `passed_s` seconds in which `passed` was counted.

    A roll-back is a `paused_until_ns` in the future.
    """
    if passed_s <= 0 or not (passed.gaps or passed.requests or passed.first_chunks):
        return trial
    if not holding:
        return changed(trial, free=_more(trial.free, passed, passed_s), free_ns=now_ns)
    trial = changed(trial, held=_more(trial.held, passed, passed_s))
    held, free = trial.held, trial.free
    known = held.known and free.known and now_ns - trial.free_ns <= RECENT_NS
    loaded = held.peak_per_s > LOAD_BAND * free.peak_per_s
    if not known or loaded or held.bad <= free.bad + WORSE:
        return changed(trial, pause_s=PAUSE_S) if held.seconds >= FORGIVEN_S else trial
    return Trial(
        paused_until_ns=now_ns + int(trial.pause_s * 1e9),
        pause_s=min(2 * trial.pause_s, LONGEST_PAUSE_S),
        roll_backs=trial.roll_backs + 1,
        reason=f"with this operating point {held.bad:.0%} were late, without it {free.bad:.0%}: it"
        f" is given back for {trial.pause_s:.0f} s",
    )


def _more(side: Side, passed: Counters, passed_s: float) -> Side:
    kept = math.exp(-passed_s / MEMORY_S)
    return Side(
        requests=kept * side.requests + passed.requests,
        in_time=kept * side.in_time + max(0, passed.first_chunks - passed.ttft_over),
        gaps=kept * side.gaps + passed.gaps,
        gaps_over=kept * side.gaps_over + passed.gaps_over,
        peak_per_s=max(passed.requests / passed_s, math.exp(-passed_s / PEAK_S) * side.peak_per_s),
        seconds=side.seconds + passed_s,
    )
