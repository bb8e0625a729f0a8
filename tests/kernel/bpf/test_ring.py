"""How many records are taken from a ring at once."""

import select

import pytest

from agent.node import MOST_EVENTS
from bpf.layout import EVENT, STREAM
from bpf.libbpf import Ring
from tests.kernel.bpf.conftest import Engine
from tests.kernel.bpf.scheduling import wait_for
from tests.kernel.bpf.wire import Client, chunked, event, send

pytestmark = pytest.mark.kernel

RECORD_HEAD_BYTES = 8
"""BPF_RINGBUF_HDR_SZ of include/uapi/linux/bpf.h."""


def test_what_is_left_of_more_records_than_asked_for_comes_next_time(engine: Engine) -> None:
    look = engine.look()
    programs, taken = engine.watched.programs, list[bytes]()
    with Client.to(engine.port) as client:
        for _ in range(2):
            client.run(send(chunked([event(1), event(2)])))
        wait_for(lambda: look.counters.ends_complete == 2)
    ring = Ring(programs.lib, programs.maps["events"], taken.append, most=4)
    # a start, a first chunk and an end of each stream
    assert [ring.consume() for _ in range(3)] == [4, 2, 0]
    assert len(taken) == 6
    ring.close()


def test_the_agent_is_woken_once_events_begin_to_fill_the_ring(engine: Engine) -> None:
    look, ring = engine.look(), engine.watched.rings[-1]
    ring.consume()

    def woken() -> bool:
        return select.select([ring.fileno()], [], [], 0)[0] != []

    streams = 0
    with Client.to(engine.port) as client:
        while not woken() and streams < MOST_EVENTS // 4:
            client.run(send(chunked([event(1)])))
            streams += 1
    assert 100 < streams < MOST_EVENTS // 4
    look.ends(streams)


def test_the_agent_takes_all_that_the_ring_can_hold(engine: Engine) -> None:
    record = RECORD_HEAD_BYTES + EVENT.size + STREAM.size
    assert engine.watched.programs.map("events").max_entries // record <= MOST_EVENTS
