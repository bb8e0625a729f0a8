"""Why one stream was slow: from its own record, and from what ailed its engine meanwhile.

The rule is that of seed row B13, with the application's writes where it has a span. A gap that was
there when the application wrote is the engine's, and what ailed the engine names it. A gap that was
only on the wire is the client's, if its window was full, or else the network's.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from bpf.layout import Stream
from controller.attribution import Cause
from controller.policy_model import Slo
from controller.signals import LOST_PER_S

ON_THE_WIRE_NS: Final = 20_000_000
"""More than this between the application's lateness and the wire's is the wire's own (B13)."""

HELD_SHARE: Final = 0.5
"""A client's window that was full for this share of the lateness explains it."""

_WIRE: Final = frozenset({Cause.NETWORK, Cause.SLOW_READER})


@dataclass(frozen=True, slots=True)
class StreamVerdict:
    """A cause, and the figures that speak for it; `NONE` for a stream that was not slow."""

    cause: Cause
    evidence: Mapping[str, float]


def is_slow(stream: Stream, ended_ns: int, slo: Slo) -> bool:
    """Whether a gap or the first chunk was late, or none came in the time for the first."""
    waited_ns = stream.ttft_ns
    if waited_ns is None:
        waited_ns = 0 if stream.head_ns and not _is_events(stream) else _life_ns(stream, ended_ns)
    return stream.gaps_over > 0 or waited_ns > slo.ttft_ms * 1e6


def stream_cause(
    stream: Stream, ended_ns: int, slo: Slo, engine_ns: Mapping[str, int]
) -> StreamVerdict:
    """Why a stream was slow. `engine_ns` is how long each cause ailed its engine meanwhile."""
    if not is_slow(stream, ended_ns, slo):
        return StreamVerdict(Cause.NONE, {})
    seconds = max(1e-3, _life_ns(stream, ended_ns) / 1e9)
    evidence: dict[str, float] = {
        "gap_max_ms": stream.gap_max_ns / 1e6,
        "retransmits_per_s": round(stream.retransmits / seconds, 3),
        "rwnd_limited_ms": stream.rwnd_limited_ms,
        "blocked_ms": stream.blocked_ns / 1e6,
    }
    if stream.ttft_ns is not None:
        evidence["ttft_ms"] = stream.ttft_ns / 1e6
    if stream.last_write_ns:
        evidence["write_gap_max_ms"] = stream.write_gap_max_ns / 1e6
    if stream.read_ns:
        evidence["read_wait_ms"] = (stream.read_ns - stream.request_ns) / 1e6
    evidence |= {f"engine_{name}_ms": ns / 1e6 for name, ns in engine_ns.items() if ns > 0}
    return StreamVerdict(_cause(stream, seconds, slo, engine_ns), evidence)


def _cause(stream: Stream, seconds: float, slo: Slo, engine_ns: Mapping[str, int]) -> Cause:
    if stream.gaps_over and _only_on_the_wire(stream, slo):
        late_ms = stream.gap_max_ns / 1e6
        if stream.rwnd_limited_ms >= HELD_SHARE * late_ms:
            return Cause.SLOW_READER
        if stream.retransmits or _shows_writes(stream):
            return Cause.NETWORK
    worst = _worst(engine_ns)
    if worst is not None:
        return worst
    if _shows_writes(stream):
        return Cause.APPLICATION
    return Cause.NETWORK if stream.retransmits > LOST_PER_S * seconds else Cause.UNKNOWN


def _only_on_the_wire(stream: Stream, slo: Slo) -> bool:
    """Whether the late gap was not there yet when the application wrote.

    Kernels before 6.3 don't tell of writes: there bytes have to have been unsent for a part of it.
    """
    if not _shows_writes(stream):
        late_ms = stream.gap_max_ns / 1e6
        return max(stream.rwnd_limited_ms, stream.blocked_ns / 1e6) >= HELD_SHARE * late_ms
    if stream.write_gap_max_ns <= slo.gap_ms * 1e6:
        return True
    added_ns = stream.gap_max_ns - stream.write_gap_max_ns
    return added_ns > max(ON_THE_WIRE_NS, stream.write_gap_max_ns)


def _shows_writes(stream: Stream) -> bool:
    """Whether this kernel tells of reads and writes, as those from 6.3 do."""
    return bool(stream.read_ns or stream.last_write_ns)


def _worst(engine_ns: Mapping[str, int]) -> Cause | None:
    """What ailed the engine longest, of what can make it write late."""
    causes = {
        Cause(name): ns
        for name, ns in engine_ns.items()
        if ns > 0 and Cause(name) not in _WIRE | {Cause.NONE, Cause.UNKNOWN}
    }
    return max(causes, key=lambda cause: causes[cause], default=None)


def _life_ns(stream: Stream, ended_ns: int) -> int:
    return max(0, ended_ns - stream.request_ns)


def _is_events(stream: Stream) -> bool:
    return bool(stream.flags & stream.flags.EVENTS)
