"""The engine's reads and writes, and how long its bytes wait to leave, against its own measure."""

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from bpf.features import Features
from bpf.layout import Counters, Event
from tests.kernel.bpf.child import Child
from tests.kernel.bpf.conftest import Engine, server
from tests.kernel.bpf.scheduling import wait_for
from tests.kernel.bpf.wire import (
    CHUNKED_HEAD,
    LAST,
    REPORT,
    Client,
    Step,
    buffer,
    chunk,
    event,
    insist,
    pause,
    post,
    send,
    sent_by,
)

pytestmark = pytest.mark.kernel

HELD_S = 0.25
PAUSE_NS = 20_000_000
EVENT = chunk(event(1) * 5)


@dataclass(frozen=True, slots=True)
class Writer:
    """A followed server that says how its writes went."""

    engine: Engine
    process: Child
    port: int
    tick_ms: float

    def says(self) -> dict[str, int]:
        facts: dict[str, int] = json.loads(self.process.answer())
        return facts


@pytest.fixture(scope="module")
def writer(engine: Engine, features: Features) -> Iterator[Writer]:
    if not {"sock_send_length", "sock_recv_length"} <= features.tracepoints:
        pytest.skip(f"this kernel does not trace reads and writes: {features}")
    with server(engine.group, "127.0.0.1") as (process, (port,)):
        engine.watch(port, gap_slo_ns=int(HELD_S / 2 * 1e9))
        yield Writer(engine, process, port, 1000 / features.hz)
    engine.watch()


def blocked_now(counters: Counters) -> int:
    return counters.blocked_begun - counters.blocked_ended


@dataclass(frozen=True, slots=True)
class Held:
    """A stream that was held up by a client that did not read for a while."""

    end: Event
    counters: Counters
    server: dict[str, int]
    read_from_ns: int
    client_ns: int


def held(writer: Writer, count: int, *before: Step) -> Held:
    """Have the client read nothing for a while after `count` events were written for it."""
    cuts = range(len(EVENT), len(EVENT) * count // 2, len(EVENT))
    half = send(EVENT * (count // 2), cuts)
    # by the second half, the client's window is full
    script = [*before, send(CHUNKED_HEAD), half, pause(0.1), half, REPORT, send(LAST)]
    look = writer.engine.look()
    with Client.to(writer.port, receive_buffer=4096) as client:
        start_ns = time.monotonic_ns()
        client.write(post(script))
        wait_for(lambda: blocked_now(look.counters) == 1)
        time.sleep(HELD_S)
        assert blocked_now(look.counters) == 1
        read_from_ns = time.monotonic_ns()
        client.read(len(sent_by(script)))
        client_ns = time.monotonic_ns() - start_ns
        end = look.end()
        return Held(end, look.counters, writer.says(), read_from_ns, client_ns)


@pytest.fixture(scope="module")
def slow(writer: Writer) -> Held:
    """All is written while the client does not read."""
    return held(writer, 2_000, buffer(1 << 20))


def test_bytes_wait_as_long_as_the_client_does_not_read(slow: Held) -> None:
    blocked_ns = slow.end.stream.blocked_ns
    assert slow.server["unsent"] > 0
    assert slow.read_from_ns - slow.server["waited_from_ns"] <= blocked_ns <= slow.client_ns


def test_the_wait_ends_when_the_last_byte_leaves(slow: Held) -> None:
    stream = slow.end.stream
    # the engine saw its buffer empty only after that
    began_by_ns = stream.request_ns
    assert began_by_ns + stream.blocked_ns <= slow.server["left_ns"]


def test_what_waits_is_the_counters_too_and_nothing_waits_at_the_end(slow: Held) -> None:
    counters = slow.counters
    assert counters.blocked_ns == slow.end.stream.blocked_ns
    assert blocked_now(counters) == 0
    assert counters.blocked_begun >= 1


def test_the_late_gap_is_told_to_have_been_unsent(slow: Held) -> None:
    counters = slow.counters
    assert 1 <= counters.gaps_unsent <= counters.gaps_over


def test_writes_that_found_the_clients_window_full_are_told(slow: Held) -> None:
    counters = slow.counters
    assert counters.writes_stalled == slow.end.stream.writes_stalled
    assert 0 < counters.writes_held <= counters.writes_stalled <= counters.writes


def close(ours_ms: int, theirs_us: int, tick_ms: float) -> bool:
    """Within 5% and three ticks, which both are counted in."""
    return abs(ours_ms - theirs_us / 1000) <= 0.05 * theirs_us / 1000 + 3 * tick_ms


def test_time_limited_by_the_client_is_what_tcp_info_says(slow: Held, writer: Writer) -> None:
    stream, server_says = slow.end.stream, slow.server
    assert stream.rwnd_limited_ms >= HELD_S * 1000 / 2
    assert close(stream.rwnd_limited_ms, server_says["rwnd_limited_us"], writer.tick_ms)
    assert close(stream.sndbuf_limited_ms, server_says["sndbuf_limited_us"], writer.tick_ms)
    assert stream.busy_ms >= stream.rwnd_limited_ms + stream.sndbuf_limited_ms
    assert stream.busy_ms * 1000 >= 0.95 * server_says["busy_us"] - 3_000 * writer.tick_ms


def test_time_limited_by_a_small_send_buffer_is_what_tcp_info_says(writer: Writer) -> None:
    small = held(writer, 1_000, buffer(4_096))
    stream, server_says = small.end.stream, small.server
    assert close(stream.rwnd_limited_ms, server_says["rwnd_limited_us"], writer.tick_ms)
    assert close(stream.sndbuf_limited_ms, server_says["sndbuf_limited_us"], writer.tick_ms)


def test_the_second_stream_of_a_connection_starts_its_times_anew(writer: Writer) -> None:
    look = writer.engine.look()
    big = [buffer(1 << 20), send(CHUNKED_HEAD), send(EVENT * 2_000), REPORT, send(LAST)]
    with Client.to(writer.port, receive_buffer=4096) as client:
        client.write(post(big))
        wait_for(lambda: blocked_now(look.counters) == 1)
        time.sleep(HELD_S)
        client.read(len(sent_by(big)))
        writer.says()
        client.run(send(CHUNKED_HEAD + EVENT + LAST))
        first, second = look.ends(2)
    assert first.stream.rwnd_limited_ms >= HELD_S * 1000 / 2
    assert second.stream.rwnd_limited_ms < HELD_S * 1000 / 4
    assert second.stream.blocked_ns < first.stream.blocked_ns


def test_a_client_that_vanishes_leaves_nothing_waiting(writer: Writer) -> None:
    look = writer.engine.look()
    with Client.to(writer.port, receive_buffer=4096) as client:
        client.write(post([buffer(1 << 20), send(CHUNKED_HEAD), send(EVENT * 2_000), pause(0.05)]))
        wait_for(lambda: blocked_now(look.counters) == 1)
        client.reset()
        end = look.end()
    assert end.stream.blocked_ns > 0
    assert blocked_now(look.counters) == 0


def test_writes_without_any_room_are_counted(writer: Writer) -> None:
    look = writer.engine.look()
    script = [buffer(4_096), send(CHUNKED_HEAD), insist(EVENT * 2_000), send(LAST)]
    with Client.to(writer.port, receive_buffer=4096) as client:
        client.write(post(script))
        time.sleep(0.02)
        client.read(len(sent_by(script)))
        end = look.end()
    refused = writer.says()["refused"]
    assert end.stream.write_again == look.counters.write_again == refused > 0


def test_every_write_is_counted(writer: Writer) -> None:
    look = writer.engine.look()
    whole = CHUNKED_HEAD + EVENT * 20 + LAST
    with Client.to(writer.port) as client:
        client.run(send(whole, range(10, len(whole), 10)))
        client.get()
        look.end()
        # a write returns after what it wrote has arrived
        wait_for(lambda: look.counters.writes == len(range(10, len(whole), 10)) + 2)


def test_the_longest_pause_between_writes_is_seen(writer: Writer) -> None:
    look = writer.engine.look()
    steps = [send(CHUNKED_HEAD), send(EVENT), pause(PAUSE_NS / 1e9), send(EVENT), send(LAST)]
    with Client.to(writer.port) as client:
        before_ns = time.monotonic_ns()
        client.run(*steps)
        client_ns = time.monotonic_ns() - before_ns
        stream = look.end().stream
    assert PAUSE_NS <= stream.write_gap_max_ns <= client_ns
    assert stream.request_ns < stream.read_ns < stream.write_ns < stream.last_write_ns


def test_a_request_waits_until_the_engine_reads_it(writer: Writer) -> None:
    look = writer.engine.look()
    with Client.to(writer.port) as client:
        client.get()
        with writer.process.stopped():
            client.write(post([send(CHUNKED_HEAD + EVENT + LAST)]))
            time.sleep(PAUSE_NS / 1e9)
        client.read(len(CHUNKED_HEAD + EVENT + LAST))
        stream = look.end().stream
    assert stream.read_ns - stream.request_ns >= PAUSE_NS
    assert (look.counters.reads, look.counters.read_wait_ns) == (
        1,
        stream.read_ns - stream.request_ns,
    )
    assert stream.ttft_ns is not None
    assert stream.read_ns - stream.request_ns < stream.ttft_ns
