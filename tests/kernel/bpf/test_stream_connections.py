"""Which connections are followed, and as whose."""

import socket
import threading
import time

import pytest

from bpf.layout import HEAD_BYTES, EndReason, EventKind
from tests.kernel.bpf import wire
from tests.kernel.bpf.conftest import Engine, server
from tests.kernel.bpf.streams import assert_complete, follow, of
from tests.kernel.bpf.wire import (
    CHUNKED_HEAD,
    CLOSE,
    LAST,
    Client,
    chunk,
    chunked,
    event,
    pause,
    post,
    send,
)
from tests.kernel.conftest import MakeGroup

pytestmark = pytest.mark.kernel

BEGUN = CHUNKED_HEAD + chunk(event(1)) + chunk(event(2))


def request_of(length: int, *script: wire.Step) -> bytes:
    """A request of exactly so many bytes that has the server follow `script`."""
    header = b"X-Padding: %b\r\n"
    missing = length - len(post(script, header % b""))
    assert missing > 0
    return post(script, header % (b"p" * missing))


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


@pytest.mark.parametrize("length", [200, 255, 256, 257, 700, 1023, 1024, 1025, 9000])
def test_a_start_shows_the_first_bytes_of_the_request(engine: Engine, length: int) -> None:
    look = engine.look()
    request = request_of(length, CLOSE)
    with Client.to(engine.port) as client:
        client.write(request)
        client.read_to_end()
    (start,) = look.of_kind(EventKind.START)
    assert start.head == request[:HEAD_BYTES]


def test_a_stream_knows_its_peers(engine: Engine) -> None:
    look = engine.look()
    with Client.to(engine.port) as client:
        client.run(send(chunked([event(1)])))
        stream = look.end().stream
        assert (stream.local_port, stream.remote_port) == (engine.port, client.port)
        assert (stream.remote_address, stream.slot) == ("127.0.0.1", engine.row)


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


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "::"])
def test_a_first_request_that_came_with_the_handshake_is_followed(
    engine: Engine, address: str
) -> None:
    if ":" in address and not engine.ports6:
        pytest.skip("this machine has no IPv6 loopback")
    with server(engine.group, f"{address}+5") as (_, (port,)):
        engine.watch(port)
        look = engine.look()
        before_ns = time.monotonic_ns()
        answer = chunked([event(1)])
        request = request_of(1500, pause(0.02), send(answer))
        with Client.to(port, "::1" if address == "::1" else "127.0.0.1") as client:
            client.write(request)
            client.read(len(answer))
            client.run(send(chunked([event(1), event(2)])))
            first, second = look.ends(2)
            assert_complete(first, 1, len(event(1)))
            assert_complete(second, 2, 2 * len(event(1)))
            assert (first.stream.number, second.stream.number) == (1, 2)
            assert first.stream.remote_port == client.port
            assert first.stream.remote_address == client.socket.getsockname()[0]
            assert first.stream.connection == second.stream.connection
            assert (first.stream.ttft_ns or 0) >= 20_000_000
            assert first.stream.request_ns > before_ns
        start = look.of_kind(EventKind.START)[0]
        assert start.head == request[:HEAD_BYTES]
        assert (look.lost_streams, look.counters.requests) == (0, 2)
    engine.watch()


@pytest.mark.parametrize("at", range(1, 8))
def test_a_request_cut_in_its_first_bytes_is_followed(engine: Engine, at: int) -> None:
    look = engine.look()
    request = post([send(chunked([event(1)]))])
    with Client.to(engine.port) as client:
        client.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(2):
            client.write(request[:at])
            time.sleep(0.02)
            client.write(request[at:])
            client.read(len(chunked([event(1)])))
        ends = look.ends(2)
    starts = look.of_kind(EventKind.START)
    assert [end.stream.chunks for end in ends] == [1, 1]
    assert all((end.stream.ttft_ns or 0) >= 20_000_000 for end in ends)
    seen = request[:at] if at >= 5 else request[: HEAD_BYTES // 2]
    assert all(start.head.startswith(seen) and request.startswith(start.head) for start in starts)


def test_a_request_cut_into_bytes_is_followed_and_others_that_begin_alike_are_not(
    engine: Engine,
) -> None:
    look = engine.look()
    with Client.to(engine.port) as client:
        client.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        answer = chunked([event(1)])
        stream, other = (post([send(answer)]), len(answer)), (b"GET /POST HTTP/1.1\r\n\r\n", 43)
        for request, answer_length in (stream, other, stream):
            for at in range(len(request)):
                client.write(request[at : at + 1])
            client.read(answer_length)
        for end in look.ends(2):
            assert_complete(end, 1, len(event(1)))
    assert look.counters.requests == 2


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
