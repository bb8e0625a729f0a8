"""What crosses between the kernel and user space: bpf/layout.h, in Python.

Struct formats are native; a test compares each with the object's BTF, so the two files cannot
drift apart. A change to any of them needs a new `LAYOUT_VERSION`, so that pins of an older agent
are replaced and not misread.
"""

import ipaddress
import socket
import struct
from dataclasses import dataclass
from enum import IntEnum, IntFlag
from operator import sub
from typing import Any, Final, NamedTuple

from bpf.histogram import SLOTS

LAYOUT_VERSION: Final = 6

NAME_BYTES: Final = 64
HEAD_BYTES: Final = 1024
MAX_ROLES: Final = 512

TARGET: Final = struct.Struct(f"=5Q{NAME_BYTES}s")
COUNTERS: Final = struct.Struct("=42Q48x")
HEALTH: Final = struct.Struct("=8Q")
HISTOGRAM: Final = struct.Struct(f"=Q{SLOTS}Q5Q")
CULPRIT_KEY: Final = struct.Struct("=QII")
CULPRIT: Final = struct.Struct("=QQQ16s")
STREAM: Final = struct.Struct("=13Q12I4HI16s4x")
ROLE_KEY: Final = struct.Struct("=I16s")
ROLE: Final = struct.Struct("=8Q")
EVENT: Final = struct.Struct("=QII")
EDGE: Final = struct.Struct("=QQII")


class TargetKind(IntEnum):
    """What a target is to us."""

    ENGINE = 1
    NEIGHBOUR = 2


class EventKind(IntEnum):
    """What an event on the ring tells."""

    START = 1
    FIRST = 2
    END = 3


class EndReason(IntEnum):
    """Why a stream ended.

    `COMPLETE`: its framing said so. `SERVER_CLOSED`: the engine closed or reset before that.
    `CLIENT_RESET`: the client gave up: it reset, or closed and then so did the engine. `CLOSED`:
    the network did, by a timeout or another error.
    `LOST`: the bytes were not HTTP/1.1 as we know it, or left before we looked.
    """

    COMPLETE = 1
    SERVER_CLOSED = 2
    CLIENT_RESET = 3
    CLOSED = 4
    LOST = 5


class StreamFlags(IntFlag):
    """What a response's head said.

    `OPAQUE`: there was none to read, for TLS or HTTP/2 hide it. What is told then is no stream but
    a turn on the connection: from the client's first bytes to its next ones after an answer. Its
    chunks are what the engine wrote at once, so `first_ns` may be a mere head, and requests that
    share the connection share the turn.
    """

    CHUNKED = 1
    EVENTS = 2
    LENGTH = 4
    OPAQUE = 8


class EdgeKind(IntEnum):
    """Which threshold was crossed."""

    WAIT = 1
    GAP = 2
    TTFT = 3


class Counters(NamedTuple):
    """What one target did, over all CPUs. Every field only grows.

    `wait_*` is run-queue delay: by tasks of the target itself (`self`), by others, or by nobody
    (the rest: a sleeping CPU took time to wake). `waits_over` and `gaps_over` and `ttft_over`
    crossed the target's thresholds; a wait for its own tasks never does. `gaps_unsent` of the gaps
    over it were unsent bytes for a half or more. `ends_unstarted` streams ended before their first
    chunk.
    `events` are server-sent events in the chunks. `loss_probes` are among the `retransmits`.
    `writes_stalled` left bytes unsent, `writes_held` of them because the client's window was full;
    `blocked_ns` is time with unsent bytes over all streams,
    `blocked_begun - blocked_ended` streams have some now. `read_wait_ns` is from a request's first
    byte in to the engine's first read, over `reads`. `deadlines_missed` had no first chunk in time.
    `receive_queue_full` times the engine read so late that a client was told to send no more.
    `opaque` turns on TLS or HTTP/2 connections are in no other counter of streams.
    """

    run_ns: int = 0
    wait_ns: int = 0
    waits: int = 0
    wait_self_ns: int = 0
    wait_other_ns: int = 0
    waits_over: int = 0
    involuntary: int = 0
    edge_ns: int = 0
    requests: int = 0
    responses: int = 0
    first_chunks: int = 0
    ttft_sum_ns: int = 0
    ttft_over: int = 0
    chunks: int = 0
    gaps: int = 0
    gap_sum_ns: int = 0
    gaps_over: int = 0
    body_bytes: int = 0
    ends_complete: int = 0
    ends_early: int = 0
    ends_unstarted: int = 0
    retransmits: int = 0
    errors: int = 0
    events: int = 0
    loss_probes: int = 0
    synack_retransmits: int = 0
    resets_sent: int = 0
    resets_received: int = 0
    receive_queue_full: int = 0
    writes: int = 0
    writes_stalled: int = 0
    write_again: int = 0
    blocked_ns: int = 0
    blocked_begun: int = 0
    blocked_ended: int = 0
    reads: int = 0
    read_wait_ns: int = 0
    deadlines_missed: int = 0
    role_frames: int = 0
    writes_held: int = 0
    opaque: int = 0
    gaps_unsent: int = 0

    def since(self, earlier: "Counters") -> "Counters":
        """What came after `earlier` was read."""
        return Counters._make(map(sub, self, earlier))


@dataclass(frozen=True, slots=True)
class Health:
    """What our own limits cost, over all CPUs. Every field only grows."""

    event_drops: int = 0
    edge_drops: int = 0
    storage_full: int = 0
    lost_streams: int = 0
    culprits_full: int = 0
    roles_full: int = 0


class Stream(NamedTuple):
    """One request and its answer, as far as it has come. Times are CLOCK_MONOTONIC, 0: not yet.

    `connection` is the socket's cookie, `number` counts the streams on it from 1. `read_ns` is the
    engine's first read of the request, `write_ns` when its first bytes left, `last_write_ns` and
    `write_gap_max_ns` its writes as they returned, but for the one that ended the stream. Reads and
    writes are 0 on kernels before 6.3.
    `blocked_ns` is time with unsent bytes; `busy_ms` and the limited times are TCP_INFO's for this
    stream, where busy counts both of the others.
    """

    connection: int
    request_ns: int
    head_ns: int
    first_ns: int
    last_ns: int
    gap_sum_ns: int
    gap_max_ns: int
    body_bytes: int
    read_ns: int
    write_ns: int
    last_write_ns: int
    write_gap_max_ns: int
    blocked_ns: int
    busy_ms: int
    rwnd_limited_ms: int
    sndbuf_limited_ms: int
    writes_stalled: int
    write_again: int
    number: int
    slot: int
    chunks: int
    gaps_over: int
    retransmits: int
    events: int
    role_frames: int
    status: int
    flags: StreamFlags
    local_port: int
    remote_port: int
    remote_address: str

    @property
    def ttft_ns(self) -> int | None:
        """First byte of the request in to first data chunk out; None before that."""
        return self.first_ns - self.request_ns if self.first_ns else None


class Event(NamedTuple):
    """Something happened to a stream. `reason` is set at its end, `head` at its start."""

    at_ns: int
    kind: EventKind
    reason: EndReason | None
    stream: Stream
    head: bytes = b""


@dataclass(frozen=True, slots=True)
class Edge:
    """A threshold was crossed at `at_ns`, by `value_ns`."""

    at_ns: int
    value_ns: int
    slot: int
    kind: EdgeKind


_AF_INET6: Final = 10
_FLAGS_AT: Final = 26
_EVENT_OF_STREAM: Final = struct.Struct(f"{EVENT.format}{STREAM.format[1:]}")
_OF_EVENT: Final = 3
"""How many of its fields are the event's own."""

_KIND: Final = struct.Struct("=8xI")
_HEAD_LEN: Final = struct.Struct("=II")
_HEAD_AT: Final = _EVENT_OF_STREAM.size + _HEAD_LEN.size
_KINDS: Final = {int(kind): kind for kind in EventKind}
_REASONS: Final = {0: None} | {int(reason): reason for reason in EndReason}
_FLAGS: Final = {each: StreamFlags(each) for each in range(2 * max(StreamFlags))}
"""There are thousands of streams a second: an enumeration takes thrice as long as a table."""


def _address(family: int, address: bytes) -> str:
    # for the same reason: for IPv4 a fifth of the time that ipaddress takes
    if family != _AF_INET6:
        return socket.inet_ntop(socket.AF_INET, address[:4])
    remote = ipaddress.IPv6Address(address)
    return str(remote.ipv4_mapped or remote)


def _stream(fields: tuple[Any, ...]) -> Stream:
    flags, local_port, remote_port, family, address = fields[_FLAGS_AT:]
    return Stream._make(
        (
            *fields[:_FLAGS_AT],
            _FLAGS[flags],
            local_port,
            remote_port,
            _address(family, address),
        )
    )


def parse_stream(raw: bytes | memoryview) -> Stream:
    """A `struct stream`."""
    return _stream(STREAM.unpack(raw))


def kind_of(raw: bytes) -> int:
    """An `EventKind`, of an event that need not be parsed for it."""
    kind: int
    (kind,) = _KIND.unpack_from(raw)
    return kind


def parse_event(raw: bytes) -> Event:
    """A `struct event`, or a `struct start_event` when it is a start."""
    fields = _EVENT_OF_STREAM.unpack_from(raw)
    at_ns, kind, reason = fields[:_OF_EVENT]
    head = b""
    if kind == EventKind.START:
        head_len, _ = _HEAD_LEN.unpack_from(raw, _EVENT_OF_STREAM.size)
        head = raw[_HEAD_AT : _HEAD_AT + min(head_len, HEAD_BYTES)]
    return Event(at_ns, _KINDS[kind], _REASONS[reason], _stream(fields[_OF_EVENT:]), head)


def parse_edge(raw: bytes) -> Edge:
    """A `struct edge`."""
    at_ns, value_ns, slot, kind = EDGE.unpack(raw)
    return Edge(at_ns, value_ns, slot, EdgeKind(kind))
