"""Bytes that wait to leave, on kernels that do not show the engine's writes."""

import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from bpf.features import Features
from bpf.layout import Counters
from bpf.libbpf import Libbpf
from bpf.loader import Plan, load
from tests.kernel.bpf.conftest import MAX_TARGETS, Engine
from tests.kernel.bpf.network import go_deaf, hear_again
from tests.kernel.bpf.scheduling import wait_for
from tests.kernel.bpf.watched import Watched, watching
from tests.kernel.bpf.wire import (
    CHUNKED_HEAD,
    LAST,
    Client,
    Step,
    buffer,
    chunk,
    event,
    pause,
    post,
    send,
    sent_by,
)

pytestmark = pytest.mark.kernel

HELD_S = 0.5
EVENT = chunk(event(1) * 5)


@pytest.fixture(scope="module")
def watched(lib: Libbpf, features: Features) -> Iterator[Watched]:
    """Loaded as if this kernel were older than 6.3."""
    hidden = {"sock_send_length", "sock_recv_length"}
    older = replace(features, tracepoints=features.tracepoints - hidden)
    with watching(load(lib, Plan(older, MAX_TARGETS, None))) as made:
        yield made


def blocked_now(counters: Counters) -> int:
    return counters.blocked_begun - counters.blocked_ended


def test_bytes_wait_while_a_client_does_not_read(engine: Engine) -> None:
    engine.watch(gap_slo_ns=int(HELD_S / 4 * 1e9))
    look = engine.look()
    events = send(EVENT, range(len(EVENT), 1_000 * len(EVENT), len(EVENT)), 1_000)
    script: list[Step] = [buffer(1 << 20), send(CHUNKED_HEAD), events, send(LAST)]
    with Client.to(engine.port, receive_buffer=4_096) as client:
        start_ns = time.monotonic_ns()
        client.write(post(script))
        wait_for(lambda: blocked_now(look.counters) == 1)
        time.sleep(HELD_S)
        assert blocked_now(look.counters) == 1
        client.read(len(sent_by(script)))
        client_ns = time.monotonic_ns() - start_ns
        stream = look.end().stream
    counters = look.counters
    assert HELD_S * 1e9 <= stream.blocked_ns <= client_ns
    assert counters.blocked_ns == stream.blocked_ns
    assert blocked_now(counters) == 0
    assert (counters.writes, counters.writes_stalled, stream.last_write_ns) == (0, 0, 0)
    assert 1 <= counters.gaps_unsent <= counters.gaps_over


def test_bytes_that_a_dead_network_holds_are_noticed_as_others_are_sent_again(
    engine: Engine,
) -> None:
    look = engine.look()
    script: list[Step] = [send(CHUNKED_HEAD), *[send(EVENT), pause(0.01)] * 40, send(LAST)]
    with Client.to(engine.port) as client:
        client.write(post(script))
        client.read(len(CHUNKED_HEAD))
        go_deaf(client)
        wait_for(lambda: blocked_now(look.counters) == 1)
        assert look.counters.retransmits > 0
        hear_again(client)
        client.read(len(sent_by(script)) - len(CHUNKED_HEAD))
        stream = look.end().stream
    assert stream.blocked_ns > 0
    assert blocked_now(look.counters) == 0


def test_nothing_waits_where_nothing_is_in_the_way(engine: Engine) -> None:
    look = engine.look()
    with Client.to(engine.port) as client:
        client.run(send(CHUNKED_HEAD), *[send(EVENT), pause(0.002)] * 50, send(LAST))
        stream = look.end().stream
    assert (look.counters.blocked_begun, stream.blocked_ns) == (0, 0)
