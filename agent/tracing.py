"""Turns the life of streams and decisions into spans: what is under way, what is kept, what links.

Called by the daemon's thread only, except for `counts`. Knows nothing of OpenTelemetry.
"""

import random
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain, islice, takewhile
from typing import Any, Final

from agent.request_head import RequestHead, SpanRef, read_head
from agent.span_sender import SpanSender
from agent.spans import (
    Beginning,
    Meanwhile,
    SpanCounts,
    decision_span,
    injection_span,
    request_span,
    why_kept,
)
from agent.streams import MAX_UNDER_WAY, Ended
from bpf.layout import Event, EventKind, Stream
from controller.policy_model import Policy, Slo

AT_RISK_NS: Final = 10 * 10**9
"""How long before a decision a stream may have ended badly to be linked to it."""

LONGEST_WAIT_NS: Final = 1_200 * 10**9
"""Twice the longest SLO for a first chunk."""

MAX_LINKS: Final = 32
MAX_OPEN_DECISIONS: Final = 1_000
"""Decisions whose answer is awaited; the oldest is sent with the answer it has."""

_KEPT_PER_ENGINE: Final = 256


@dataclass(slots=True)
class _Open:
    """A request under way; `linked` once a decision's span points to it."""

    beginning: Beginning
    request_ns: int
    linked: bool = False


@dataclass(slots=True)
class _OpenDecision:
    message: Mapping[str, Any]
    ref: SpanRef
    offset_ns: int
    links: tuple[SpanRef, ...]
    ack: str
    ack_us: int | None = None


@dataclass(slots=True)
class _Engine:
    """An engine's requests, oldest first, and what ended or was decided lately.

    `waiting` have no chunk yet, `late` had their first one late; the rest are `steady`.
    """

    waiting: dict[tuple[int, int], _Open] = field(default_factory=dict)
    late: dict[tuple[int, int], _Open] = field(default_factory=dict)
    steady: dict[tuple[int, int], _Open] = field(default_factory=dict)
    bad: deque[tuple[int, SpanRef]] = field(default_factory=lambda: deque(maxlen=MAX_LINKS))
    decided: deque[tuple[int, SpanRef]] = field(
        default_factory=lambda: deque(maxlen=_KEPT_PER_ENGINE)
    )


class Tracing:
    """Makes spans of what the daemon sees and hands them to a sender."""

    def __init__(
        self,
        sender: SpanSender,
        sample_ratio: float,
        slos: Mapping[str, Slo],
        meanwhile: Callable[[str, int], Meanwhile],
    ) -> None:
        """`meanwhile` is asked about an engine since a time (monotonic ns), for kept spans only."""
        self._sender = sender
        self._ratio = sample_ratio
        self._slos = slos
        self._meanwhile = meanwhile
        self._engines = {name: _Engine() for name in slos}
        self._decisions: OrderedDict[int, _OpenDecision] = OrderedDict()
        self._malformed = 0
        self._cut = 0

    def set_slos(self, slos: Mapping[str, Slo]) -> None:
        """Go on with these engines, and these SLOs of theirs."""
        self._slos = slos
        self._engines = {name: self._engines.get(name, _Engine()) for name in slos}

    @property
    def problem(self) -> str:
        """Why spans do not get away, empty if they do."""
        return self._sender.problem

    def counts(self) -> SpanCounts:
        """What became of the spans; from any thread."""
        sender = self._sender
        return SpanCounts(sender.exported, sender.dropped, self._malformed, self._cut)

    def stream(self, engine: str, event: Event, ended: Ended | None) -> None:
        """Take an event of a stream, and the stream itself if that ended it."""
        requests = self._engines[engine]
        key = event.stream.connection, event.stream.number
        if event.kind is EventKind.START:
            self._begin(requests, key, event)
        elif event.kind is EventKind.FIRST:
            under_way = requests.waiting.pop(key, None)
            if under_way is not None:
                late = (event.stream.ttft_ns or 0) > self._slos[engine].ttft_ms * 1e6
                (requests.late if late else requests.steady)[key] = under_way
        elif ended is not None:
            self._end(requests, key, ended)

    def decision(self, message: Mapping[str, Any]) -> None:
        """Take a `decision` message of the controller."""
        engine = message["engine"]
        at_ns = int(message["mono_ns"])
        ref = _new_trace()
        requests = self._engines.get(engine)
        links: tuple[SpanRef, ...] = ()
        if requests is not None:
            links = _at_risk(requests, at_ns, int(self._slos[engine].ttft_ms * 1e6))
            requests.decided.append((at_ns, ref))
        made = _OpenDecision(message, ref, _wall_offset_ns(), links, message["ack"])
        if message["ack"] != "pending":
            self._send(made)
            return
        self._decisions[message["tag"]] = made
        if len(self._decisions) > MAX_OPEN_DECISIONS:
            self._send(self._decisions.popitem(last=False)[1])

    def ack(self, message: Mapping[str, Any]) -> None:
        """Take an `ack` message of the controller."""
        made = self._decisions.get(message["tag"])
        if made is None:
            return
        made.ack, made.ack_us = message["ack"], message["ack_us"] or None
        if made.ack != "pending":
            del self._decisions[message["tag"]]
            self._send(made)

    def injection(self, value: float, seconds: float, reason: str) -> None:
        """Take what an operator told of just now, for so long."""
        self._sender.put(injection_span(value, seconds, reason, _new_trace(), time.time_ns()))

    def forget_open(self) -> None:
        """A controller died: its decisions get no answer any more, and tags begin again."""
        for made in self._decisions.values():
            made.ack = "lost"
            self._send(made)
        self._decisions.clear()

    def close(self) -> None:
        """Send what is left and end; takes three seconds at most."""
        for made in self._decisions.values():
            self._send(made)
        self._decisions.clear()
        self._sender.close()

    def _begin(self, requests: _Engine, key: tuple[int, int], event: Event) -> None:
        beginning = _beginning(read_head(event.head))
        self._malformed += beginning.head.malformed
        # without a request line it is TLS or HTTP/2, where there is no such head
        self._cut += beginning.head.cut and bool(beginning.head.method)
        if len(requests.waiting) + len(requests.late) + len(requests.steady) >= MAX_UNDER_WAY:
            # an end whose event was dropped leaves its beginning behind; the oldest goes
            groups = (requests.steady, requests.late, requests.waiting)
            group = next(group for group in groups if group)
            del group[next(iter(group))]
        requests.waiting[key] = _Open(beginning, event.stream.request_ns)

    def _end(self, requests: _Engine, key: tuple[int, int], ended: Ended) -> None:
        stream = ended.stream
        under_way = (
            requests.waiting.pop(key, None)
            or requests.late.pop(key, None)
            or requests.steady.pop(key, None)
            or _unseen(stream)
        )
        beginning = under_way.beginning
        kept = why_kept(ended, beginning, self._ratio) or ("linked" if under_way.linked else None)
        if kept is None:
            return
        links: tuple[SpanRef, ...] = ()
        if not ended.good:
            requests.bad.append((ended.ended_ns, beginning.ref))
            links = _last(
                ref
                for at_ns, ref in requests.decided
                if stream.request_ns <= at_ns <= ended.ended_ns
            )
        meanwhile = self._meanwhile(ended.engine, stream.request_ns)
        self._sender.put(request_span(ended, beginning, kept, meanwhile, links))

    def _send(self, made: _OpenDecision) -> None:
        self._sender.put(
            decision_span(made.message, made.ack, made.ack_us, made.ref, made.offset_ns, made.links)
        )


def start_tracing(
    policy: Policy, meanwhile: Callable[[str, int], Meanwhile]
) -> tuple[Tracing | None, str]:
    """Tracing as the policy wants it, None if it does not or if it can't be; then also why."""
    if policy.otel.endpoint is None:
        return None, ""
    try:
        # only here: an agent without a collector does not carry OpenTelemetry's weight
        from agent.otel import OtlpExporter

        exporter = OtlpExporter(policy.otel)
    except ImportError as error:
        return None, f"no spans are made: {error}; docs/tracing.md says what to install"
    except (OSError, RuntimeError, ValueError) as error:
        return None, f"no spans are made: could not make the exporter: {error}"
    sender = SpanSender(exporter, policy.otel.max_queue)
    slos = {engine.name: engine.slo for engine in policy.engines}
    return Tracing(sender, policy.otel.sample_ratio, slos, meanwhile), ""


def _at_risk(requests: _Engine, now_ns: int, ttft_ns: int) -> tuple[SpanRef, ...]:
    """The requests that wait too long or had their first chunk late, then those that ended badly.

    Those under way get a span whatever becomes of them.
    """
    overdue = (
        under_way
        for under_way in takewhile(
            lambda under_way: now_ns - under_way.request_ns > ttft_ns, requests.waiting.values()
        )
        # what waits for longer ended, and its end was dropped
        if now_ns - under_way.request_ns < LONGEST_WAIT_NS
    )
    links = []
    for under_way in islice(chain(overdue, requests.late.values()), MAX_LINKS):
        under_way.linked = True
        links.append(under_way.beginning.ref)
    ended = [ref for at_ns, ref in reversed(requests.bad) if at_ns >= now_ns - AT_RISK_NS]
    return (*links, *ended)[:MAX_LINKS]


def _beginning(head: RequestHead) -> Beginning:
    root = _new_trace()
    caller = head.caller
    ref = root if caller is None else SpanRef(caller.span.trace_id, root.span_id)
    return Beginning(ref, head, _wall_offset_ns())


def _unseen(stream: Stream) -> _Open:
    """A request whose beginning was dropped."""
    return _Open(_beginning(RequestHead()), stream.request_ns)


def _last(refs: Iterable[SpanRef]) -> tuple[SpanRef, ...]:
    return tuple(deque(refs, maxlen=MAX_LINKS))


def _new_trace() -> SpanRef:
    """A span of a new trace; ids are not zero."""
    return SpanRef(random.getrandbits(128) or 1, random.getrandbits(64) or 1)


def _wall_offset_ns() -> int:
    """What to add to monotonic time for wall time: never too little, as little too much as can be.

    The monotonic clock is read first, so each attempt is too much by the time between the two.
    """
    return min(-time.monotonic_ns() + time.time_ns() for _ in range(3))
