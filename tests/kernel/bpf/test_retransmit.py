"""Retransmissions, against the counts of a network namespace that has only the engine's flow."""

import os
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from bpf.features import Features
from bpf.layout import Event, EventKind
from bpf.libbpf import Libbpf, count_runs, program_runs
from tests.kernel.bpf.conftest import Flow
from tests.kernel.bpf.network import go_deaf, hear_again, some_run_is_exact
from tests.kernel.bpf.scheduling import wait_for
from tests.kernel.bpf.wire import (
    CHUNKED_HEAD,
    LAST,
    chunk,
    event,
    pause,
    post,
    send,
)

pytestmark = pytest.mark.kernel


@dataclass(frozen=True, slots=True)
class Counted:
    """Segments sent again in one stream: by three counts, the last in the stream's end."""

    by_kernel: int
    by_engine: int
    end: Event


def over_a_bad_network(flow: Flow, data: bytes, times: int) -> Counted:
    """Have `data` sent as so many chunks, with some packets dropped.

    While they are, the client only acknowledges, and acknowledgements are not sent again: all that
    is retransmitted is the server's.
    """
    network, look, port = flow.network, flow.look, flow.port
    body = chunk(data)
    seen = len(look.of_kind(EventKind.END))
    with network.connect(port) as client:
        client.write(post([send(CHUNKED_HEAD), pause(0.3), send(body, times=times), send(LAST)]))
        client.read(len(CHUNKED_HEAD))
        by_kernel, by_engine = network.retransmitted(), look.counters.retransmits
        network.drop_some()
        assert client.read(len(body) * times) == body * times
        client.read(len(LAST))
        end = look.ends(seen + 1)[-1]
        network.drop_none()
        # a lost acknowledgement may have the last bytes sent again just now
        now, engine_now = -1, 0
        while now != network.retransmitted():
            now, engine_now = network.retransmitted(), look.counters.retransmits
    return Counted(now - by_kernel, engine_now - by_engine, end)


def test_segments_sent_again_are_those_the_kernel_counts(flow: Flow) -> None:
    def run() -> Iterator[tuple[int, int]]:
        for _ in range(6):
            counted = over_a_bad_network(flow, b"x" * 20_000, 50)
            # the stream's own count stops at its end, whose last bytes may be sent again after it
            assert 0 < counted.end.stream.retransmits <= counted.by_engine
            yield counted.by_engine, counted.by_kernel

    assert some_run_is_exact(run())


def test_bytes_sent_again_are_followed_once(flow: Flow) -> None:
    counted = over_a_bad_network(flow, event(1) * 10, 3_000)
    assert counted.by_kernel > 0
    stream = counted.end.stream
    assert (stream.chunks, stream.body_bytes) == (3_000, 3_000 * 10 * len(event(1)))


def test_a_retransmission_that_failed_is_none(flow: Flow, lib: Libbpf, features: Features) -> None:
    if not features.retransmit_error:
        pytest.skip("before 6.17 the kernel does not tell of those that failed")
    network, look = flow.network, flow.look
    programs = look.watched.programs

    def tried() -> int:
        return program_runs(lib, programs.programs["retransmit"]).count

    counting, (before, tried_before) = count_runs(lib), (network.retransmitted(), tried())
    rest = chunk(event(1)) + LAST
    with network.connect(flow.port) as client:
        client.write(post([send(CHUNKED_HEAD), pause(0.2), send(rest)]))
        client.read(len(CHUNKED_HEAD))
        go_deaf(client)
        wait_for(lambda: look.of_kind(EventKind.FIRST) != [])
        network.drop_all()
        wait_for(lambda: tried() >= tried_before + 2)
        network.drop_none()
        hear_again(client)
        client.read(len(rest))
        sent, seen = network.retransmitted() - before, look.counters.retransmits
        failed = tried() - tried_before - seen
    os.close(counting)
    assert (seen, failed >= 2) == (sent, True)


def test_nothing_is_sent_again_on_a_clean_loopback(flow: Flow) -> None:
    network, look, port = flow.network, flow.look, flow.port
    with network.connect(port) as client:
        client.run(send(CHUNKED_HEAD), send(chunk(event(1)), times=1_000), send(LAST))
        end = look.end()
    assert (look.counters.retransmits, end.stream.retransmits) == (0, 0)
