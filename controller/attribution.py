"""Why an engine's streams are slow, decided before anything is done about it.

The order is the design's (section 6.1): a batch is blamed only for what nothing else explains.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from controller.policy_model import Slo
from controller.signals import Signals

MIN_WANTED_NS: Final = 5_000_000
"""Less CPU demand than this in a window says nothing about who took it."""

QUOTA_SHARE: Final = 0.5
"""Own throttling that explains at least this share of the wait is its cause."""

LONG_STEP_SHARE: Final = 0.5
"""A step longer than this share of the gap SLO leaves too little of it for the rest."""


class Cause(StrEnum):
    """What keeps streams from their SLO. Values are metric labels and journal entries."""

    NONE = "none"
    NEIGHBOUR_CPU = "neighbour_cpu"
    OWN_QUOTA = "own_quota"
    NETWORK = "network"
    BATCH = "batch"
    QUEUE = "queue"
    UNKNOWN = "unknown"


MEANING: Final[Mapping[Cause, str]] = {
    Cause.NONE: "nothing is wrong",
    Cause.NEIGHBOUR_CPU: "other processes take the CPU the engine wants",
    Cause.OWN_QUOTA: "the engine's own CPU quota stops it",
    Cause.NETWORK: "segments were lost and sent again while the engine was on time",
    Cause.BATCH: "the engine's steps are too long: its batch is too large",
    Cause.QUEUE: "more work arrives than the engine can start in time",
    Cause.UNKNOWN: "none of the causes that can be seen from here",
}


@dataclass(frozen=True, slots=True)
class Verdict:
    """A cause, and the figures that speak for it."""

    cause: Cause
    evidence: Mapping[str, float]


def attribute(signals: Signals, slo: Slo, neighbour_pressure: float) -> Verdict:
    """The cause of what happened in the window, `NONE` if no threshold was crossed.

    `neighbour_pressure` is the policy's threshold for `Signals.neighbour_pressure`.
    """
    kernel = signals.kernel
    gap_slo_ns = slo.gap_ms * 1e6
    evidence = {
        "neighbour_pressure": round(signals.neighbour_pressure, 4),
        "wait_other_ms": kernel.wait_other_ns / 1e6,
        "wait_self_ms": kernel.wait_self_ns / 1e6,
        "run_ms": kernel.run_ns / 1e6,
        "throttled_ms": signals.throttled_ns / 1e6,
        "retransmits": kernel.retransmits,
        "longest_step_ms": signals.longest_step_ns / 1e6,
        "queue_age_ms": signals.queue_age_ns / 1e6,
        "gaps_over": kernel.gaps_over,
        "ttft_over": kernel.ttft_over,
        "waits_over": kernel.waits_over,
        "window_ms": signals.window_ns / 1e6,
    }
    return Verdict(_cause(signals, gap_slo_ns, neighbour_pressure), evidence)


def _cause(signals: Signals, gap_slo_ns: float, neighbour_pressure: float) -> Cause:
    kernel = signals.kernel
    if not signals.at_risk:
        return Cause.NONE
    if signals.throttled_ns and signals.throttled_ns >= QUOTA_SHARE * kernel.wait_ns:
        return Cause.OWN_QUOTA
    wanted_ns = kernel.run_ns + kernel.wait_ns
    if wanted_ns >= MIN_WANTED_NS and signals.neighbour_pressure >= neighbour_pressure:
        return Cause.NEIGHBOUR_CPU
    long_step = signals.longest_step_ns > LONG_STEP_SHARE * gap_slo_ns
    if kernel.retransmits and not long_step:
        return Cause.NETWORK
    if kernel.gaps_over and (long_step or signals.engine is None):
        return Cause.BATCH
    if kernel.ttft_over and signals.engine is not None and signals.engine.waiting:
        return Cause.QUEUE
    return Cause.BATCH if long_step else Cause.UNKNOWN
