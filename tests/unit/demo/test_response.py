from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from demo.response import ResponseError, ResponseReader

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"

payloads = st.lists(st.binary(min_size=1, max_size=300), max_size=8)


def framed(chunks: Sequence[bytes], extension: bytes = b"", trailer: bytes = b"") -> bytes:
    body = b"".join(b"%x%b\r\n%b\r\n" % (len(each), extension, each) for each in chunks)
    return CHUNKED + body + b"0\r\n" + trailer + b"\r\n"


def in_pieces(data: bytes, cuts: Sequence[int]) -> list[bytes]:
    at = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[first:last] for first, last in pairwise(at)]


@given(
    payloads,
    st.lists(st.integers(0, 5_000), max_size=12),
    st.sampled_from([b"", b";name=value"]),
    st.sampled_from([b"", b"x-trailer: 1\r\n"]),
)
def test_chunks_come_out_whole_however_the_bytes_are_cut(
    chunks: list[bytes], cuts: list[int], extension: bytes, trailer: bytes
) -> None:
    reader = ResponseReader()
    out = [
        payload
        for piece in in_pieces(framed(chunks, extension, trailer), cuts)
        for payload in reader.feed(piece)
    ]
    assert out == chunks
    assert reader.complete
    assert reader.body_bytes == sum(map(len, chunks))


@given(payloads, st.integers(0, 5_000))
def test_a_response_cut_short_is_no_whole_one(chunks: list[bytes], cut: int) -> None:
    data = framed(chunks)
    reader = ResponseReader()
    reader.feed(data[: cut % len(data)])
    with pytest.raises(ResponseError, match="the server closed after"):
        reader.close()


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    reader = ResponseReader()
    try:
        reader.feed(data)
    except ResponseError:
        return
    assert not reader.complete or data.startswith(b"HTTP/1.")


def test_a_chunk_counts_when_its_last_byte_is_there() -> None:
    reader = ResponseReader()
    assert reader.feed(CHUNKED + b"5\r\nhell") == []
    assert reader.feed(b"o") == [b"hello"]


def test_a_body_with_a_length_is_kept_and_no_chunk() -> None:
    reader = ResponseReader()
    head = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 4\r\n\r\n"
    assert reader.feed(head + b"fu") == []
    assert reader.feed(b"ll") == []
    assert (reader.complete, reader.status, reader.body) == (True, 503, b"full")


def test_a_body_without_framing_ends_with_the_connection() -> None:
    reader = ResponseReader()
    reader.feed(HEAD + b"\r\nall of it")
    assert not reader.complete
    reader.close()
    assert (reader.complete, reader.keep_alive, reader.body) == (True, False, b"all of it")


def test_an_interim_response_is_passed_over() -> None:
    reader = ResponseReader()
    assert reader.feed(b"HTTP/1.1 100 Continue\r\n\r\n" + framed([b"x"])) == [b"x"]
    assert reader.status == 200


@pytest.mark.parametrize(
    ("connection", "kept"), [(b"close", False), (b"keep-alive", True), (b"", True)]
)
def test_whether_the_connection_is_kept_is_known(connection: bytes, kept: bool) -> None:
    reader = ResponseReader()
    reader.feed(HEAD + b"connection: " + connection + b"\r\ncontent-length: 0\r\n\r\n")
    assert reader.keep_alive is kept


@pytest.mark.parametrize(
    "data",
    [
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/1.1 abc\r\n\r\n",
        HEAD + b"content-length: -1\r\n\r\n",
        CHUNKED + b"xyz\r\n",
        CHUNKED + b"-5\r\n",
        CHUNKED + b"\r\n",
        CHUNKED + b"1\r\nab\r\n",
        framed([b"x"]) + b"more",
        HEAD + b"content-length: 1\r\n\r\nab",
        b"x" * 40_000,
    ],
)
def test_what_is_no_response_is_refused(data: bytes) -> None:
    with pytest.raises(ResponseError):
        ResponseReader().feed(data)
