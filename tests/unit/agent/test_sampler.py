"""The thread that samples, over sockets of this process."""

import os
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from typing import TypeVar

import pytest

from agent.discovery import Found
from agent.sampler import CALM_EVERY, ENDS, KEPT, Sampler, works
from agent.sockets import EngineSockets
from agent.stages import SAMPLE_NS, Load, Sample
from bpf.layout import Counters

T = TypeVar("T")
COUNTED = Counters(requests=9, reads=8, chunks=70, ends_complete=3, ends_early=1, blocked_begun=2)


def becomes(condition: Callable[[], T], patience_s: float = 30) -> T:
    deadline = time.monotonic() + patience_s
    while not (value := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return value


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0), backlog=4) as made:
        yield made


@pytest.fixture
def sampler(listener: socket.socket) -> Iterator[Sampler]:
    made = Sampler(lambda _: COUNTED)
    made.watch([found(listener)])
    made.start()
    yield made
    made.stop()


def found(listener: socket.socket) -> Found:
    port = listener.getsockname()[1]
    return Found("e", frozenset({os.getpid()}), ports=frozenset({port}))


def at_least(n: int, sampler: Sampler) -> list[Sample]:
    becomes(lambda: len(sampler.samples("e", 60)) >= n)
    return sampler.samples("e", 60)


def test_samples_come_one_for_each_tenth_of_a_second(sampler: Sampler) -> None:
    samples = at_least(10, sampler)
    indices = [each.index for each in samples]
    assert sorted(set(indices)) == indices
    for each in samples:
        assert each.index == each.at_ns // SAMPLE_NS
        assert (each.requests, each.reads, each.chunks, each.ended) == (9, 8, 70, 4)
        assert each.backlog_limit == 4


def test_connections_are_looked_at_at_least_once_a_second(sampler: Sampler) -> None:
    samples = at_least(2 * ENDS, sampler)
    assert any(each.looked for each in samples[:ENDS])
    assert any(each.looked for each in samples[ENDS:])


def test_the_message_for_the_controller_has_fill_and_blocked_streams(
    sampler: Sampler, listener: socket.socket
) -> None:
    with (
        socket.create_connection(listener.getsockname()),
        socket.create_connection(listener.getsockname()),
    ):
        becomes(lambda: sampler.sockets("e").backlog == 2)
        assert sampler.queues() == {
            "type": "queues",
            "engines": {"e": {"accept_fill": 0.5, "unsent": 0, "blocked": 2}},
        }


def test_what_the_controller_sampled_is_joined_by_its_place(sampler: Sampler) -> None:
    first = at_least(1, sampler)[0]
    sampler.take_loads("e", [[first.index, 3, 2, 9, 4], [first.index - 1, 1, 1, 1, 1]])
    assert sampler.samples("e", 60)[0].load == Load(3, 2, 9, 4)


def test_what_the_controller_sampled_does_not_pile_up(sampler: Sampler) -> None:
    first = at_least(1, sampler)[0]
    sampler.take_loads("e", [[first.index, 3, 2, 9, 4]])
    sampler.take_loads("e", [[n, 0, 0, 0, 0] for n in range(KEPT)])
    assert sampler.samples("e", 60)[0].load is None


def test_an_engine_that_is_not_watched_has_nothing(sampler: Sampler) -> None:
    assert sampler.samples("other", 60) == []
    assert sampler.sockets("other") == EngineSockets()
    sampler.take_loads("other", [[1, 2, 3, 4, 5]])
    sampler.heard("other", 1)


def test_an_engine_that_went_is_forgotten(sampler: Sampler) -> None:
    at_least(1, sampler)
    sampler.watch([])
    becomes(lambda: not sampler.samples("e", 60))
    assert sampler.queues()["engines"] == {}


def test_the_ends_of_a_window_are_its_first_and_last_samples(sampler: Sampler) -> None:
    at_least(2 * ENDS + 2, sampler)
    ends, samples = sampler.ends("e", 60), sampler.samples("e", 60)
    assert len(ends) == 2 * ENDS
    assert [each.index for each in ends[:ENDS]] == [each.index for each in samples[:ENDS]]


AT_REST = Sample(7, 700 * SAMPLE_NS, requests=9, reads=9, writes=70, ended=9)


@pytest.mark.parametrize(
    "now",
    [
        replace(AT_REST, requests=10),
        replace(AT_REST, requests=10, ended=10),
        replace(AT_REST, reads=10),
        replace(AT_REST, writes=71),
    ],
)
def test_an_engine_works_while_requests_are_there_or_just_were(now: Sample) -> None:
    assert works(now, AT_REST)


def test_an_engine_in_which_nothing_happens_does_not_work() -> None:
    assert works(AT_REST, None)
    assert not works(replace(AT_REST, index=8, looked=True, connections=3), AT_REST)


def calm(sampler: Sampler) -> bool:
    """Whether samples are left out."""
    indices = [each.index for each in sampler.samples("e", 60)][-4:]
    return len(indices) == 4 and all(b - a >= CALM_EVERY for a, b in pairwise(indices))


def test_samples_are_left_out_while_nothing_waits(listener: socket.socket) -> None:
    told: list[None] = []
    sampler = Sampler(
        lambda _: Counters(requests=9, reads=9, ends_complete=4), lambda: told.append(None)
    )
    sampler.watch([found(listener)])
    sampler.start()
    becomes(lambda: calm(sampler))
    with socket.create_connection(listener.getsockname()):
        becomes(lambda: told)
        becomes(lambda: not calm(sampler))
        listener.accept()[0].close()
    becomes(lambda: calm(sampler))
    sampler.take_loads("e", [[1, 3, 2, 9, 4]])
    becomes(lambda: not calm(sampler))
    sampler.stop()


def test_a_sampler_that_never_started_stops() -> None:
    Sampler(lambda _: Counters()).stop()
