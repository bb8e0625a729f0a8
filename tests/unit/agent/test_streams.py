import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.request_head import read_head
from agent.streams import (
    KEPT,
    MAX_UNDER_WAY,
    StreamLog,
    is_good,
    take,
    why_untold,
)
from bpf.layout import EndReason, Event, EventKind, StreamFlags
from controller.policy_model import Slo

from .made import MS, end, start, stream

SLO = Slo(ttft_ms=50, gap_ms=20)
LENGTH = StreamFlags.LENGTH


def log_of(*engines: str) -> StreamLog:
    """A log of streams that ended, one for each name."""
    log = StreamLog()
    for number, engine in enumerate(engines):
        log.ended(engine, end(number=number), SLO, "none")
    return log


@pytest.mark.parametrize(
    ("reason", "fields", "good"),
    [
        ("complete", {}, True),
        ("complete", {"request_ns": 0, "first_ns": 50 * MS}, True),
        ("complete", {"request_ns": 0, "first_ns": 50 * MS + 1}, False),
        ("complete", {"gaps_over": 1}, False),
        ("complete", {"status": 500}, False),
        ("complete", {"status": 400}, False),
        ("complete", {"first_ns": 0, "chunks": 0}, False),
        ("complete", {"first_ns": 0, "flags": LENGTH}, True),
        ("complete", {"first_ns": 0, "flags": LENGTH, "status": 404}, False),
        ("server_closed", {}, False),
        ("client_reset", {}, False),
        ("closed", {}, False),
        ("lost", {}, False),
    ],
)
def test_a_stream_is_good_if_complete_without_error_and_within_both_limits(
    reason: str, fields: dict[str, Any], good: bool
) -> None:
    assert is_good(stream(**fields), reason, SLO) is good


def test_a_stream_that_ended_is_shown_as_it_was_however_it_is_kept() -> None:
    log = StreamLog()
    log.started("e", start(number=7), "canary")
    slow = log.ended(
        "e", end(number=7, gaps_over=2), SLO, "neighbour_cpu", {"share": 0.5, "waits": 3}
    )
    good = log.ended("é/0", end(number=8), SLO, "none")
    assert slow.evidence == {"share": 0.5, "waits": 3}
    assert log.newest(9, None)[0] == log.after(0, 9, None)[0] == [slow, good]
    assert log.recent("e", 0) == [slow]


UNANSWERED: dict[str, Any] = {"first_ns": 0, "head_ns": 0, "status": 0, "flags": StreamFlags(0)}


@pytest.mark.parametrize(
    ("reason", "fields", "why"),
    [
        ("complete", {}, None),
        ("client_reset", {}, None),
        ("complete", {"first_ns": 0}, "complete"),
        ("client_reset", {"first_ns": 0}, "client_reset"),
        ("server_closed", UNANSWERED, "server_closed"),
        ("complete", {"first_ns": 0, "flags": LENGTH}, None),
        ("complete", {"first_ns": 0, "flags": LENGTH, "status": 503}, "error"),
        ("server_closed", {"first_ns": 0, "status": 500}, "error"),
        ("complete", UNANSWERED | {"flags": StreamFlags.OPAQUE}, None),
    ],
)
def test_a_stream_without_a_first_token_says_why_if_it_was_to_have_one(
    reason: str, fields: dict[str, Any], why: str | None
) -> None:
    assert why_untold(stream(**fields), reason) == why


@settings(deadline=None)
@given(st.binary(max_size=300))
def test_a_path_is_short_and_prints_whatever_the_head_is(head: bytes) -> None:
    path = read_head(head).path
    assert path.isprintable()
    assert len(path) <= 4 * 200
    path.encode()


@pytest.mark.parametrize(
    ("head", "path"),
    [
        (b"GET /v1/models HTTP/1.1\r\nhost: a\r\n", "/v1/models"),
        (b"POST /v1/completions?key=secret HTTP/1.1\r\n", "/v1/completions"),
        (b"GET /\x1b[2J HTTP/1.1\r\n", "/\\x1b[2J"),
        (b"GET /" + b"a" * 300, "/" + "a" * 199),
        (b"PRI", ""),
        (b"", ""),
        (b"\r\n\r\nGET /late HTTP/1.1\r\n", ""),
    ],
)
def test_a_path_is_the_request_lines_without_its_query(head: bytes, path: str) -> None:
    assert read_head(head).path == path


def test_a_stream_keeps_the_path_of_its_start() -> None:
    log = StreamLog()
    assert take(log, start(connection=7, number=2), "chat", SLO, "none") is None
    assert log.under_way("chat") == 1
    ended = take(log, end(connection=7, number=2), "chat", SLO, "none")
    assert ended is not None
    assert ended.path == "/v1/completions"
    assert log.under_way("chat") == 0


def test_a_stream_whose_start_was_before_us_has_no_path_and_counts_all_the_same() -> None:
    ended = take(StreamLog(), end(), "chat", SLO, "none")
    assert ended is not None
    assert (ended.seq, ended.path, ended.good) == (1, "", True)


def test_a_first_chunk_changes_nothing() -> None:
    log = StreamLog()
    assert take(log, Event(1, EventKind.FIRST, None, stream()), "chat", SLO, "none") is None
    assert log.newest(10, None) == ([], 0)


def test_only_a_bad_stream_gets_the_cause() -> None:
    log = StreamLog()
    assert log.ended("chat", end(), SLO, "batch").cause == "none"
    assert log.ended("chat", end(gaps_over=1), SLO, "batch").cause == "batch"


def test_an_end_without_a_reason_is_a_lost_stream() -> None:
    assert StreamLog().ended("chat", end(reason=None), SLO, "none").reason == "lost"


def test_starts_whose_ends_never_come_are_bounded_and_the_oldest_goes() -> None:
    log = StreamLog()
    for number in range(MAX_UNDER_WAY + 10):
        log.started("chat", start(number=number))
    assert log.under_way("chat") == MAX_UNDER_WAY
    assert log.ended("chat", end(number=9), SLO, "none").path == ""
    assert log.ended("chat", end(number=10), SLO, "none").path == "/v1/completions"


def test_streams_of_an_engine_that_is_gone_are_under_way_no_more() -> None:
    log = StreamLog()
    log.started("chat", start(number=1))
    log.started("code", start(number=2))
    log.forget("chat")
    assert (log.under_way("chat"), log.under_way("code")) == (0, 1)


def test_only_the_last_streams_are_remembered_and_paging_goes_on_after_a_gap() -> None:
    log = log_of(*["chat"] * (KEPT + 5))
    found, last = log.after(0, KEPT + 5, None)
    assert [each.seq for each in found] == list(range(6, KEPT + 6))
    assert last == KEPT + 5


@settings(deadline=None)
@given(
    st.lists(st.sampled_from(["chat", "code"]), max_size=60),
    st.sampled_from([None, "chat", "code"]),
    st.integers(1, 20),
)
def test_pages_hold_every_stream_once_in_order_and_come_to_an_end(
    engines: list[str], engine: str | None, limit: int
) -> None:
    log = log_of(*engines)
    seen: list[int] = []
    after = 0
    while page := log.after(after, limit, engine):
        found, last = page
        assert len(found) <= limit
        seen += [each.seq for each in found]
        if last == after:
            break
        after = last
    assert seen == [n for n, name in enumerate(engines, 1) if engine in {None, name}]
    assert after == len(engines)


def test_after_the_last_there_is_nothing_and_the_place_is_kept() -> None:
    log = log_of("chat", "chat")
    assert log.after(2, 10, None) == ([], 2)
    assert log.after(99, 10, None) == ([], 99)


def test_the_newest_are_the_last_of_that_engine_oldest_first() -> None:
    found, last = log_of("chat", "code", "chat", "chat", "code").newest(2, "chat")
    assert [each.seq for each in found] == [3, 4]
    assert last == 5


def test_recent_streams_are_those_that_ended_since() -> None:
    log = StreamLog()
    for at_ns in (100, 200, 300):
        log.ended("chat", end(at_ns=at_ns), SLO, "none")
    assert [each.ended_ns for each in log.recent("chat", 200)] == [300, 200]


def test_figures_are_in_the_units_their_names_say() -> None:
    began_ns = time.monotonic_ns() - 30 * MS
    ended = StreamLog().ended(
        "chat",
        end(at_ns=began_ns + 30 * MS, request_ns=began_ns, remote_address="::1"),
        SLO,
        "none",
    )
    fields = ended.as_dict()
    assert fields["ttft_ms"] == 10
    assert fields["gap_mean_ms"] == 5
    assert fields["gap_max_ms"] == 5
    assert fields["duration_ms"] == 30
    assert fields["remote"] == "[::1]:40000"
    assert abs(fields["ended_unix_s"] - time.time()) < 5


@pytest.mark.parametrize("fields", [{"chunks": 1}, {"first_ns": 0, "chunks": 0}])
def test_a_stream_without_gaps_has_no_figures_for_them(fields: dict[str, Any]) -> None:
    shown = StreamLog().ended("chat", end(**fields), SLO, "none").as_dict()
    assert (shown["gap_max_ms"], shown["gap_mean_ms"]) == (None, None)


@pytest.mark.parametrize("reason", list(EndReason))
def test_every_reason_has_its_own_word(reason: EndReason) -> None:
    assert StreamLog().ended("chat", end(reason), SLO, "none").reason == reason.name.lower()


@pytest.mark.parametrize(
    ("header", "trace_id"),
    [
        (b"traceparent: 00-" + b"ab" * 16 + b"-" + b"01" * 8 + b"-00\r\n", "ab" * 16),
        (b"traceparent: nonsense\r\n", None),
        (b"", None),
    ],
)
def test_a_stream_remembers_the_trace_it_was_requested_in(
    header: bytes, trace_id: str | None
) -> None:
    log = StreamLog()
    log.started("chat", start(b"POST /v1/completions HTTP/1.1\r\n" + header + b"\r\n"))
    assert log.ended("chat", end(), Slo(), "batch").as_dict()["trace_id"] == trace_id
