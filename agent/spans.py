"""Spans of requests and decisions as plain values; `agent.otel` makes OpenTelemetry's of them.

Times are wall-clock nanoseconds. A span converts its monotonic times by one offset, taken when its
request came in, so that neither a clock that steps meanwhile nor a suspend can bend it. The offset
errs on the late side: seen on one machine, no request begins before its caller sent it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from agent.request_head import RequestHead, SpanRef
from agent.routes import route_of
from agent.streams import Ended
from bpf.layout import Stream
from controller.plain import plain

Kept = Literal["slow", "caller", "ratio", "linked"]
"""Why a request has a span: it missed its SLO, its caller samples the trace, it was drawn, or a
decision's span points to it."""

Value = str | bool | int | float | tuple[str, ...]

_MS: Final = 1e6
_TRACE_ID_LOW_BITS: Final = 64


@dataclass(frozen=True, slots=True)
class SpanEvent:
    """Something that happened within a span."""

    name: str
    at_ns: int


@dataclass(frozen=True, slots=True)
class Span:
    """One span. `failed` says why, empty if it did not; `server` says that it served a request."""

    name: str
    ref: SpanRef
    parent: SpanRef | None
    server: bool
    start_ns: int
    end_ns: int
    attributes: Mapping[str, Value]
    events: tuple[SpanEvent, ...] = ()
    links: tuple[SpanRef, ...] = ()
    failed: str = ""


@dataclass(frozen=True, slots=True)
class SpanCounts:
    """What became of spans since the agent's start."""

    exported: int = 0
    dropped: Mapping[str, int] = field(default_factory=dict)
    malformed_callers: int = 0
    cut_heads: int = 0


@dataclass(frozen=True, slots=True)
class Beginning:
    """What is known of a request when it comes in; `offset_ns` makes wall time of monotonic."""

    ref: SpanRef
    head: RequestHead
    offset_ns: int


@dataclass(frozen=True, slots=True)
class Meanwhile:
    """What is known of the engine during a request, None where it is not.

    `pid` is its first process, `wait_ns` how long its tasks waited for a CPU, all together.
    """

    pid: int | None = None
    wait_ns: int | None = None


def why_kept(ended: Ended, beginning: Beginning, ratio: float) -> Kept | None:
    """Why a request gets a span, None if it gets none.

    What missed its SLO always does. Otherwise the caller's choice holds, so that a trace is whole
    or absent; where there is no caller, the trace's id decides.
    """
    if not ended.good:
        return "slow"
    caller = beginning.head.caller
    if caller is not None:
        return "caller" if caller.sampled else None
    low = beginning.ref.trace_id % (1 << _TRACE_ID_LOW_BITS)
    return "ratio" if low < ratio * (1 << _TRACE_ID_LOW_BITS) else None


def request_span(
    ended: Ended,
    beginning: Beginning,
    kept: Kept,
    meanwhile: Meanwhile,
    links: tuple[SpanRef, ...] = (),
) -> Span:
    """The span of a request that ended; `links` are the decisions made for its engine meanwhile."""
    head, stream = beginning.head, ended.stream
    route = route_of(head.path)
    start_ns = stream.request_ns
    end_ns = max(start_ns, ended.ended_ns)
    happened = [
        (name, at_ns)
        for name, at_ns in (
            ("sits.response_head", stream.head_ns),
            ("sits.first_chunk", stream.first_ns),
        )
        if at_ns
    ]
    events = tuple(
        SpanEvent(name, min(max(at_ns, start_ns), end_ns) + beginning.offset_ns)
        for name, at_ns in happened
    )
    moved = end_ns != ended.ended_ns or any(not start_ns <= at <= end_ns for _, at in happened)
    failure = _failure(ended)
    attributes: dict[str, Value | None] = {
        "http.request.method": head.method or None,
        "http.response.status_code": stream.status or None,
        "http.route": route.path if route is not None else None,
        "url.path": head.path or None,
        "url.scheme": "http" if head.method else None,
        "network.protocol.name": "http" if head.method else None,
        "server.port": stream.local_port,
        "client.address": stream.remote_address,
        "client.port": stream.remote_port,
        "error.type": failure or None,
        "gen_ai.operation.name": route.operation if route is not None else None,
        "gen_ai.server.time_to_first_token": _seconds(stream.ttft_ns),
        **_ours(ended, kept, meanwhile),
        "sits.times_clamped": True if moved else None,
        "ebpf.pid": meanwhile.pid,
        "ebpf.skb_len": stream.body_bytes,
        "ebpf.is_retransmit": stream.retransmits > 0,
    }
    method = head.method if head.method not in {"", "_OTHER"} else "HTTP"
    return Span(
        name=f"{method} {route.path}" if route is not None else method,
        ref=beginning.ref,
        parent=head.caller.span if head.caller is not None else None,
        server=True,
        start_ns=start_ns + beginning.offset_ns,
        end_ns=end_ns + beginning.offset_ns,
        attributes={name: value for name, value in attributes.items() if value is not None},
        events=events,
        links=links,
        failed=failure if _is_ours(ended) else "",
    )


def decision_span(
    message: Mapping[str, Any],
    ack: str,
    ack_us: int | None,
    ref: SpanRef,
    offset_ns: int,
    links: tuple[SpanRef, ...],
) -> Span:
    """The span of a controller's `decision` message, from the decision to its answer.

    `links` are the requests that were at risk before it.
    """
    start_ns = int(message["mono_ns"]) + offset_ns
    attributes: dict[str, Value | None] = {
        "sits.engine": message["engine"],
        "sits.mode": message["mode"],
        "sits.cause": message["cause"],
        "sits.decision.action": tuple(_change(change) for change in message["action"]),
        "sits.decision.reason": plain(message["reason"]),
        "sits.decision.ack": ack,
        "sits.decision.ack_us": ack_us,
    }
    attributes |= {
        f"sits.signal.{name}": value
        for name, value in message["signals"].items()
        if isinstance(value, int | float)
    }
    return Span(
        name="sits.decision",
        ref=ref,
        parent=None,
        server=False,
        start_ns=start_ns,
        end_ns=start_ns + 1000 * (ack_us or 0),
        attributes={name: value for name, value in attributes.items() if value is not None},
        links=links,
        failed=ack if ack in {"refused", "lost"} else "",
    )


def injection_span(value: float, seconds: float, reason: str, ref: SpanRef, start_ns: int) -> Span:
    """The span of backpressure that an operator told of, until it is to end."""
    return Span(
        name="sits.injection",
        ref=ref,
        parent=None,
        server=False,
        start_ns=start_ns,
        end_ns=start_ns + round(seconds * 1e9),
        attributes={
            "sits.injection.backpressure": value,
            "sits.injection.reason": plain(reason),
        },
    )


def _ours(ended: Ended, kept: Kept, meanwhile: Meanwhile) -> dict[str, Value | None]:
    stream = ended.stream
    gaps = stream.chunks - 1 if stream.first_ns else 0
    return {
        "sits.engine": ended.engine,
        "sits.kept": kept,
        "sits.good": ended.good,
        "sits.cause": ended.cause,
        "sits.end_reason": ended.reason,
        "sits.streaming": ended.streaming,
        "sits.version": ended.version,
        "sits.chunks": stream.chunks,
        "sits.gap_max_ms": stream.gap_max_ns / _MS if gaps > 0 else None,
        "sits.gap_mean_ms": stream.gap_sum_ns / gaps / _MS if gaps > 0 else None,
        "sits.gaps_over_slo": stream.gaps_over,
        "sits.write_gap_max_ms": stream.write_gap_max_ns / _MS if stream.write_gap_max_ns else None,
        "sits.events": stream.events,
        "sits.role_frames": stream.role_frames,
        "sits.send_blocked_ms": stream.blocked_ns / _MS,
        "sits.send_blocked_by_client_ms": stream.rwnd_limited_ms,
        "sits.send_blocked_by_buffer_ms": stream.sndbuf_limited_ms,
        "sits.retransmits": stream.retransmits,
        "sits.run_queue_delay_ms": None if meanwhile.wait_ns is None else meanwhile.wait_ns / _MS,
        **_stages(stream),
    }


def _stages(stream: Stream) -> dict[str, Value | None]:
    """How long each part of the answer took; a part that was not reached has none."""
    marks = {
        "read": (stream.request_ns, stream.read_ns),
        "head": (stream.request_ns, stream.head_ns),
        "first_chunk": (stream.head_ns, stream.first_ns),
        "chunks": (stream.first_ns, stream.last_ns),
    }
    return {
        f"sits.stage.{name}_ms": (end - start) / _MS
        for name, (start, end) in marks.items()
        if 0 < start <= end
    }


def _failure(ended: Ended) -> str:
    """OpenTelemetry's `error.type`: the status from 500 on, or how the answer broke off."""
    if ended.stream.status >= 500:
        return str(ended.stream.status)
    return "" if ended.reason in {"complete", "lost"} else ended.reason


def _is_ours(ended: Ended) -> bool:
    """Whether it was the engine that failed; a client that goes away is no failure of it."""
    return ended.stream.status >= 500 or ended.reason == "server_closed"


def _change(change: Mapping[str, Any]) -> str:
    return plain(f"{change['target']} {change['knob']}: {change['from']} → {change['to']}")


def _seconds(ns: int | None) -> float | None:
    return None if ns is None else ns / 1e9
