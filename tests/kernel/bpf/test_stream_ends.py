"""Streams that end early, by whose doing; and what cannot be followed."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from bpf.features import Features
from bpf.layout import EndReason
from bpf.libbpf import Libbpf
from bpf.loader import Plan, load
from tests.kernel.bpf.conftest import MAX_TARGETS, Engine, engine_target, server
from tests.kernel.bpf.streams import assert_complete
from tests.kernel.bpf.watched import Look, watching
from tests.kernel.bpf.wire import (
    CHUNKED_HEAD,
    CLOSE,
    DIE,
    LAST,
    RESET,
    Client,
    chunk,
    event,
    give_up_after,
    pause,
    post,
    send,
)
from tests.kernel.conftest import MakeGroup

pytestmark = pytest.mark.kernel

BEGUN = CHUNKED_HEAD + chunk(event(1)) + chunk(event(2))


def test_a_server_that_closes_in_mid_stream_ended_it(engine: Engine) -> None:
    look = engine.look()
    with Client.to(engine.port) as client:
        client.run(send(BEGUN), CLOSE)
        assert client.read_to_end() == b""
    end = look.end()
    assert (end.reason, end.stream.chunks) == (EndReason.SERVER_CLOSED, 2)
    assert (look.counters.ends_early, look.counters.ends_complete) == (1, 0)


def test_a_server_that_resets_its_socket_ended_it(engine: Engine) -> None:
    look = engine.look()
    with Client.to(engine.port) as client:
        client.run(send(BEGUN), RESET)
        assert client.read_to_end() == b""
    end = look.end()
    assert (end.reason, end.stream.chunks) == (EndReason.SERVER_CLOSED, 2)


def test_a_server_that_dies_in_mid_stream_ended_it(engine: Engine) -> None:
    with server(engine.group, "127.0.0.1") as (_, (port,)):
        engine.watch(port)
        look = engine.look()
        with Client.to(port) as client:
            client.run(send(BEGUN), DIE)
            assert client.read_to_end() == b""
        end = look.end()
    engine.watch()
    assert end.reason is EndReason.SERVER_CLOSED
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


def test_a_server_that_closes_because_its_client_did_did_not_end_it(engine: Engine) -> None:
    look = engine.look()
    with Client.to(engine.port) as client:
        client.write(post([send(BEGUN), pause(0.05), CLOSE]))
        client.read(len(BEGUN))
    end = look.end()
    assert (end.reason, end.stream.chunks) == (EndReason.CLIENT_RESET, 2)


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


@pytest.fixture
def unnoticed(
    lib: Libbpf, features: Features, make_cgroup: MakeGroup
) -> Iterator[tuple[Look, int]]:
    """A followed server, and its port, whose sockets' closing no program is run for."""
    if not features.can_stream:
        pytest.skip(f"this kernel can't follow streams: {features}")
    blind = replace(features, tracepoints=features.tracepoints - {"inet_sock_set_state"})
    group = make_cgroup("engine")
    with (
        watching(load(lib, Plan(blind, MAX_TARGETS, None))) as watched,
        server(group, "127.0.0.1") as (_, (port,)),
    ):
        row = watched.watch(engine_target("engine", group, port))
        watched.programs.attach(group.v2, group.stream_id)
        yield watched.look(row), port


def test_a_stream_whose_closing_was_missed_ends_with_its_socket(
    unnoticed: tuple[Look, int],
) -> None:
    look, port = unnoticed
    with Client.to(port) as client:
        client.run(send(BEGUN), RESET)
        client.read_to_end()
    end = look.end()
    assert (end.reason, end.stream.chunks) == (EndReason.SERVER_CLOSED, 2)


@pytest.mark.parametrize("vanishes", [True, False], ids=["sent again", "probed"])
def test_a_time_out_that_was_missed_is_still_the_networks(
    unnoticed: tuple[Look, int], vanishes: bool
) -> None:
    look, port = unnoticed
    with Client.to(port, receive_buffer=None if vanishes else 1) as client:
        if vanishes:
            client.take_no_longer_packets_than(700)
        client.write(post([give_up_after(50), send(BEGUN), send(chunk(b"x" * 10_000_000))]))
        assert look.end().reason is EndReason.CLOSED
    counters = look.counters
    assert counters.ends_early == 1
    assert counters.blocked_begun == counters.blocked_ended


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
