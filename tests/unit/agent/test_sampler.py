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
from agent.sampler import ENDS, KEPT, REST_EVERY, Sampler, at_work
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
    "happens",
    [
        {"requests": 10},
        {"requests": 10, "ended": 10},
        {"reads": 10},
        {"writes": 71},
        {"backlog": 1},
        {"unread": 1},
        {"unsent": 1},
    ],
)
def test_an_engine_in_which_something_happens_is_at_work(happens: dict[str, int]) -> None:
    assert at_work(replace(AT_REST, **happens), AT_REST)


def test_an_engine_in_which_nothing_happens_is_at_rest() -> None:
    assert at_work(AT_REST, None)
    assert not at_work(replace(AT_REST, index=8, looked=True, connections=3), AT_REST)


def test_an_engine_at_rest_is_sampled_less_often(listener: socket.socket) -> None:
    sampler = Sampler(lambda _: Counters())
    sampler.watch([found(listener)])
    sampler.start()
    samples = at_least(4, sampler)
    sampler.stop()
    assert all(b.index - a.index >= REST_EVERY for a, b in pairwise(samples[1:]))


def test_a_sampler_that_never_started_stops() -> None:
    Sampler(lambda _: Counters()).stop()
