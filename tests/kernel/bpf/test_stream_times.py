"""Times, against the peers' own clocks; thresholds; and the counters as the streams' sum."""

import time

import pytest

from bpf.histogram import SLOTS, slot_of
from bpf.layout import EdgeKind, Event, EventKind
from tests.kernel.bpf.conftest import Engine
from tests.kernel.bpf.streams import assert_complete, follow
from tests.kernel.bpf.watched import Look
from tests.kernel.bpf.wire import (
    CHUNKED_HEAD,
    CLOSE,
    DONE,
    LAST,
    Client,
    chunk,
    chunked,
    event,
    pause,
    send,
)

pytestmark = pytest.mark.kernel

BEGUN = CHUNKED_HEAD + chunk(event(1)) + chunk(event(2))


# times, against the peers' own clocks

PAUSE_NS = 20_000_000


def paused_stream(engine: Engine, count: int) -> tuple[Look, Event, int]:
    """A stream with a pause before each of its chunks, and how long it took the client."""
    look = engine.look()
    steps = [
        step
        for number in range(count)
        for step in (pause(PAUSE_NS / 1e9), send(chunk(event(number))))
    ]
    with Client.to(engine.port) as client:
        before_ns = time.monotonic_ns()
        client.run(send(CHUNKED_HEAD), *steps, send(LAST))
        after_ns = time.monotonic_ns()
        return look, look.end(), after_ns - before_ns


def test_ttft_is_at_least_the_servers_pause_and_at_most_the_clients_wait(engine: Engine) -> None:
    _, end, client_ns = paused_stream(engine, 1)
    assert end.stream.ttft_ns is not None
    assert PAUSE_NS <= end.stream.ttft_ns <= client_ns


def test_ttft_is_counted_to_the_first_chunk_and_not_to_the_head(engine: Engine) -> None:
    _, end, _ = paused_stream(engine, 1)
    assert end.stream.first_ns - end.stream.head_ns >= PAUSE_NS // 2
    assert end.stream.request_ns < end.stream.head_ns < end.stream.first_ns


def test_gaps_are_at_least_the_servers_pauses_and_together_at_most_the_clients_wait(
    engine: Engine,
) -> None:
    look, end, client_ns = paused_stream(engine, 4)
    stream = end.stream
    assert stream.gap_max_ns >= PAUSE_NS
    assert stream.gap_sum_ns == stream.last_ns - stream.first_ns
    assert 3 * PAUSE_NS // 2 <= stream.gap_sum_ns <= client_ns
    assert (look.counters.gaps, look.counters.gap_sum_ns) == (3, stream.gap_sum_ns)


def test_the_clock_is_the_monotonic_one(engine: Engine) -> None:
    before_ns = time.monotonic_ns()
    end = follow(engine, send(chunked([event(1)])))
    stream = end.stream
    times = [before_ns, stream.request_ns, stream.head_ns, stream.first_ns, stream.last_ns]
    times += [end.at_ns, time.monotonic_ns()]
    assert times == sorted(times)


def test_chunks_of_one_packet_have_no_gap(engine: Engine) -> None:
    end = follow(engine, send(chunked([event(number) for number in range(5)])))
    assert (end.stream.gap_sum_ns, end.stream.chunks) == (0, 5)


def test_ttft_falls_into_the_slot_that_user_space_computes(engine: Engine) -> None:
    before = engine.watched.histogram("ttft_histograms", engine.row)
    ttfts = [
        follow(engine, pause(0.003 * n), send(chunked([b"x"]))).stream.ttft_ns for n in range(6)
    ]
    since = engine.watched.histogram("ttft_histograms", engine.row).since(before)
    expected = [0] * SLOTS
    for ttft_ns in ttfts:
        assert ttft_ns is not None
        expected[slot_of(ttft_ns)] += 1
    assert list(since.slots) == expected
    assert since.sum_ns == sum(ttft_ns or 0 for ttft_ns in ttfts)


def test_a_gap_falls_into_the_slot_that_user_space_computes(engine: Engine) -> None:
    before = engine.watched.histogram("gap_histograms", engine.row)
    ends = [
        follow(engine, send(CHUNKED_HEAD + chunk(b"x")), pause(0.003 * n), send(chunk(b"y") + LAST))
        for n in range(6)
    ]
    since = engine.watched.histogram("gap_histograms", engine.row).since(before)
    expected = [0] * SLOTS
    for end in ends:
        expected[slot_of(end.stream.gap_max_ns)] += 1
    assert list(since.slots) == expected
    assert since.sum_ns == sum(end.stream.gap_sum_ns for end in ends)


def test_a_response_that_is_no_event_stream_has_chunks_but_no_times(engine: Engine) -> None:
    look = engine.look()
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    with Client.to(engine.port) as client:
        client.run(send(chunked([b"one", b"two"], head)))
        end = look.end()
    assert_complete(end, 2, 6)
    assert (end.stream.ttft_ns, look.counters.first_chunks, look.counters.gaps) == (None, 0, 0)


# thresholds


def test_times_over_their_thresholds_are_counted_and_raise_edges(engine: Engine) -> None:
    engine.watch(ttft_slo_ns=PAUSE_NS // 2, gap_slo_ns=PAUSE_NS // 2)
    look, end, _ = paused_stream(engine, 3)
    engine.watch()
    counters = look.counters
    assert counters.ttft_over == 1
    assert counters.gaps_over == end.stream.gaps_over >= 1
    assert counters.gaps_unsent == 0
    edges = [edge for edge in engine.watched.edges if edge.kind is not EdgeKind.WAIT]
    assert {edge.kind for edge in edges} == {EdgeKind.TTFT, EdgeKind.GAP}
    assert all(edge.slot == engine.row and edge.value_ns > PAUSE_NS // 2 for edge in edges)
    assert edges[0].value_ns == end.stream.ttft_ns


def test_times_under_their_thresholds_raise_nothing(engine: Engine) -> None:
    engine.watch(ttft_slo_ns=10**12, gap_slo_ns=10**12)
    look, end, _ = paused_stream(engine, 3)
    engine.watch()
    assert (look.counters.ttft_over, look.counters.gaps_over, end.stream.gaps_over) == (0, 0, 0)
    assert not [edge for edge in engine.watched.edges if edge.kind is not EdgeKind.WAIT]


def test_without_a_threshold_nothing_is_over(engine: Engine) -> None:
    look, _, _ = paused_stream(engine, 2)
    assert (look.counters.ttft_over, look.counters.gaps_over) == (0, 0)


# all of it together


def test_the_counters_are_the_sum_of_the_streams(engine: Engine) -> None:
    look = engine.look()
    payloads = [event(1), event(2), DONE]
    with Client.to(engine.port) as client:
        for _ in range(5):
            client.run(send(chunked(payloads)))
        client.run(send(BEGUN), CLOSE)
    ends = look.ends(6)
    counters = look.counters
    assert (counters.requests, counters.responses, counters.first_chunks) == (6, 6, 6)
    assert counters.chunks == sum(end.stream.chunks for end in ends) == 12
    assert counters.gaps == 6
    assert counters.body_bytes == sum(end.stream.body_bytes for end in ends)
    assert counters.ttft_sum_ns == sum(end.stream.ttft_ns or 0 for end in ends)
    assert (counters.ends_complete, counters.ends_early, counters.ends_unstarted) == (5, 1, 0)


def test_every_stream_starts_has_a_first_chunk_and_ends_in_this_order(engine: Engine) -> None:
    look = engine.look()
    with Client.to(engine.port) as client:
        client.run(send(chunked([event(1), event(2)])))
        look.end()
    assert [seen.kind for seen in engine.watched.events] == [
        EventKind.START,
        EventKind.FIRST,
        EventKind.END,
    ]
