"""Segments sent again, against the kernel's own counters of a network namespace with loss.

A token bucket with next to no queue drops packets of a large answer; netem is not everywhere.

Some hardened kernels run no tracing program on top of a task of their host's, an idle CPU's among
them, and what a timer sends again just then is missed. So every CPU is kept busy meanwhile, at the
least priority there is; rounds that a kernel thread was in the way of still come out short.
"""

import os
from contextlib import ExitStack
from typing import Final

from bpf.layout import EventKind
from tests.bench.ground import Ground, Part
from tests.kernel.bpf.child import child
from tests.kernel.bpf.conftest import engine_target, server
from tests.kernel.bpf.network import Network
from tests.kernel.bpf.watched import Look
from tests.kernel.bpf.wire import CHUNKED_HEAD, LAST, chunk, pause, post, send

ROUNDS: Final = 6
CHUNKS: Final = 50
CHUNK_BYTES: Final = 20_000


def measure(ground: Ground) -> Part:
    """Answers over a network that drops; all rounds together, and how many were exact alone."""
    group = ground.make_group("engine")
    with (
        server(group, "127.0.0.1", wrapper=("unshare", "--net")) as (process, (port,)),
        ground.watched() as watched,
        ExitStack() as stack,
    ):
        for cpu in sorted(os.sched_getaffinity(0)):
            idler = child("task.py", "burn", cpu=cpu, wrapper=("chrt", "--idle", "0"))
            stack.enter_context(idler).tell()
        network = Network(process.pid)
        row = watched.watch(engine_target("engine", group, port))
        watched.programs.attach(group.v2, group.stream_id)
        look = watched.look(row)
        rounds = [_round(network, look, port) for _ in range(ROUNDS)]
    return {
        "ours": sum(ours for ours, _ in rounds),
        "kernel": sum(kernel for _, kernel in rounds),
        "rounds": ROUNDS,
        "rounds_exact": sum(ours == kernel for ours, kernel in rounds),
        "by_round": rounds,
    }


def _round(network: Network, look: Look, port: int) -> tuple[int, int]:
    """By our count and by the kernel's; while packets are dropped, only the server sends data."""
    body = chunk(b"x" * CHUNK_BYTES)
    seen = len(look.of_kind(EventKind.END))
    script = [send(CHUNKED_HEAD), pause(0.3), send(body, times=CHUNKS), send(LAST)]
    with network.connect(port) as client:
        client.write(post(script))
        client.read(len(CHUNKED_HEAD))
        ours, kernel = look.counters.retransmits, network.retransmitted()
        network.drop_some()
        client.read(len(body) * CHUNKS + len(LAST))
        look.ends(seen + 1)
        network.drop_none()
        # a lost acknowledgement may have the last bytes sent again just now
        now, ours_now = -1, 0
        while now != network.retransmitted():
            now, ours_now = network.retransmitted(), look.counters.retransmits
    return ours_now - ours, now - kernel
