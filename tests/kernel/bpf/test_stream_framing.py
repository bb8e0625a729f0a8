"""Chunks and their ends, wherever packets end."""

import time
from itertools import accumulate

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kernel.bpf.conftest import Engine
from tests.kernel.bpf.streams import assert_complete, follow, of
from tests.kernel.bpf.wire import (
    CHUNKED_HEAD,
    DONE,
    LAST,
    Client,
    chunk,
    chunked,
    event,
    post,
    send,
)

pytestmark = pytest.mark.kernel

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


@settings(deadline=None, max_examples=250)
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
        b"d",
        b'data: {"a":1}',
    ],
)
def test_a_chunk_that_is_only_like_the_mark_counts(engine: Engine, payload: bytes) -> None:
    assert_complete(follow(engine, send(chunked([payload]))), 1, len(payload))
