"""Streams, events and histograms made by hand, with only what a test says about them."""

import time
from typing import Any

from bpf.histogram import SLOTS, Histogram, slot_of
from bpf.layout import EndReason, Event, EventKind, Stream, StreamFlags

MS = 1_000_000


def stream(**fields: Any) -> Stream:
    """A complete event stream of three chunks, 10 ms to the first, 5 ms between them."""
    request_ns = fields.pop("request_ns", 1_000 * MS)
    given: dict[str, Any] = {
        "connection": 1,
        "request_ns": request_ns,
        "head_ns": request_ns + 1,
        "first_ns": request_ns + 10 * MS,
        "last_ns": request_ns + 20 * MS,
        "gap_sum_ns": 10 * MS,
        "gap_max_ns": 5 * MS,
        "body_bytes": 300,
        "read_ns": request_ns + 1,
        "write_ns": request_ns + 1,
        "last_write_ns": request_ns + 20 * MS,
        "write_gap_max_ns": 5 * MS,
        "blocked_ns": 0,
        "busy_ms": 20,
        "rwnd_limited_ms": 0,
        "sndbuf_limited_ms": 0,
        "writes_stalled": 0,
        "write_again": 0,
        "number": 1,
        "slot": 1,
        "chunks": 3,
        "gaps_over": 0,
        "retransmits": 0,
        "events": 3,
        "role_frames": 0,
        "status": 200,
        "flags": StreamFlags.CHUNKED | StreamFlags.EVENTS,
        "local_port": 8000,
        "remote_port": 40_000,
        "remote_address": "127.0.0.1",
    }
    return Stream(**given | fields)


def start(head: bytes = b"POST /v1/completions HTTP/1.1\r\n", **fields: Any) -> Event:
    return Event(1, EventKind.START, None, stream(**fields), head)


def end(
    reason: EndReason | None = EndReason.COMPLETE, at_ns: int | None = None, **fields: Any
) -> Event:
    return Event(at_ns or time.monotonic_ns(), EventKind.END, reason, stream(**fields))


def histogram(*values_ns: int) -> Histogram:
    slots = [0] * SLOTS
    for value in values_ns:
        slots[slot_of(value)] += 1
    return Histogram(tuple(slots), sum(values_ns))
