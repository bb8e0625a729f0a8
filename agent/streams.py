"""Follows streams from the kernel's events: those under way, and the last that ended."""

import marshal
import threading
import time
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice, takewhile
from operator import attrgetter
from typing import Any, Final, NamedTuple

from agent.request_head import read_head
from bpf.layout import Event, EventKind, Stream, StreamFlags
from controller.policy_model import Slo

KEPT: Final = 10_000
MAX_UNDER_WAY: Final = 100_000


@dataclass(frozen=True, slots=True)
class Ended:
    """A stream that ended: `seq` counts them, `good` says whether it met its engine's SLO.

    `streaming` is false for an answer that was no event stream: it has no TTFT and no gaps.
    `untold` is why it had no first token, if it was to have one. `cause` is why it was slow, if it
    was, and `evidence` the figures that speak for that. `version` is what its request said of that,
    None if nobody asked; `trace_id` the trace its caller made it in, 32 hexadecimal digits.
    """

    seq: int
    engine: str
    stream: Stream
    path: str
    reason: str
    ended_ns: int
    good: bool
    streaming: bool
    cause: str
    untold: str | None = None
    evidence: Mapping[str, float] = field(default_factory=dict)
    version: str | None = None
    trace_id: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """The stream for JSON, as docs/sitsctl.md describes it."""
        s = self.stream
        gaps = s.chunks - 1 if s.first_ns else 0
        wall_s = time.time() - (time.monotonic_ns() - self.ended_ns) / 1e9
        host = f"[{s.remote_address}]" if ":" in s.remote_address else s.remote_address
        return {
            "seq": self.seq,
            "engine": self.engine,
            "connection": s.connection,
            "number": s.number,
            "remote": f"{host}:{s.remote_port}",
            "remote_port": s.remote_port,
            "path": self.path,
            "version": self.version,
            "trace_id": self.trace_id,
            "status": s.status,
            "streaming": self.streaming,
            "ttft_ms": None if s.ttft_ns is None else s.ttft_ns / 1e6,
            "gap_max_ms": s.gap_max_ns / 1e6 if gaps > 0 else None,
            "gap_mean_ms": s.gap_sum_ns / gaps / 1e6 if gaps > 0 else None,
            "gaps_over": s.gaps_over,
            "chunks": s.chunks,
            "body_bytes": s.body_bytes,
            "retransmits": s.retransmits,
            "reason": self.reason,
            "no_first_token": self.untold,
            "good": self.good,
            "cause": self.cause,
            "evidence": dict(self.evidence),
            "ended_unix_s": wall_s,
            "duration_ms": (self.ended_ns - s.request_ns) / 1e6,
        }


def is_good(stream: Stream, reason: str, slo: Slo) -> bool:
    """Whether a stream met its SLO: complete, no error, TTFT in time, no gap over the limit."""
    if reason != "complete" or stream.status >= 400:
        return False
    if stream.ttft_ns is None:
        return not is_streaming(stream)
    return stream.ttft_ns <= slo.ttft_ms * 1e6 and stream.gaps_over == 0


def why_untold(stream: Stream, reason: str) -> str | None:
    """Why a stream ended without a first token; None if it had one or was to have none.

    `error` is an answer with a status of 400 or above. The others are how it ended: `complete` is a
    stream of no token at all, `client_reset` mostly a user who would not wait any longer. A whole
    answer that is no stream was to have none; what was not answered may have been to become one.
    """
    if stream.first_ns or stream.flags & stream.flags.OPAQUE:
        return None
    if stream.status >= 400:
        return "error"
    return reason if is_streaming(stream) or not stream.head_ns else None


def is_streaming(stream: Stream) -> bool:
    """Whether the answer was a stream of events."""
    return bool(stream.flags & stream.flags.EVENTS)


_Begun = tuple[str, str, str | None, str | None]
"""Engine, path, version and trace of a stream that has begun."""


class StreamLog:
    """Streams by engine. Written by one thread, read by any."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._begun: dict[tuple[int, int], _Begun] = {}
        self._under_way: Counter[str] = Counter()
        self._ended: deque[_Kept] = deque(maxlen=KEPT)
        self._seq = 0

    def started(self, engine: str, event: Event, version: str | None = None) -> None:
        """Take a `START` event, and what its head says of the version."""
        head = read_head(event.head)
        trace_id = None if head.caller is None else f"{head.caller.span.trace_id:032x}"
        with self._lock:
            self._forget(_key(event.stream))
            if len(self._begun) >= MAX_UNDER_WAY:
                # an end whose event was dropped leaves its start behind; the oldest goes
                self._forget(next(iter(self._begun)))
            self._begun[_key(event.stream)] = engine, head.path, version, trace_id
            self._under_way[engine] += 1

    def ended(
        self,
        engine: str,
        event: Event,
        slo: Slo,
        cause: str,
        evidence: Mapping[str, float] | None = None,
    ) -> Ended:
        """Take an `END` event; `cause` is why the stream was slow, if it was."""
        stream = event.stream
        reason = event.reason.name.lower() if event.reason is not None else "lost"
        good = is_good(stream, reason, slo)
        with self._lock:
            self._seq += 1
            _, path, version, trace_id = self._forget(_key(stream))
            done = Ended(
                seq=self._seq,
                engine=engine,
                stream=stream,
                path=path,
                reason=reason,
                ended_ns=event.at_ns,
                good=good,
                streaming=is_streaming(stream),
                cause="none" if good else cause,
                untold=why_untold(stream, reason),
                evidence={} if good or evidence is None else evidence,
                version=version,
                trace_id=trace_id,
            )
            self._ended.append(_Kept(done.seq, done.ended_ns, engine, _packed(done)))
        return done

    def forget(self, engine: str) -> None:
        """An engine is gone: no end comes any more for what it had under way."""
        with self._lock:
            self._begun = {key: each for key, each in self._begun.items() if each[0] != engine}
            del self._under_way[engine]

    def under_way(self, engine: str) -> int:
        """How many streams of an engine have started and not ended."""
        with self._lock:
            return self._under_way[engine]

    def _forget(self, key: tuple[int, int]) -> _Begun:
        begun = self._begun.pop(key, None)
        if begun is None:
            return "", "", None, None
        self._under_way[begun[0]] -= 1
        return begun

    def after(self, seq: int, limit: int, engine: str | None) -> tuple[list[Ended], int]:
        """Up to `limit` ended streams after `seq`, oldest first, and the last seq looked at."""
        with self._lock:
            found: list[_Kept] = []
            last = seq
            for each in self._ended:
                if each.seq <= seq:
                    continue
                if len(found) == limit:
                    break
                last = each.seq
                if engine is None or each.engine == engine:
                    found.append(each)
        return [each.whole() for each in found], last

    def newest(self, limit: int, engine: str | None) -> tuple[list[Ended], int]:
        """The last `limit` ended streams, oldest first, and the last seq there is."""
        with self._lock:
            mine = (each for each in reversed(self._ended) if engine in {None, each.engine})
            found, last = list(islice(mine, limit)), self._seq
        return [each.whole() for each in reversed(found)], last

    def recent(self, engine: str, since_ns: int) -> list[Ended]:
        """The engine's streams that ended after `since_ns`, newest first."""
        with self._lock:
            since = takewhile(lambda each: each.ended_ns >= since_ns, reversed(self._ended))
            found = [each for each in since if each.engine == engine]
        return [each.whole() for each in found]


class _Kept(NamedTuple):
    """An ended stream in a quarter of the memory: what is asked for by, and the rest as bytes."""

    seq: int
    ended_ns: int
    engine: str
    packed: bytes

    def whole(self) -> Ended:
        stream, *rest = marshal.loads(self.packed)
        *numbers, flags, local_port, remote_port, address = stream
        fields: tuple[Any, ...] = (*numbers, StreamFlags(flags), local_port, remote_port, address)
        return Ended(self.seq, self.engine, Stream(*fields), *rest)


def _packed(ended: Ended) -> bytes:
    _, _, stream, *rest = _fields_of_ended(ended)
    rest[_EVIDENCE_AT] = dict(ended.evidence)
    *numbers, flags, local_port, remote_port, address = stream
    plain_stream = (*numbers, int(flags), local_port, remote_port, address)
    return marshal.dumps((plain_stream, *rest))


_EVIDENCE_AT: Final = Ended.__slots__.index("evidence") - Ended.__slots__.index("path")
_fields_of_ended: Final = attrgetter(*Ended.__slots__)


def take(
    log: StreamLog,
    event: Event,
    engine: str,
    slo: Slo,
    cause: str,
    evidence: Mapping[str, float] | None = None,
    version: str | None = None,
) -> Ended | None:
    """Hand one event of `engine` to the log; the stream if it ended.

    `version` is that of a stream that starts.
    """
    if event.kind is EventKind.START:
        log.started(engine, event, version)
    elif event.kind is EventKind.END:
        return log.ended(engine, event, slo, cause, evidence)
    return None


def _key(stream: Stream) -> tuple[int, int]:
    return stream.connection, stream.number
