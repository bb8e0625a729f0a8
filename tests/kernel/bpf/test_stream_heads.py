"""Response heads: what frames a body and what does not; bodies that are no chunks."""

from collections.abc import Callable

import pytest

from bpf.layout import EndReason, StreamFlags
from tests.kernel.bpf.conftest import Engine
from tests.kernel.bpf.streams import assert_complete, follow
from tests.kernel.bpf.wire import (
    CHUNKED_HEAD,
    CLOSE,
    Client,
    chunk,
    chunked,
    event,
    post,
    send,
)

pytestmark = pytest.mark.kernel

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
