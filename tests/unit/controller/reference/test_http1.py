from http import HTTPStatus

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.reference.http1 import (
    MAX_HEAD_BYTES,
    Head,
    HttpError,
    chunk,
    response,
    stream_head,
    take_head,
)

POST = (
    b"POST /v1/completions?a=b HTTP/1.1\r\nHost: here\r\nContent-Length: 12\r\n"
    b"X-Empty:\r\nExpect: 100-continue\r\n\r\n"
)


def head_of(text: bytes) -> Head:
    head = take_head(bytearray(text))
    assert head is not None
    return head


def test_a_head_is_read_and_the_body_left() -> None:
    buffer = bytearray(b"\r\n" + POST + b'{"prompt":1}')
    head = take_head(buffer)
    assert head is not None
    assert (head.method, head.path, head.body_bytes) == ("POST", "/v1/completions", 12)
    assert head.headers["x-empty"] == ""
    assert head.expects_continue
    assert buffer == b'{"prompt":1}'


@settings(deadline=None)
@given(st.integers(0, len(POST) - 1))
def test_part_of_a_head_is_waited_for_and_kept(size: int) -> None:
    buffer = bytearray(POST[:size])
    assert take_head(buffer) is None
    assert take_head(buffer + POST[size:]) == head_of(POST)


@pytest.mark.parametrize(
    ("version", "connection", "kept"),
    [
        ("HTTP/1.1", "", True),
        ("HTTP/1.1", "Connection: close\r\n", False),
        ("HTTP/1.0", "", False),
        ("HTTP/1.0", "Connection: Keep-Alive\r\n", True),
    ],
)
def test_keep_alive_follows_version_and_header(version: str, connection: str, kept: bool) -> None:
    assert head_of(f"GET / {version}\r\n{connection}\r\n".encode()).keep_alive is kept


@pytest.mark.parametrize(
    ("text", "status"),
    [
        (b"nonsense\r\n\r\n", HTTPStatus.BAD_REQUEST),
        (b"GET  / HTTP/1.1\r\n\r\n", HTTPStatus.BAD_REQUEST),
        (b"GET / HTTP/2\r\n\r\n", HTTPStatus.HTTP_VERSION_NOT_SUPPORTED),
        (b"GET / HTTP/1.1\r\nno colon\r\n\r\n", HTTPStatus.BAD_REQUEST),
        (b"GET / HTTP/1.1\r\nname : x\r\n\r\n", HTTPStatus.BAD_REQUEST),
        (b"GET / HTTP/1.1\r\nContent-Length: -1\r\n\r\n", HTTPStatus.BAD_REQUEST),
        (b"GET / HTTP/1.1\r\nContent-Length: 9999999\r\n\r\n", 413),
        (b"GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", HTTPStatus.LENGTH_REQUIRED),
        (b"x" * MAX_HEAD_BYTES, HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE),
    ],
)
def test_what_is_no_request_has_its_status(text: bytes, status: int) -> None:
    with pytest.raises(HttpError) as caught:
        take_head(bytearray(text))
    assert caught.value.status == status


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_no_bytes_do_worse_than_an_http_error(text: bytes) -> None:
    status = 400
    try:
        take_head(bytearray(text + b"\r\n\r\n"))
    except HttpError as error:
        status = error.status
    assert 400 <= status <= 505


def test_a_chunk_carries_its_length_in_hexadecimal() -> None:
    assert chunk(b"data: " + b"x" * 20) == b"1a\r\ndata: xxxxxxxxxxxxxxxxxxxx\r\n"


def test_a_response_says_its_length_and_whether_it_closes() -> None:
    lines = response(HTTPStatus.OK, b"body", "text/plain", keep_alive=False).split(b"\r\n")
    assert lines[0] == b"HTTP/1.1 200 OK"
    assert b"content-length: 4" in lines
    assert b"connection: close" in lines
    assert lines[-1] == b"body"


def test_a_stream_head_announces_chunks() -> None:
    head = stream_head("text/event-stream", keep_alive=True)
    assert b"transfer-encoding: chunked\r\n" in head
    assert b"content-length" not in head
    assert head.endswith(b"\r\n\r\n")
