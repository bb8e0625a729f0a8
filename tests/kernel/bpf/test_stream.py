"""Streams as the kernel follows them, against the bytes a real server sent and a client received.

Everything is exact but times, which are held against the peers' own clocks.
"""

import threading
import time
from collections.abc import Callable
from itertools import accumulate

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bpf.histogram import SLOTS, slot_of
from bpf.layout import EdgeKind, EndReason, Event, EventKind, StreamFlags
from tests.kernel.bpf import wire
from tests.kernel.bpf.conftest import Engine, server
from tests.kernel.bpf.watched import Look
from tests.kernel.bpf.wire import (
    CHUNKED_HEAD,
    CLOSE,
    DIE,
    DONE,
    LAST,
    RESET,
    Client,
    chunk,
    chunked,
    event,
    give_up_after,
    pause,
    post,
    send,
)
from tests.kernel.conftest import MakeGroup

pytestmark = pytest.mark.kernel


def follow(engine: Engine, *script: wire.Step) -> Event:
    """Run one script on a connection of its own; returns how the kernel saw it end."""
    look = engine.look()
    with Client.to(engine.port) as client:
        client.run(*script)
        return look.end()


def assert_complete(end: Event, chunks: int, body_bytes: int) -> None:
    assert end.reason is EndReason.COMPLETE
    assert (end.stream.chunks, end.stream.body_bytes) == (chunks, body_bytes)


def of(payloads: list[bytes]) -> tuple[int, int]:
    """What is to be counted of these: chunks without the mark, bytes with it."""
    marks = sum(payload.startswith(b"data: [DONE]") for payload in payloads)
    return len(payloads) - marks, sum(map(len, payloads))


# where packets end


def test_one_chunk_a_write_is_counted(engine: Engine) -> None:
    payloads = [event(number) for number in range(20)]
    whole = chunked(payloads)
    ends = accumulate((len(chunk(payload)) for payload in payloads), initial=len(CHUNKED_HEAD))
    assert_complete(follow(engine, send(whole, ends)), *of(payloads))


def test_many_chunks_in_one_write_are_counted(engine: Engine) -> None:
    payloads = [event(number) for number in range(200)]
    assert_complete(follow(engine, send(chunked(payloads))), *of(payloads))


def test_a_response_cut_at_every_byte_is_counted(engine: Engine) -> None:
    whole = chunked([event(1), b"x", b"y" * 300, DONE])
    end = follow(engine, send(whole, range(1, len(whole))))
    assert_complete(end, 3, len(event(1)) + 301 + len(DONE))


def test_the_largest_packet_there_is_full_of_the_smallest_chunks_is_counted(engine: Engine) -> None:
    # six bytes each, so that nearly 64 KiB of them leave in one go
    payloads = [b"x"] * 10_000
    assert_complete(follow(engine, send(chunked(payloads))), 10_000, 10_000)


def test_a_chunk_of_many_packets_is_one(engine: Engine) -> None:
    payloads = [b"a" * 1_000_000, b"b"]
    assert_complete(follow(engine, send(chunked(payloads))), 2, 1_000_001)


sizes = st.one_of(st.integers(1, 40), st.sampled_from([255, 256, 4095, 4096, 100_000]))
payload_lists = st.lists(
    st.one_of(
        sizes.map(lambda size: b"x" * size),
        st.binary(min_size=1, max_size=40),
        st.sampled_from([DONE, b"\r\n", b"0\r\n\r\n", b"data: [DONE", b"HTTP/1.1 200 OK\r\n\r\n"]),
    ),
    max_size=12,
)


@settings(deadline=None, max_examples=120)
@given(payloads=payload_lists, data=st.data())
def test_any_chunks_cut_anywhere_are_counted(
    engine: Engine, payloads: list[bytes], data: st.DataObject
) -> None:
    whole = chunked(payloads)
    cuts = data.draw(st.sets(st.integers(1, len(whole) - 1), max_size=60))
    assert_complete(follow(engine, send(whole, cuts)), *of(payloads))


@settings(deadline=None, max_examples=40)
@given(payloads=payload_lists.filter(lambda payloads: sum(map(len, payloads)) < 300))
def test_small_chunks_cut_at_every_byte_are_counted(engine: Engine, payloads: list[bytes]) -> None:
    whole = chunked(payloads)
    assert_complete(follow(engine, send(whole, range(1, len(whole)))), *of(payloads))


def test_a_slow_reader_whose_chunks_pile_up_stays_exact(engine: Engine) -> None:
    payloads = [event(number) for number in range(3_000)]
    whole = chunked(payloads)
    ends = accumulate((len(chunk(payload)) for payload in payloads), initial=len(CHUNKED_HEAD))
    look = engine.look()
    with Client.to(engine.port, receive_buffer=1) as client:
        client.write(post([send(whole, ends)]))
        time.sleep(0.05)  # the server's writes fill both buffers and are merged there
        received = b""
        while len(received) < len(whole):
            received += client.read(min(700, len(whole) - len(received)))
        assert received == whole
        assert_complete(look.end(), *of(payloads))


# heads


def test_head_and_first_chunk_in_one_packet_are_told_apart(engine: Engine) -> None:
    whole = chunked([event(1), event(2)])
    end = follow(engine, send(whole, [len(CHUNKED_HEAD) + len(chunk(event(1)))]))
    assert_complete(end, 2, 2 * len(event(1)))


@pytest.mark.parametrize("cut", [1, 9, 12, 13, 40, len(CHUNKED_HEAD) - 3, len(CHUNKED_HEAD) - 1])
def test_a_head_cut_in_two_is_one(engine: Engine, cut: int) -> None:
    assert_complete(follow(engine, send(chunked([event(1)]), [cut])), 1, len(event(1)))


@pytest.mark.parametrize("change", [bytes.upper, bytes.lower, bytes.title])
def test_a_heads_case_does_not_matter(engine: Engine, change: Callable[[bytes], bytes]) -> None:
    status, _, headers = CHUNKED_HEAD.partition(b"\r\n")
    end = follow(engine, send(chunked([event(1)], status + b"\r\n" + change(headers))))
    assert_complete(end, 1, len(event(1)))
    assert end.stream.flags == StreamFlags.CHUNKED | StreamFlags.EVENTS


def test_a_heads_status_and_kind_are_noted(engine: Engine) -> None:
    end = follow(engine, send(chunked([event(1)])))
    assert end.stream.status == 200
    assert end.stream.flags == StreamFlags.CHUNKED | StreamFlags.EVENTS


def test_other_headers_that_end_in_length_are_not_the_bodys(engine: Engine) -> None:
    head = b"HTTP/1.1 200 OK\r\nX-Prompt-Length: 12\r\nContent-Length: 5\r\nX-Length: 3\r\n\r\n"
    assert_complete(follow(engine, send(head + b"hello")), 0, 5)


def test_other_headers_that_say_chunked_do_not_make_a_body_chunked(engine: Engine) -> None:
    head = b"HTTP/1.1 200 OK\r\nX-Prefill: chunked\r\nContent-Length: 5\r\n\r\n"
    assert_complete(follow(engine, send(head + b"hello")), 0, 5)


def test_a_head_of_many_headers_is_followed(engine: Engine) -> None:
    more = b"".join(b"X-Header-%d: %b\r\n" % (number, b"v" * 100) for number in range(100))
    head = CHUNKED_HEAD.replace(b"\r\n\r\n", b"\r\n" + more + b"\r\n")
    assert_complete(follow(engine, send(chunked([event(1)], head))), 1, len(event(1)))


def test_100_continue_is_not_the_response(engine: Engine) -> None:
    look = engine.look()
    with Client.to(engine.port) as client:
        head, _, body = post([send(chunked([event(1)]))], b"Expect: 100-continue\r\n").partition(
            b"\r\n\r\n"
        )
        client.write(head + b"\r\n\r\n")
        assert client.read(25) == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.write(body)
        client.read(len(chunked([event(1)])))
        end = look.end()
    assert_complete(end, 1, len(event(1)))
    assert (look.counters.requests, look.counters.responses) == (1, 1)
    assert end.stream.status == 200


def test_early_hints_are_not_the_response(engine: Engine) -> None:
    hints = b"HTTP/1.1 103 Early Hints\r\nLink: </style.css>\r\n\r\n"
    end = follow(engine, send(hints + chunked([event(1)])))
    assert_complete(end, 1, len(event(1)))
    assert end.stream.status == 200


# chunk framing


def test_chunk_extensions_are_passed_over(engine: Engine) -> None:
    body = chunk(event(1), b";name=value") + chunk(event(2), b'; quoted="; 5"') + LAST
    assert_complete(follow(engine, send(CHUNKED_HEAD + body)), 2, 2 * len(event(1)))


def test_upper_case_and_zero_padded_sizes_are_read(engine: Engine) -> None:
    body = b"000A\r\n0123456789\r\n0000AB\r\n" + b"x" * 0xAB + b"\r\n000\r\n\r\n"
    assert_complete(follow(engine, send(CHUNKED_HEAD + body)), 2, 10 + 0xAB)


def test_trailers_belong_to_the_response_and_the_next_stream_is_followed(engine: Engine) -> None:
    look = engine.look()
    trailers = b"0\r\nX-Checksum: 1234\r\nX-Tokens: 2\r\n\r\n"
    with Client.to(engine.port) as client:
        client.run(send(chunked([event(1)], end=trailers)))
        client.run(send(chunked([event(1), event(2)])))
        first, second = look.ends(2)
    assert_complete(first, 1, len(event(1)))
    assert_complete(second, 2, 2 * len(event(1)))


def test_the_done_mark_is_no_chunk(engine: Engine) -> None:
    assert_complete(follow(engine, send(chunked([event(1), DONE]))), 1, len(event(1) + DONE))


@pytest.mark.parametrize("at", range(len(DONE)))
def test_the_done_mark_is_known_when_cut(engine: Engine, at: int) -> None:
    before = len(chunked([event(1)], end=b"")) + len(b"e\r\n")
    end = follow(engine, send(chunked([event(1), DONE]), [before + at]))
    assert_complete(end, 1, len(event(1) + DONE))


@pytest.mark.parametrize(
    "payload",
    [
        b"data: [DONE",
        b"data: [DONe]\n\n",
        b"data: [DO",
        b" data: [DONE]\n\n",
        b"d",
        b'data: {"a":1}',
    ],
)
def test_a_chunk_that_is_only_like_the_mark_counts(engine: Engine, payload: bytes) -> None:
    assert_complete(follow(engine, send(chunked([payload]))), 1, len(payload))


# connections


def test_a_kept_connection_carries_many_streams_and_other_requests(engine: Engine) -> None:
    look = engine.look()
    with Client.to(engine.port) as client:
        client.get()
        for count in (1, 2, 3):
            client.run(send(chunked([event(number) for number in range(count)])))
            client.get()
        ends = look.ends(3)
    assert [(end.stream.number, end.stream.chunks) for end in ends] == [(1, 1), (2, 2), (3, 3)]
    assert len({end.stream.connection for end in ends}) == 1
    assert (look.counters.requests, look.counters.ends_complete) == (3, 3)


def test_two_connections_at_once_are_kept_apart(engine: Engine) -> None:
    look = engine.look()
    first = [b"a" * (number + 1) for number in range(30)]
    second = [b"b" * 3] * 50

    def slowly(payloads: list[bytes]) -> list[wire.Step]:
        return [
            send(CHUNKED_HEAD),
            *(step for payload in payloads for step in (send(chunk(payload)), pause(0.001))),
            send(LAST),
        ]

    with Client.to(engine.port) as one, Client.to(engine.port) as other:
        threads = [
            threading.Thread(target=one.run, args=slowly(first)),
            threading.Thread(target=other.run, args=slowly(second)),
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        ends = {end.stream.remote_port: end for end in look.ends(2)}
        assert_complete(ends[one.port], *of(first))
        assert_complete(ends[other.port], *of(second))


def test_a_start_shows_the_first_bytes_of_the_request(engine: Engine) -> None:
    look = engine.look()
    request = post([send(chunked([event(1)]))], b"traceparent: 00-ab-cd-01\r\n")
    with Client.to(engine.port) as client:
        client.write(request)
        client.read(len(chunked([event(1)])))
    (start,) = look.of_kind(EventKind.START)
    assert start.head == request[:256]


def test_a_stream_knows_its_peers(engine: Engine) -> None:
    look = engine.look()
    with Client.to(engine.port) as client:
        client.run(send(chunked([event(1)])))
        stream = look.end().stream
        assert (stream.local_port, stream.remote_port) == (engine.port, client.port)
        assert (stream.remote_address, stream.slot) == ("127.0.0.1", engine.row)


# other bodies


def test_a_body_of_known_length_has_bytes_and_no_chunks(engine: Engine) -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2000\r\n\r\n"
    end = follow(engine, send(head + b"x" * 2000, [len(head) + 7, len(head) + 1500]))
    assert_complete(end, 0, 2000)
    assert end.stream.flags == StreamFlags.LENGTH


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 204 No Content\r\n\r\n",
        b"HTTP/1.1 304 Not Modified\r\nContent-Length: 400\r\n\r\n",
    ],
)
def test_an_empty_body_ends_with_its_head(engine: Engine, head: bytes) -> None:
    look = engine.look()
    with Client.to(engine.port) as client:
        client.run(send(head))
        client.run(send(chunked([event(1)])))
        empty, after = look.ends(2)
    assert_complete(empty, 0, 0)
    assert_complete(after, 1, len(event(1)))


def test_an_empty_chunked_body_is_complete_and_unstarted(engine: Engine) -> None:
    look = engine.look()
    with Client.to(engine.port) as client:
        client.run(send(chunked([])))
        assert_complete(look.end(), 0, 0)
    assert (look.counters.ends_unstarted, look.counters.first_chunks) == (1, 0)


def test_a_refusal_is_an_error_with_its_status(engine: Engine) -> None:
    look = engine.look()
    head = b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Length: 4\r\n\r\n"
    with Client.to(engine.port) as client:
        client.run(send(head + b"busy"))
        end = look.end()
    assert_complete(end, 0, 4)
    assert (end.stream.status, look.counters.errors) == (503, 1)


def test_a_body_until_close_is_complete_when_the_server_closes(engine: Engine) -> None:
    look = engine.look()
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
    with Client.to(engine.port) as client:
        client.run(send(head + event(1)), CLOSE)
        assert client.read_to_end() == b""
    assert look.end().reason is EndReason.COMPLETE


# early ends

BEGUN = CHUNKED_HEAD + chunk(event(1)) + chunk(event(2))


def test_a_server_that_closes_in_mid_stream_ended_it(engine: Engine) -> None:
    look = engine.look()
    with Client.to(engine.port) as client:
        client.run(send(BEGUN), CLOSE)
        assert client.read_to_end() == b""
    end = look.end()
    assert (end.reason, end.stream.chunks) == (EndReason.SERVER_CLOSED, 2)
    assert (look.counters.ends_early, look.counters.ends_complete) == (1, 0)


def test_a_server_that_aborts_its_socket_closed_it(engine: Engine) -> None:
    look = engine.look()
    with Client.to(engine.port) as client:
        client.run(send(BEGUN), RESET)
        assert client.read_to_end() == b""
    end = look.end()
    # the kernel closes the socket first and sends the reset after
    assert (end.reason, end.stream.chunks) == (EndReason.CLOSED, 2)


def test_a_server_that_dies_in_mid_stream_ended_it(engine: Engine) -> None:
    with server(engine.group, "127.0.0.1") as (_, (port,)):
        engine.watch(port)
        look = engine.look()
        with Client.to(port) as client:
            client.run(send(BEGUN), DIE)
            assert client.read_to_end() == b""
        end = look.end()
    engine.watch()
    assert end.reason in {EndReason.SERVER_CLOSED, EndReason.CLOSED}
    assert end.stream.chunks == 2


def test_a_client_that_resets_gave_up(engine: Engine) -> None:
    look = engine.look()
    with Client.to(engine.port) as client:
        client.run(send(BEGUN))
        client.reset()
        end = look.end()
    assert (end.reason, end.stream.chunks) == (EndReason.CLIENT_RESET, 2)
    assert look.counters.ends_early == 1


def test_a_client_that_closes_unread_bytes_gave_up(engine: Engine) -> None:
    look = engine.look()
    with Client.to(engine.port) as client:
        client.write(post([send(BEGUN), pause(0.05), send(chunk(event(3)))]))
        client.read(1)
    assert look.end().reason is EndReason.CLIENT_RESET


def test_a_client_that_closes_after_reading_all_so_far_gave_up(engine: Engine) -> None:
    look = engine.look()
    with Client.to(engine.port) as client:
        client.write(post([send(BEGUN), pause(0.05), send(chunk(event(3))), pause(0.05)]))
        client.read(len(BEGUN))
    end = look.end()
    # its kernel answers the next chunk with a reset
    assert (end.reason, end.stream.chunks) == (EndReason.CLIENT_RESET, 3)


def test_a_client_that_only_stops_sending_still_gets_its_stream(engine: Engine) -> None:
    look = engine.look()
    with Client.to(engine.port) as client:
        client.write(post([send(BEGUN), pause(0.02), send(LAST)]))
        client.socket.shutdown(1)
        assert client.read(len(BEGUN + LAST)) == BEGUN + LAST
    assert_complete(look.end(), 2, 2 * len(event(1)))


def test_a_connection_that_times_out_without_a_word_is_closed(engine: Engine) -> None:
    look = engine.look()
    with Client.to(engine.port, receive_buffer=1) as client:
        client.write(post([give_up_after(50), send(BEGUN + chunk(b"x" * 10_000_000))]))
        assert look.end().reason is EndReason.CLOSED


def test_a_stream_without_a_first_chunk_ends_unstarted(engine: Engine) -> None:
    look = engine.look()
    with Client.to(engine.port) as client:
        client.run(send(CHUNKED_HEAD), CLOSE)
        client.read_to_end()
    end = look.end()
    assert (end.reason, end.stream.ttft_ns) == (EndReason.SERVER_CLOSED, None)
    assert look.counters.ends_unstarted == 1


@pytest.mark.parametrize(
    "answer",
    [
        b"\x00\x01\x02 this is not HTTP \xff",
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"HTTP/1.1 abc\r\n\r\n",
        CHUNKED_HEAD + b"not a size\r\n",
        CHUNKED_HEAD + b"\r\n",
        CHUNKED_HEAD + b"3\r\nabcdef\r\n",
        CHUNKED_HEAD + b"fffffffffffffffff\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX-Endless: " + b"v" * 20_000,
    ],
)
def test_what_is_not_http_is_lost_counted_and_let_through(engine: Engine, answer: bytes) -> None:
    look = engine.look()
    with Client.to(engine.port) as client:
        client.run(send(answer))
        assert look.end().reason is EndReason.LOST
        assert look.lost_streams == 1
        client.run(send(b"and the connection goes on"))
    assert look.counters.requests == 1


# what is not followed


def test_a_port_that_is_not_the_targets_is_not_followed(engine: Engine) -> None:
    look = engine.look()
    with Client.to(engine.other_port) as client:
        client.run(send(chunked([event(1)])))
    assert follow(engine, send(chunked([event(1)]))).stream.local_port == engine.port
    assert look.counters.requests == 1


def test_another_cgroup_is_not_followed(engine: Engine, make_cgroup: MakeGroup) -> None:
    with server(make_cgroup("other"), "127.0.0.1") as (_, (port,)):
        engine.watch(port)
        look = engine.look()
        with Client.to(port) as client:
            client.run(send(chunked([event(1)])))
        assert follow(engine, send(chunked([event(1)]))).stream.local_port == engine.port
        assert look.counters.requests == 1
    engine.watch()


def test_a_request_that_is_no_post_is_no_stream(engine: Engine) -> None:
    look = engine.look()
    with Client.to(engine.port) as client:
        client.get()
    assert look.counters.requests == 0


def test_after_detach_nothing_is_followed_and_traffic_flows(engine: Engine) -> None:
    look = engine.look()
    engine.watched.programs.detach(engine.group.stream_id)
    try:
        with Client.to(engine.port) as client:
            client.run(send(chunked([event(1)])))
        assert look.counters.requests == 0
    finally:
        engine.watched.programs.attach(engine.group.v2, engine.group.stream_id)


def test_a_stream_that_went_on_unseen_is_lost_and_counted(engine: Engine) -> None:
    look = engine.look()
    programs = engine.watched.programs
    with Client.to(engine.port) as client:
        client.write(post([send(BEGUN), pause(0.3), send(chunk(event(3))), pause(0.3), send(LAST)]))
        client.read(len(BEGUN))
        programs.detach(engine.group.stream_id)
        client.read(len(chunk(event(3))))
        programs.attach(engine.group.v2, engine.group.stream_id)
        client.read(len(LAST))
        end = look.end()
    assert (end.reason, end.stream.chunks) == (EndReason.LOST, 2)
    assert look.lost_streams == 1


def test_a_kept_connection_is_followed_again_after_an_unseen_request(engine: Engine) -> None:
    look = engine.look()
    programs = engine.watched.programs
    with Client.to(engine.port) as client:
        client.run(send(chunked([event(1)])))
        programs.detach(engine.group.stream_id)
        client.get()
        programs.attach(engine.group.v2, engine.group.stream_id)
        client.run(send(chunked([event(1), event(2)])))
        _, second = look.ends(2)
    assert_complete(second, 2, 2 * len(event(1)))


def test_a_first_request_that_came_with_the_handshake_is_lost_and_counted(engine: Engine) -> None:
    with server(engine.group, "127.0.0.1+deferred") as (_, (port,)):
        engine.watch(port)
        look = engine.look()
        with Client.to(port) as client:
            client.run(send(chunked([event(1)])))
            client.run(send(chunked([event(1), event(2)])))
            end = look.end()
            assert (end.stream.number, end.stream.chunks) == (1, 2)
            assert (look.lost_streams, look.counters.requests) == (1, 1)
    engine.watch()


# IPv6


@pytest.fixture
def ports6(engine: Engine) -> tuple[int, int]:
    """The engine's ports on ::1 and on :: (where IPv4 clients come in too)."""
    if not engine.ports6:
        pytest.skip("this machine has no IPv6 loopback")
    only, dual = engine.ports6
    return only, dual


def test_streams_over_ipv6_are_followed(engine: Engine, ports6: tuple[int, int]) -> None:
    look = engine.look()
    payloads = [event(number) for number in range(50)]
    with Client.to(ports6[0], "::1") as client:
        client.run(send(chunked(payloads), range(1, 1000, 37)))
        end = look.end()
        assert_complete(end, *of(payloads))
        assert (end.stream.remote_address, end.stream.remote_port) == ("::1", client.port)


def test_an_ipv4_client_of_an_ipv6_socket_is_followed(
    engine: Engine, ports6: tuple[int, int]
) -> None:
    look = engine.look()
    with Client.to(ports6[1]) as client:
        client.run(send(chunked([event(1)])))
        end = look.end()
    assert_complete(end, 1, len(event(1)))
    assert end.stream.remote_address == "127.0.0.1"


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
