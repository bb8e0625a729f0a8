from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.stream_cause import is_slow, stream_cause
from bpf.layout import Stream, StreamFlags
from controller.attribution import Cause
from controller.policy_model import Slo

from .made import MS, stream

SLO = Slo(ttft_ms=500, gap_ms=100)
BEGAN = 1_000 * MS
ENDED = BEGAN + 2_000 * MS
LATE: dict[str, Any] = {"gaps_over": 1, "gap_max_ns": 400 * MS, "write_gap_max_ns": 390 * MS}
"""The gap was there when the application wrote."""
ON_WIRE: dict[str, Any] = {"gaps_over": 1, "gap_max_ns": 400 * MS, "write_gap_max_ns": 9 * MS}
NO_WRITES: dict[str, Any] = {"last_write_ns": 0, "write_gap_max_ns": 0, "read_ns": 0}
"""As kernels before 6.3 tell it: they do know when the first bytes left."""
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
        "a late write on a stream that also lost segments, and nothing that ailed",
        LATE | {"retransmits": 99},
        {},
        Cause.APPLICATION,
    ),
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
    (
        "without writes: bytes that could not leave for half of the gap, and were sent again",
        ON_WIRE | NO_WRITES | {"blocked_ns": 200 * MS, "retransmits": 2},
        BATCH,
        Cause.NETWORK,
    ),
    (
        "without writes: bytes that could leave for more than half of the gap",
        ON_WIRE | NO_WRITES | {"blocked_ns": 199 * MS, "retransmits": 2},
        BATCH,
        Cause.BATCH,
    ),
    ("without writes: long steps", ON_WIRE | NO_WRITES, BATCH, Cause.BATCH),
    ("without writes: nothing", ON_WIRE | NO_WRITES, {}, Cause.UNKNOWN),
]


BOUNDS: list[tuple[str, dict[str, Any], str, int, Cause, Cause]] = [
    # what else there is, the figure in question, its least value that counts, and the causes
    # just below it and from it on
    (
        "a window that was full for half of the gap",
        ON_WIRE,
        "rwnd_limited_ms",
        200,
        Cause.NETWORK,
        Cause.SLOW_READER,
    ),
    (
        "a gap when the application wrote that breaks the SLO",
        ON_WIRE | {"gap_max_ns": 101 * MS},
        "write_gap_max_ns",
        100 * MS + 1,
        Cause.NETWORK,
        Cause.BATCH,
    ),
    (
        "a late write that the wire made later by more than itself",
        LATE | {"write_gap_max_ns": 150 * MS},
        "gap_max_ns",
        300 * MS + 1,
        Cause.BATCH,
        Cause.NETWORK,
    ),
]


@pytest.mark.parametrize(
    ("others", "figure", "least", "below", "there"),
    [row[1:] for row in BOUNDS],
    ids=[row[0] for row in BOUNDS],
)
def test_the_cause_changes_exactly_at(
    others: dict[str, Any], figure: str, least: int, below: Cause, there: Cause
) -> None:
    found = [
        stream_cause(stream(request_ns=BEGAN, **others | {figure: least + by}), ENDED, SLO, BATCH)
        for by in (-1, 0)
    ]
    assert [verdict.cause for verdict in found] == [below, there]


def test_where_a_gap_may_be_short_the_wire_has_to_add_20_ms_to_a_late_write() -> None:
    strict = Slo(ttft_ms=500, gap_ms=5)
    found = [
        stream_cause(
            stream(request_ns=BEGAN, gaps_over=1, write_gap_max_ns=6 * MS, gap_max_ns=ns),
            ENDED,
            strict,
            BATCH,
        ).cause
        for ns in (26 * MS, 26 * MS + 1)
    ]
    assert found == [Cause.BATCH, Cause.NETWORK]


@st.composite
def streams(draw: st.DrawFn) -> Stream:
    """Streams of two seconds, with and without what kernels before 6.3 do not tell."""
    ms = st.integers(0, 2_000)
    told = draw(st.booleans())
    return stream(
        request_ns=BEGAN,
        first_ns=draw(st.sampled_from([0, BEGAN + 10 * MS, BEGAN + 600 * MS])),
        head_ns=draw(st.sampled_from([0, BEGAN + 1])),
        gaps_over=draw(st.integers(0, 3)),
        gap_max_ns=draw(ms) * MS,
        last_write_ns=BEGAN + 1 if told else 0,
        read_ns=BEGAN + 1 if told else 0,
        write_gap_max_ns=draw(ms) * MS if told else 0,
        retransmits=draw(st.integers(0, 20)),
        rwnd_limited_ms=draw(ms),
        blocked_ns=draw(ms) * MS,
    )


ailments = st.dictionaries(
    st.sampled_from([str(cause) for cause in Cause]), st.integers(0, 2_000 * MS)
)
ON_THE_WAY = {Cause.NETWORK, Cause.SLOW_READER}


@given(streams(), ailments)
def test_there_is_a_cause_exactly_when_a_stream_was_slow(
    ended: Stream, ailed: dict[str, int]
) -> None:
    cause = stream_cause(ended, ENDED, SLO, ailed).cause
    assert (cause is Cause.NONE) == (not is_slow(ended, ENDED, SLO))


@given(streams(), ailments)
def test_what_only_the_wire_made_late_is_never_laid_to_the_engine(
    ended: Stream, ailed: dict[str, int]
) -> None:
    if ended.gaps_over and ended.last_write_ns and ended.write_gap_max_ns <= SLO.gap_ms * MS:
        assert stream_cause(ended, ENDED, SLO, ailed).cause in ON_THE_WAY


@given(streams(), ailments)
def test_what_was_late_when_it_was_written_is_never_laid_to_the_way(
    ended: Stream, ailed: dict[str, int]
) -> None:
    if ended.last_write_ns and ended.gap_max_ns <= ended.write_gap_max_ns + 20 * MS:
        late = ended.write_gap_max_ns > SLO.gap_ms * MS
        if late or not ended.gaps_over:
            assert stream_cause(ended, ENDED, SLO, ailed).cause not in ON_THE_WAY


@given(streams(), ailments)
def test_others_troubles_on_the_way_say_nothing_of_a_stream(
    ended: Stream, ailed: dict[str, int]
) -> None:
    own = {name: ns for name, ns in ailed.items() if Cause(name) not in ON_THE_WAY}
    verdicts = [stream_cause(ended, ENDED, SLO, each) for each in (ailed, own)]
    assert verdicts[0].cause is verdicts[1].cause


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
