"""The sockets of this process, as if it were an engine."""

import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import pytest

from agent.discovery import Found
from agent.sockets import EngineSockets, Sockets

COOKIE = 57


@dataclass(slots=True)
class Engine:
    """A listener of ours and those who come to it."""

    stack: ExitStack
    listener: socket.socket

    @property
    def found(self) -> Found:
        return Found("e", frozenset({os.getpid()}), ports=frozenset({self.port}))

    @property
    def port(self) -> int:
        return int(self.listener.getsockname()[1])

    def client(self) -> socket.socket:
        return self.stack.enter_context(socket.create_connection(("127.0.0.1", self.port)))

    def accept(self) -> socket.socket:
        return self.stack.enter_context(self.listener.accept()[0])


@pytest.fixture
def engine() -> Iterator[Engine]:
    with ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=4))
        yield Engine(stack, listener)


@pytest.fixture
def sockets() -> Iterator[Sockets]:
    made = Sockets()
    yield made
    made.close()


def cookie_of(sock: socket.socket) -> int:
    return int.from_bytes(sock.getsockopt(socket.SOL_SOCKET, COOKIE, 8), "little")


def test_who_was_there_first_is_seeded_and_who_came_later_is_not(
    sockets: Sockets, engine: Engine
) -> None:
    engine.client()
    old = engine.accept()
    sockets.watch([engine.found])
    assert sockets.look("e").seeded == {cookie_of(old)}
    engine.client()
    new = engine.accept()
    found = sockets.look("e")
    assert {each.cookie for each in found.connections} == {cookie_of(old), cookie_of(new)}
    assert found.seeded == {cookie_of(old)}


def test_a_stream_on_a_seeded_connection_ends_that(sockets: Sockets, engine: Engine) -> None:
    engine.client()
    old = engine.accept()
    sockets.watch([engine.found])
    sockets.look("e")
    sockets.heard("e", cookie_of(old))
    assert sockets.look("e").seeded == frozenset()


def test_a_stream_heard_of_before_the_first_look_is_followed(
    sockets: Sockets, engine: Engine
) -> None:
    engine.client()
    sockets.watch([engine.found])
    sockets.heard("e", cookie_of(engine.accept()))
    assert sockets.look("e").seeded == frozenset()


def test_a_seeded_connection_that_closes_is_gone(sockets: Sockets, engine: Engine) -> None:
    client = engine.client()
    old = engine.accept()
    sockets.watch([engine.found])
    assert len(sockets.look("e").seeded) == 1
    client.close()
    old.close()
    found = sockets.look("e")
    assert (found.seeded, found.connections) == (frozenset(), ())


def test_connections_are_counted_as_they_come_and_as_they_are_accepted(
    sockets: Sockets, engine: Engine
) -> None:
    sockets.watch([engine.found])
    sockets.look("e")
    for _ in range(3):
        engine.client()
    first = sockets.look("e")
    assert (first.arrived, first.accepted, first.backlog) == (3, 0, 3)
    engine.accept()
    engine.accept()
    second = sockets.look("e")
    assert (second.arrived, second.accepted, second.backlog) == (3, 2, 1)


def test_the_fill_is_that_of_the_fullest_listener(sockets: Sockets, engine: Engine) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=16) as other:
        ports = frozenset({engine.port, other.getsockname()[1]})
        sockets.watch([Found("e", frozenset({os.getpid()}), ports=ports)])
        for _ in range(3):
            engine.client()
        found = sockets.look("e")
        assert (found.backlog, found.backlog_limit, found.accept_fill) == (3, 20, 0.75)


def test_a_queue_that_is_over_its_limit_is_full(sockets: Sockets, engine: Engine) -> None:
    sockets.watch([engine.found])
    for _ in range(5):
        engine.client()
    found = sockets.look("e")
    assert (found.backlog, found.accept_fill) == (5, 1.0)


def test_an_engine_watched_again_keeps_what_is_known_of_it(
    sockets: Sockets, engine: Engine
) -> None:
    engine.client()
    engine.accept()
    sockets.watch([engine.found])
    sockets.look("e")
    engine.client()
    engine.accept()
    sockets.watch([engine.found])
    found = sockets.look("e")
    assert (len(found.seeded), found.accepted) == (1, 1)


def test_an_engine_that_is_gone_has_no_sockets_and_nothing_stays_open(
    sockets: Sockets, engine: Engine
) -> None:
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - the count is all that matters
    sockets.watch([engine.found])
    sockets.look("e")
    sockets.watch([])
    assert sockets.look("e") == EngineSockets()
    assert sockets.listeners("e") == ()
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208 - as above


def test_processes_that_just_went_away_are_no_error(sockets: Sockets, engine: Engine) -> None:
    gone = 2**22 - 1
    sockets.watch([Found("e", frozenset({gone}), ports=frozenset({engine.port}))])
    assert sockets.look("e") == EngineSockets()
