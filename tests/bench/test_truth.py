"""What is held against the kernel's account finds what is wrong with it."""

from dataclasses import replace

from bpf.layout import STREAM, Counters, EndReason, Event, EventKind, parse_stream
from tests.bench.truth import Truth, compare, compare_totals, summary, totals

TRUTH = Truth("kind", EndReason.COMPLETE, 3, 30, 4, 1, 200, is_events=True)


def end_of(truth: Truth) -> Event:
    """An end that tells the truth."""
    stream = parse_stream(bytes(STREAM.size))._replace(
        chunks=truth.chunks,
        body_bytes=truth.body_bytes,
        events=truth.events,
        role_frames=truth.role_frames,
        status=truth.status,
    )
    return Event(0, EventKind.END, truth.reason, stream)


def test_a_true_account_has_no_mismatch() -> None:
    assert compare({1: TRUTH}, {1: end_of(TRUTH)}) == []


def test_every_wrong_field_is_found() -> None:
    wrong = replace(TRUTH, reason=EndReason.LOST, chunks=2, status=0)
    (found,) = compare({1: TRUTH}, {1: end_of(wrong)})
    assert found.fields == {"reason": (1, 5), "chunks": (3, 2), "status": (200, 0)}


def test_a_stream_without_an_end_is_wrong_in_all() -> None:
    found = compare({1: TRUTH}, {})
    counts = summary({1: TRUTH}, found)
    assert counts["chunk_mismatch"] == counts["reason_mismatch"] == 1
    assert counts["by_kind"] == {"kind": {"count": 1, "mismatch": 1}}


def test_totals_are_the_sums_of_the_truths() -> None:
    unanswered = Truth("kind", EndReason.CLIENT_RESET, status=0)
    expected = totals([TRUTH, TRUTH, unanswered])
    assert (expected["requests"], expected["responses"], expected["gaps"]) == (3, 2, 4)
    assert (expected["ends_complete"], expected["ends_early"]) == (2, 1)
    assert (expected["first_chunks"], expected["ends_unstarted"]) == (2, 1)


def test_a_wrong_total_is_found() -> None:
    assert compare_totals({"chunks": 3}, Counters(chunks=4)) == {"chunks": (3, 4)}
