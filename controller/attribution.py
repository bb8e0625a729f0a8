"""Why an engine's streams are slow, decided before anything is done about it.

The order is the design's (section 6.1): a batch is blamed only for what nothing else explains.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from bpf.layout import Counters
from controller.policy_model import Slo
from controller.progress import Stall
from controller.signals import Signals

MIN_WANTED_NS: Final = 5_000_000
"""Less CPU demand than this in a window says nothing about who took it."""

QUOTA_SHARE: Final = 0.5
"""Own throttling that explains at least this share of the wait for others is its cause: a
throttled task waits too, and who has the CPU when it comes back may be anybody."""

QUOTA_LEAST: Final = 0.05
"""Of a window: less throttling than this makes no chunk late."""

LONG_STEP_SHARE: Final = 0.5
"""A step longer than this share of the gap SLO leaves too little of it for the rest."""

MEMORY_SHARE: Final = 0.1
"""Of a window: tasks that stood still for memory longer than this are late because of it."""

UNSENT_SHARE: Final = 0.5
"""Bytes that could not leave for this share of the gap SLO explain a late gap. Where writes are not
seen, that is only noticed as something is sent again, a part of the gap later."""

STALL_SHARE: Final = 0.5
"""What explains at least this share of a standstill is its cause."""


class Cause(StrEnum):
    """What keeps streams from their SLO. Values are metric labels and journal entries.

    `APPLICATION` is said of single streams only.
    """

    NONE = "none"
    NEIGHBOUR_CPU = "neighbour_cpu"
    OWN_QUOTA = "own_quota"
    MEMORY = "memory"
    ENGINE_STOPPED = "engine_stopped"
    NETWORK = "network"
    SLOW_READER = "slow_reader"
    BATCH = "batch"
    QUEUE = "queue"
    APPLICATION = "application"
    UNKNOWN = "unknown"


MEANING: Final[Mapping[Cause, str]] = {
    Cause.NONE: "nothing is wrong",
    Cause.NEIGHBOUR_CPU: "other processes take the CPU the engine wants",
    Cause.OWN_QUOTA: "the engine's own CPU quota stops it",
    Cause.MEMORY: "the engine waits for memory: its cgroup is at its limit, or the machine is full",
    Cause.ENGINE_STOPPED: "the engine has work and does nothing: stopped, or waiting for what does"
    " not come",
    Cause.NETWORK: "segments were lost and sent again while the engine was on time",
    Cause.SLOW_READER: "clients do not take what the engine has written",
    Cause.BATCH: "the engine's steps are too long: its batch is too large",
    Cause.QUEUE: "more work arrives than the engine can start in time",
    Cause.APPLICATION: "the engine wrote late, and nothing outside it explains that",
    Cause.UNKNOWN: "none of the causes that can be seen from here",
}

ON_THE_WAY: Final = frozenset({Cause.NETWORK, Cause.SLOW_READER})
"""Single streams are late for these, after the engine: there may always be some, and what it owes
the others stays as it is. So these stop no retuning; what they made late does not count for it
either, see `of_the_engine`."""

OUTSIDE: Final = ON_THE_WAY | {Cause.MEMORY, Cause.ENGINE_STOPPED}
"""Neither a smaller batch nor more CPU cures these: nothing is limited for them."""

STOPS: Final = (OUTSIDE - ON_THE_WAY) | {Cause.NEIGHBOUR_CPU, Cause.OWN_QUOTA}
"""Causes of a whole engine's standing still, which no operating point cures: for the time of these
it is neither judged nor changed."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """A cause, and the signals that speak for it, None before any were seen."""

    cause: Cause
    signals: Signals | None = None

    @property
    def evidence(self) -> Mapping[str, float]:
        """The figures of the signals, for who is to judge the cause: worked out when asked for."""
        signals = self.signals
        if signals is None:
            return {}
        kernel = signals.kernel
        return {
            "neighbour_pressure": round(signals.neighbour_pressure, 4),
            "wait_other_ms": kernel.wait_other_ns / 1e6,
            "wait_self_ms": kernel.wait_self_ns / 1e6,
            "run_ms": kernel.run_ns / 1e6,
            "throttled_ms": signals.throttled_ns / 1e6,
            "memory_ms": signals.memory_ns / 1e6,
            "stopped_ms": signals.stopped_ns / 1e6,
            "retransmits": kernel.retransmits,
            "writes_stalled": kernel.writes_stalled,
            "writes_held": kernel.writes_held,
            "blocked_ms": kernel.blocked_ns / 1e6,
            "stuck_streams": signals.unsent.stuck,
            "longest_step_ms": signals.longest_step_ns / 1e6,
            "queue_age_ms": signals.queue_age_ns / 1e6,
            "gaps_over": kernel.gaps_over,
            "gaps_unsent": kernel.gaps_unsent,
            "ttft_over": kernel.ttft_over,
            "waits_over": kernel.waits_over,
            "window_ms": signals.window_ns / 1e6,
        }


def of_the_engine(passed: Counters) -> Counters:
    """What was counted, without the gaps that were late on the way: unsent for most of their time.

    An operating point is judged by these.
    """
    return passed._replace(gaps_over=max(0, passed.gaps_over - passed.gaps_unsent))


def attribute(signals: Signals, slo: Slo, neighbour_pressure: float) -> Verdict:
    """The cause of what happened in the window, `NONE` if no threshold was crossed.

    `neighbour_pressure` is the policy's threshold for `Signals.neighbour_pressure`.
    """
    return Verdict(_cause(signals, slo.gap_ms * 1e6, neighbour_pressure), signals)


def _cause(signals: Signals, gap_slo_ns: float, neighbour_pressure: float) -> Cause:
    kernel = signals.kernel
    if not signals.at_risk:
        return Cause.NONE
    if signals.stall is not None:
        return _of_stall(signals, signals.stall)
    least_ns = max(1, QUOTA_LEAST * signals.window_ns, QUOTA_SHARE * kernel.wait_other_ns)
    if signals.throttled_ns >= least_ns:
        return Cause.OWN_QUOTA
    out_of_memory = signals.memory_ns >= max(1, MEMORY_SHARE * signals.window_ns)
    wanted_ns = kernel.run_ns + kernel.wait_ns
    if wanted_ns >= MIN_WANTED_NS and signals.neighbour_pressure >= neighbour_pressure:
        worse = out_of_memory and signals.memory_ns > kernel.wait_other_ns
        return Cause.MEMORY if worse else Cause.NEIGHBOUR_CPU
    if out_of_memory:
        return Cause.MEMORY
    on_the_way = _on_the_way(signals, gap_slo_ns)
    if on_the_way is not None:
        return on_the_way
    # a step that took many times what its batch takes was disturbed by what can't be seen from here
    long_step = signals.longest_computed_ns > LONG_STEP_SHARE * gap_slo_ns
    if kernel.gaps_over and (long_step or signals.engine is None or not signals.engine.steps):
        return Cause.BATCH
    if kernel.ttft_over and signals.engine is not None and signals.engine.waiting:
        return Cause.QUEUE
    return Cause.BATCH if long_step else Cause.UNKNOWN


def _of_stall(signals: Signals, stall: Stall) -> Cause:
    """Why an engine with work used no CPU. A throttled window is shorter than a long standstill."""
    least_ns = STALL_SHARE * signals.stopped_ns
    if signals.throttled_ns >= min(least_ns, STALL_SHARE * signals.window_ns) > 0:
        return Cause.OWN_QUOTA
    if stall.out_of_memory or stall.memory_ns >= least_ns:
        return Cause.MEMORY
    return Cause.NEIGHBOUR_CPU if stall.starved_ns >= least_ns else Cause.ENGINE_STOPPED


def _on_the_way(signals: Signals, gap_slo_ns: float) -> Cause | None:
    """Whether the engine wrote in time and it is the client or the network that is late.

    A step as long as a gap may be explains a late gap by itself; only what no step can cause
    (bytes that can't leave, segments sent again) is then laid to them, and only if nothing else is
    late.
    """
    kernel = signals.kernel
    late = kernel.gaps_over or kernel.ttft_over
    if late and signals.longest_step_ns >= gap_slo_ns:
        return None
    unsent = signals.unsent
    least_ns = UNSENT_SHARE * kernel.gaps_over * gap_slo_ns
    explained = kernel.gaps_over and kernel.blocked_ns >= least_ns
    if unsent.stuck or explained:
        stalled, held = kernel.writes_stalled, kernel.writes_held
        if not stalled:  # a sender that backs off does not even try
            stalled, held = unsent.stalled, unsent.held
        if not stalled:
            return Cause.NETWORK if unsent.again else Cause.SLOW_READER
        return Cause.SLOW_READER if 2 * held >= stalled else Cause.NETWORK
    if signals.losing:
        return Cause.NETWORK
    long_step = signals.longest_step_ns > LONG_STEP_SHARE * gap_slo_ns
    return Cause.NETWORK if signals.lost and late and not long_step else None
