from typing import Any

import pytest

from agent.stream_cause import is_slow, stream_cause
from bpf.layout import StreamFlags
from controller.attribution import Cause
from controller.policy_model import Slo

from .made import MS, stream

SLO = Slo(ttft_ms=500, gap_ms=100)
BEGAN = 1_000 * MS
ENDED = BEGAN + 2_000 * MS
LATE: dict[str, Any] = {"gaps_over": 1, "gap_max_ns": 400 * MS, "write_gap_max_ns": 390 * MS}
"""The gap was there when the application wrote."""
ON_WIRE: dict[str, Any] = {"gaps_over": 1, "gap_max_ns": 400 * MS, "write_gap_max_ns": 9 * MS}
NO_WRITES: dict[str, Any] = {"write_ns": 0, "last_write_ns": 0, "write_gap_max_ns": 0, "read_ns": 0}
"""As kernels before 6.3 tell it."""
LATE_FIRST: dict[str, Any] = {"first_ns": BEGAN + 600 * MS}
BATCH = {"batch": 300 * MS}

TABLE: list[tuple[str, dict[str, Any], dict[str, int], Cause]] = [
    ("a late write while the engine's steps were long", LATE, BATCH, Cause.BATCH),
    ("a late write and nothing that ailed the engine", LATE, {}, Cause.APPLICATION),
    (
        "a late write while others' segments were lost",
        LATE,
        {"network": 900 * MS, "slow_reader": 900 * MS, "neighbour_cpu": 5 * MS},
        Cause.NEIGHBOUR_CPU,
    ),
    ("a late write while only the network ailed", LATE, {"network": 900 * MS}, Cause.APPLICATION),
    (
        "a late write, and what ailed longest is not known",
        LATE,
        {"unknown": 900 * MS, "own_quota": 100 * MS},
        Cause.OWN_QUOTA,
    ),
    (
        "a late write on a stream that also lost segments",
        LATE | {"retransmits": 20},
        {"engine_stopped": 400 * MS},
        Cause.ENGINE_STOPPED,
    ),
    ("a gap on the wire of segments sent again", ON_WIRE | {"retransmits": 9}, {}, Cause.NETWORK),
    ("the same while steps were long", ON_WIRE | {"retransmits": 9}, BATCH, Cause.NETWORK),
    (
        "a gap on the wire while the client's window was full",
        ON_WIRE | {"rwnd_limited_ms": 380, "blocked_ns": 390 * MS},
        BATCH,
        Cause.SLOW_READER,
    ),
    (
        "a full window that also dropped what did not fit",
        ON_WIRE | {"rwnd_limited_ms": 380, "retransmits": 4},
        {},
        Cause.SLOW_READER,
    ),
    ("a gap on the wire for want of congestion window", ON_WIRE, BATCH, Cause.NETWORK),
    (
        "a late write that the wire made much later",
        LATE | {"write_gap_max_ns": 120 * MS, "retransmits": 9},
        BATCH,
        Cause.NETWORK,
    ),
    (
        "a late write that the wire made hardly later",
        LATE | {"write_gap_max_ns": 250 * MS, "retransmits": 9},
        BATCH,
        Cause.BATCH,
    ),
    ("a late first chunk while requests queued", LATE_FIRST, {"queue": 600 * MS}, Cause.QUEUE),
    ("a late first chunk and nothing that ailed", LATE_FIRST, {}, Cause.APPLICATION),
    (
        "no first chunk at all in twice its time",
        {"first_ns": 0, "chunks": 0},
        {"memory": 700 * MS},
        Cause.MEMORY,
    ),
    (
        "without writes: more than three segments sent again a second",
        ON_WIRE | NO_WRITES | {"retransmits": 7},
        {},
        Cause.NETWORK,
    ),
    (
        "without writes: three segments sent again a second",
        ON_WIRE | NO_WRITES | {"retransmits": 6},
        {},
        Cause.UNKNOWN,
    ),
    (
        "without writes: a full window",
        ON_WIRE | NO_WRITES | {"rwnd_limited_ms": 300},
        BATCH,
        Cause.SLOW_READER,
    ),
    ("without writes: long steps", ON_WIRE | NO_WRITES, BATCH, Cause.BATCH),
    ("without writes: nothing", ON_WIRE | NO_WRITES, {}, Cause.UNKNOWN),
]


@pytest.mark.parametrize(
    ("fields", "ailed", "cause"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE]
)
def test_the_cause_of(fields: dict[str, Any], ailed: dict[str, int], cause: Cause) -> None:
    verdict = stream_cause(stream(request_ns=BEGAN, **fields), ENDED, SLO, ailed)
    assert verdict.cause is cause
    assert verdict.evidence


def test_a_stream_that_was_not_slow_has_no_cause_whatever_ailed_its_engine() -> None:
    verdict = stream_cause(stream(request_ns=BEGAN, retransmits=99), ENDED, SLO, BATCH)
    assert (verdict.cause, verdict.evidence) == (Cause.NONE, {})


def test_evidence_is_in_the_units_its_names_say() -> None:
    slow = stream(request_ns=BEGAN, retransmits=8, read_ns=BEGAN + 3 * MS, **LATE)
    evidence = stream_cause(slow, ENDED, SLO, BATCH | {"queue": 0}).evidence
    assert evidence["gap_max_ms"] == 400
    assert evidence["write_gap_max_ms"] == 390
    assert evidence["retransmits_per_s"] == 4
    assert evidence["read_wait_ms"] == 3
    assert evidence["engine_batch_ms"] == 300
    assert "engine_queue_ms" not in evidence


@pytest.mark.parametrize(
    ("fields", "life_ms", "slow"),
    [
        ({}, 2_000, False),
        ({"gaps_over": 1}, 2_000, True),
        ({"first_ns": BEGAN + 500 * MS}, 2_000, False),
        ({"first_ns": BEGAN + 501 * MS}, 2_000, True),
        ({"first_ns": 0, "head_ns": 0, "flags": StreamFlags(0)}, 501, True),
        ({"first_ns": 0, "head_ns": 0, "flags": StreamFlags(0)}, 500, False),
        ({"first_ns": 0}, 501, True),
        ({"first_ns": 0, "flags": StreamFlags.LENGTH}, 9_000, False),
    ],
)
def test_slow_is_a_late_gap_or_first_chunk_or_one_that_never_came(
    fields: dict[str, Any], life_ms: int, slow: bool
) -> None:
    assert is_slow(stream(request_ns=BEGAN, **fields), BEGAN + life_ms * MS, SLO) is slow
