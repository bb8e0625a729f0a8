"""Time that a stream was held by its client's window or the send buffer, against TCP_INFO.

The server reads TCP_INFO of its socket when the answer has left; the kernel programs keep their own
account of each stream. Both count in jiffies. How long bytes were unsent is measured besides, from
a write's return to the packet. That is the time the window held them, but for `narrow` send
buffers, where the write itself waits.
"""

import json
import threading
import time
from collections.abc import Mapping
from contextlib import ExitStack
from random import Random
from typing import Final

from tests.bench.ground import Ground, Part
from tests.bench.quantiles import spread
from tests.kernel.bpf.child import Child
from tests.kernel.bpf.conftest import engine_target, server
from tests.kernel.bpf.wire import (
    CHUNKED_HEAD,
    LAST,
    REPORT,
    Client,
    Step,
    buffer,
    chunk,
    post,
    send,
    sent_by,
)

SERVERS: Final = 6
LEAST_MS: Final = 200
"""Streams that were held for less are not compared: a jiffy is too much of it."""

_READ_BYTES: Final = 16_384


def measure(ground: Ground, streams: int = 36, seed: int = 1) -> Part:
    """Slow readers, several at a time; the error of each stream's held time in percent."""
    group = ground.make_group("engine")
    with ExitStack() as stack:
        servers = [stack.enter_context(server(group, "127.0.0.1")) for _ in range(SERVERS)]
        watched = stack.enter_context(ground.watched())
        ports = [port for _, (port,) in servers]
        row = watched.watch(engine_target("engine", group, *ports))
        watched.programs.attach(group.v2, group.stream_id)
        look = watched.look(row)
        told: dict[int, dict[str, int]] = {}
        workers = [
            threading.Thread(
                target=_read_slowly,
                args=(process, port, Random(f"{seed}/{at}"), streams // SERVERS, told),
            )
            for at, (process, (port,)) in enumerate(servers)
        ]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        ended = look.ends(SERVERS * (streams // SERVERS))
    ends = {end.stream.remote_port: end.stream for end in ended}
    held = {port: facts for port, facts in told.items() if limited_ms(facts) >= LEAST_MS}
    errors = [
        error_percent(end.rwnd_limited_ms + end.sndbuf_limited_ms, held[port])
        for port, end in ends.items()
        if port in held
    ]
    unsent: dict[bool, list[float]] = {False: [], True: []}
    for port, facts in held.items():
        error = error_percent(ends[port].blocked_ns / 1e6, facts)
        unsent[bool(facts["narrow"])].append(error)
    return {
        "streams": len(ends),
        "compared": len(errors),
        **spread("error_percent", errors),
        **spread("unsent_error_percent", unsent[False]),
        **spread("unsent_error_percent_of_narrow", unsent[True]),
        "rwnd_limited_ms": sum(end.rwnd_limited_ms for end in ends.values()),
        "sndbuf_limited_ms": sum(end.sndbuf_limited_ms for end in ends.values()),
        "peer_rwnd_limited_ms": sum(each["rwnd_limited_us"] for each in told.values()) // 1000,
        "peer_sndbuf_limited_ms": sum(each["sndbuf_limited_us"] for each in told.values()) // 1000,
    }


def limited_ms(facts: Mapping[str, int]) -> float:
    """What TCP_INFO says of both kinds together."""
    return (facts["rwnd_limited_us"] + facts["sndbuf_limited_us"]) / 1e3


def error_percent(ours_ms: float, facts: Mapping[str, int]) -> float:
    """Ours against TCP_INFO's."""
    return abs(ours_ms - limited_ms(facts)) / limited_ms(facts) * 100


def _read_slowly(
    process: Child, port: int, random: Random, streams: int, told: dict[int, dict[str, int]]
) -> None:
    for _ in range(streams):
        narrow = random.random() < 0.5
        data = chunk(b"z" * random.randint(1_000, 20_000))
        times = random.randint(300_000, 900_000) // len(data)
        script: list[Step] = [
            *([buffer(random.choice((1, 20_000)))] if narrow else []),
            send(CHUNKED_HEAD),
            send(data, range(len(data), len(data) * times, len(data)), times),
            send(LAST),
            REPORT,
        ]
        every_s = random.uniform(0.002, 0.012)
        with Client.to(port, receive_buffer=random.choice((8_192, 16_384, 65_536))) as client:
            client.write(post(script))
            left = len(sent_by(script))
            while left:
                left -= len(client.read(min(left, _READ_BYTES)))
                time.sleep(every_s)
            told[client.port] = json.loads(process.answer()) | {"narrow": int(narrow)}
