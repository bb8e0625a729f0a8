"""Server-sent events: how many there are in a response, however they are divided into chunks."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bpf.layout import EndReason, Event, StreamFlags
from tests.kernel.bpf.conftest import Engine
from tests.kernel.bpf.streams import follow, shown
from tests.kernel.bpf.wire import (
    CHUNKED_HEAD,
    CLOSE,
    DONE,
    LAST,
    RESET,
    Client,
    chunk,
    chunked,
    event,
    pause,
    send,
)

pytestmark = pytest.mark.kernel

JSON_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
)
PLAIN_HEADS = [
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n",
    b"HTTP/1.0 200 OK\r\nContent-Type: text/event-stream\r\n\r\n",
]
BOTH_ENDS = pytest.mark.parametrize("end", [b"\n", b"\r\n"])
PING = b": ping\n\n"


def counted(end: Event) -> tuple[int, int]:
    return end.stream.chunks, end.stream.events


# in chunks


def test_an_event_a_chunk_is_counted(engine: Engine) -> None:
    look = engine.look()
    end = follow(engine, send(chunked([event(number) for number in range(20)])))
    assert counted(end) == (20, 20)
    assert look.counters.events == 20


@BOTH_ENDS
def test_events_that_share_a_chunk_are_counted(engine: Engine, end: bytes) -> None:
    data = b'data: {"token":1}' + end * 2
    assert counted(follow(engine, send(chunked([data * 7, data, data * 100])))) == (3, 108)


@BOTH_ENDS
@pytest.mark.parametrize("length", range(1, 20))
def test_events_of_every_length_fill_the_largest_packet(
    engine: Engine, end: bytes, length: int
) -> None:
    data = b"data:" + b"x" * length + end * 2
    count = 60_000 // len(data)
    assert counted(follow(engine, send(chunked([event(0), data * count])))) == (2, count + 1)


@BOTH_ENDS
def test_an_event_cut_at_any_byte_is_one(engine: Engine, end: bytes) -> None:
    body = b"data: a" + end + b"data: b" + end * 2
    for at in range(1, len(body)):
        answer = chunked([event(0), body[:at], body[at:], event(1)])
        assert follow(engine, send(answer)).stream.events == 3


def test_events_cut_into_packets_at_every_byte_are_counted(engine: Engine) -> None:
    whole = chunked([event(0), event(1) * 3, b"data: x\r\n\r\n" * 2 + PING, event(2), DONE])
    assert counted(follow(engine, send(whole, range(1, len(whole))))) == (4, 7)


@pytest.mark.parametrize("mark", [DONE, b"data: [DONE]\r\n\r\n", b"data:[DONE]\n\n"])
def test_the_done_mark_is_never_an_event(engine: Engine, mark: bytes) -> None:
    assert counted(follow(engine, send(chunked([event(1), mark])))) == (1, 1)
    # a proxy may put it into the last token's chunk
    assert counted(follow(engine, send(chunked([event(1), event(2) * 2 + mark])))) == (2, 3)
    assert counted(follow(engine, send(chunked([event(1) + mark])))) == (1, 1)


def test_a_text_that_speaks_of_the_mark_is_an_event(engine: Engine) -> None:
    said = b'data: {"text":"data: [DONE]"}\n\n'
    assert counted(follow(engine, send(chunked([said, event(1), said])))) == (3, 3)


def test_comments_that_keep_a_connection_alive_are_neither_chunk_nor_event(engine: Engine) -> None:
    answer = chunked([PING, event(1), b":\n\n", b": a\r\n\r\n: b\r\n\r\n", b"\n", event(2) + PING])
    end = follow(engine, send(answer))
    assert counted(end) == (2, 2)


def test_a_comment_is_not_the_first_chunk(engine: Engine) -> None:
    script = [send(CHUNKED_HEAD + chunk(PING)), pause(0.02), send(chunk(event(1)) + LAST)]
    end = follow(engine, *script)
    assert end.stream.first_ns - end.stream.head_ns >= 10_000_000


def test_fields_without_data_are_no_event(engine: Engine) -> None:
    fields = b"retry: 100\n\n", b"id: 1\n\n", b"event: ping\n\n"
    assert follow(engine, send(chunked([event(1), *fields]))).stream.events == 1


def test_an_event_with_an_empty_line_of_data_is_one(engine: Engine) -> None:
    assert follow(engine, send(chunked([b"data:\n\n", b"data\n\n", b"\n\n"]))).stream.events == 2


def test_a_body_that_is_no_event_stream_has_none(engine: Engine) -> None:
    end = follow(engine, send(chunked([event(1) * 5, event(2)], JSON_HEAD)))
    assert counted(end) == (2, 0)
    assert end.stream.flags == StreamFlags.CHUNKED


# the mark is no event, and hypothesis finds it: it tries the constants that stand in the code
lines = (
    st.binary(max_size=30)
    .map(lambda text: text.replace(b"\n", b"").replace(b"\r", b""))
    .filter(lambda text: b"[DONE]" not in text)
)
datas = st.one_of(lines.map(lambda text: b"data: " + text), lines.map(lambda text: b"data:" + text))
others = st.one_of(
    lines.map(lambda text: b":" + text),
    st.sampled_from([b"event: token", b"id: 7", b"retry: 10", b"other: d", b" data: no"]),
)


@st.composite
def paragraphs(draw: st.DrawFn) -> tuple[bytes, int]:
    """Some lines up to an empty one, and whether they are an event."""
    end = draw(st.sampled_from([b"\n", b"\r\n"]))
    has_data = draw(st.booleans())
    kinds = st.one_of(datas, others) if has_data else others
    whole = draw(st.lists(kinds, max_size=4))
    if has_data:
        whole.insert(draw(st.integers(0, len(whole))), draw(datas))
    is_event = any(line.startswith(b"data:") for line in whole)
    body = b"".join(line + end for line in whole) + end * draw(st.integers(1, 3))
    return body, is_event


@settings(deadline=None, max_examples=150)
@given(parts=st.lists(paragraphs(), min_size=1, max_size=12), data=st.data())
def test_any_events_divided_anyhow_are_counted(
    engine: Engine, parts: list[tuple[bytes, int]], data: st.DataObject
) -> None:
    body = b"".join(text for text, _ in parts)
    cuts = sorted(data.draw(st.sets(st.integers(1, max(1, len(body) - 1)), max_size=8)))
    edges = sorted({0, *cuts, len(body)})
    payloads = [body[start:end] for start, end in pairwise(edges)]
    whole = chunked(payloads)
    packets = data.draw(st.sets(st.integers(1, len(whole) - 1), max_size=20))
    end = follow(engine, send(whole, packets))
    assert counted(end) == (len(shown(payloads)), sum(is_event for _, is_event in parts))


# in a body that ends with the connection


def plain(engine: Engine, *script: list[object], end: list[object] = CLOSE) -> Event:
    look = engine.look()
    with Client.to(engine.port) as client:
        client.run(*script, end)
        assert client.read_to_end() == b""
        return look.end()


@pytest.mark.parametrize("head", PLAIN_HEADS)
@BOTH_ENDS
def test_events_until_close_are_chunks(engine: Engine, head: bytes, end: bytes) -> None:
    body = b'data: {"token":1}' + end * 2
    whole = head + body * 3 + PING + b"data: [DONE]" + end * 2
    found = plain(engine, send(whole, range(1, len(whole), 7)))
    assert found.reason is EndReason.COMPLETE
    assert counted(found) == (3, 3)
    assert found.stream.body_bytes == len(whole) - len(head)
    assert found.stream.flags == StreamFlags.EVENTS


@settings(deadline=None, max_examples=60)
@given(parts=st.lists(paragraphs(), min_size=1, max_size=12), data=st.data())
def test_any_events_until_close_are_counted(
    engine: Engine, parts: list[tuple[bytes, int]], data: st.DataObject
) -> None:
    whole = PLAIN_HEADS[0] + b"".join(text for text, _ in parts)
    packets = data.draw(st.sets(st.integers(1, len(whole) - 1), max_size=20))
    count = sum(is_event for _, is_event in parts)
    assert counted(plain(engine, send(whole, packets))) == (count, count)


def test_a_packet_full_of_events_until_close_is_counted(engine: Engine) -> None:
    found = plain(engine, send(PLAIN_HEADS[0] + b"data:x\n\n" * 8_000))
    assert counted(found) == (8_000, 8_000)


def test_gaps_between_events_until_close_are_measured(engine: Engine) -> None:
    look = engine.look()
    later = [step for n in range(3) for step in (pause(0.02), send(event(n)))]
    stream = plain(engine, send(PLAIN_HEADS[0] + event(0)), *later).stream
    assert stream.chunks == 4
    assert stream.gap_max_ns >= 10_000_000
    assert stream.gap_sum_ns == stream.last_ns - stream.first_ns
    assert (look.counters.gaps, look.counters.first_chunks) == (3, 1)


def test_an_event_that_is_cut_off_by_the_close_is_none(engine: Engine) -> None:
    assert counted(plain(engine, send(PLAIN_HEADS[0] + event(1) + b"data: half"))) == (1, 1)


def test_a_reset_until_close_is_an_early_end(engine: Engine) -> None:
    found = plain(engine, send(PLAIN_HEADS[0] + event(1)), end=RESET)
    assert found.reason is EndReason.SERVER_CLOSED
    assert counted(found) == (1, 1)
