"""The small HTTP client, over socket pairs."""

import itertools
import socket
import threading
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.unix_http import MAX_HEAD_BYTES, NotHttpError, exchange


def answered(*pieces: bytes, most: int = 1_000, body: bytes | None = None) -> tuple[int, bytes]:
    """What `exchange` makes of an answer that comes in these pieces."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.settimeout(5)

        def answer() -> None:
            for piece in pieces:
                theirs.sendall(piece)
            theirs.shutdown(socket.SHUT_WR)

        thread = threading.Thread(target=answer)
        thread.start()
        try:
            return exchange(ours, "GET", "/x", body, most)
        finally:
            thread.join()


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def test_a_request_has_its_length_and_its_body(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    theirs.sendall(b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n")
    assert exchange(ours, "POST", "/v1/mode", b"{}", 10) == (200, b"")
    assert theirs.recv(4096) == (
        b"POST /v1/mode HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n"
        b"Connection: close\r\n\r\n{}"
    )


@given(st.binary(max_size=300), st.lists(st.integers(1, 400), max_size=5), st.booleans())
def test_it_does_not_matter_how_an_answer_is_cut(
    content: bytes, cuts: list[int], announced: bool
) -> None:
    length = b"content-length: %d\r\n" % len(content) if announced else b""
    whole = b"HTTP/1.1 404 Not Found\r\nA: b\r\n" + length + b"\r\n" + content
    edges = [0, *sorted(min(cut, len(whole)) for cut in cuts), len(whole)]
    pieces = [whole[low:high] for low, high in itertools.pairwise(edges)]
    assert answered(*pieces) == (404, content)


@pytest.mark.parametrize(
    "answer",
    [
        b"SSH-2.0-x\r\n",
        b"HTTP/1.0 2",
        b"HTTP/1.0 OK\r\n\r\n",
        b"HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\n1234",
        b"HTTP/1.0 200 OK\r\n" + b"a: b\r\n" * 101 + b"\r\n",
        b"HTTP/1.0 200 OK\r\n" + b"a" * (MAX_HEAD_BYTES + 300_000),
    ],
)
def test_what_is_no_answer_is_told(answer: bytes) -> None:
    with pytest.raises(NotHttpError):
        answered(answer)


@given(st.binary(min_size=1, max_size=200))
def test_any_bytes_are_an_answer_or_are_not(answer: bytes) -> None:
    try:
        status, _ = answered(answer)
    except NotHttpError:
        return
    assert 100 <= status <= 599


def test_an_end_without_a_byte_is_the_other_ends() -> None:
    with pytest.raises(ConnectionResetError):
        answered()


def test_no_more_is_read_than_asked() -> None:
    assert answered(b"HTTP/1.0 200 OK\r\n\r\n" + b"x" * 50, most=10) == (200, b"x" * 10)
