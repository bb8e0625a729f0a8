import json
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.wire import (
    Channel,
    EngineTarget,
    NeighbourTarget,
    parse_targets,
    targets_message,
)

Ends = tuple[Channel, Channel]

names = st.text(max_size=20)
paths = st.none() | st.text(max_size=20)
rows = st.integers(1, 1024)
plain = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
json_values: st.SearchStrategy[Any] = plain | st.lists(plain, max_size=3)


@pytest.fixture
def ends() -> Iterator[Ends]:
    left, right = (Channel(sock) for sock in socket.socketpair())
    yield left, right
    left.close()
    right.close()


def test_messages_arrive_whole_and_in_order(ends: Ends) -> None:
    left, right = ends
    for i in range(3):
        left.send({"type": "mode", "i": i})
    assert right.receive() == [{"type": "mode", "i": i} for i in range(3)]
    assert right.receive() == []


def test_both_ends_speak(ends: Ends) -> None:
    left, right = ends
    left.send({"a": 1})
    right.send({"b": 2})
    assert left.receive() == [{"b": 2}]
    assert right.receive() == [{"a": 1}]


def test_half_a_line_is_kept_until_the_rest_comes() -> None:
    raw, sock = socket.socketpair()
    channel = Channel(sock)
    with raw:
        raw.sendall(b'{"type": "sta')
        assert channel.receive() == []
        raw.sendall(b'tus"}\n{"typ')
        assert channel.receive() == [{"type": "status"}]
    channel.close()


def test_sending_never_blocks_and_nothing_is_lost(ends: Ends) -> None:
    left, right = ends
    message = {"text": "x" * 10_000}
    for _ in range(200):
        left.send(message)
    assert left.wants_write
    received = []
    while left.wants_write or len(received) < 200:
        received += right.receive()
        left.flush()
    assert received == [message] * 200


def test_the_other_ends_end_is_told() -> None:
    left, right = (Channel(sock) for sock in socket.socketpair())
    left.send({"last": 1})
    left.close()
    assert right.receive() == [{"last": 1}]
    with pytest.raises(EOFError, match="the other process is gone"):
        right.receive()
    right.close()


def test_what_came_before_the_end_is_not_lost_whatever_its_length() -> None:
    for length in range((1 << 16) - 20, (1 << 16) + 20):
        raw, sock = socket.socketpair()
        channel = Channel(sock)
        with raw:
            raw.sendall(b'{"x":"' + b"x" * (length - 9) + b'"}\n')
        assert channel.receive() == [{"x": "x" * (length - 9)}]
        with pytest.raises(EOFError):
            channel.receive()
        channel.close()


def test_an_end_that_died_without_reading_is_told() -> None:
    left, right = (Channel(sock) for sock in socket.socketpair())
    right.send({"unread": 1})
    left.close()
    with pytest.raises(EOFError, match="the other process is gone"):
        right.receive()
    right.close()


def test_sending_to_an_end_that_is_gone_is_no_error() -> None:
    left, right = (Channel(sock) for sock in socket.socketpair())
    left.close()
    right.send({"late": 1})
    assert not right.wants_write
    right.close()


def test_a_line_that_is_not_understood_is_an_error() -> None:
    raw, sock = socket.socketpair()
    channel = Channel(sock)
    with raw:
        raw.sendall(b"nonsense\n")
        with pytest.raises(json.JSONDecodeError):
            channel.receive()
    channel.close()


@settings(max_examples=50)
@given(st.lists(st.dictionaries(st.text(), json_values, max_size=3), max_size=3))
def test_any_json_arrives_as_it_was_sent(messages: list[dict[str, Any]]) -> None:
    left, right = (Channel(sock) for sock in socket.socketpair())
    try:
        for message in messages:
            left.send(message)
        assert right.receive() == messages
    finally:
        left.close()
        right.close()


@given(
    st.lists(st.builds(EngineTarget, names, rows, paths)),
    st.lists(st.builds(NeighbourTarget, names, rows, paths, st.booleans(), st.floats(0.01, 1024))),
)
def test_targets_come_back_from_their_message(
    engines: list[EngineTarget], neighbours: list[NeighbourTarget]
) -> None:
    message = json.loads(json.dumps(targets_message(engines, neighbours)))
    assert parse_targets(message) == (engines, neighbours)
