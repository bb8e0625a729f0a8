"""What following streams costs: a packet, a stream as fast as it goes, and packets of others.

The server writes event after event without a pause (tests/bench/pacer.py with no gap): an engine
whose only work is to stream. It has one CPU, the client another. Each round streams without our
programs, with the server followed, with our programs following somebody else, and with a program
that does nothing, for what the run counter itself takes: that is taken off ours.
"""

import json
import os
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from bpf.libbpf import BPF_CGROUP_INET_INGRESS, Object, Runs, program_runs
from tests.bench.ground import Ground, ground
from tests.kernel.bpf.child import child
from tests.kernel.bpf.conftest import engine_target
from tests.kernel.conftest import TwinGroup

from .cpus import divided, keeping_to
from .extent import Extent
from .figures import Figure, Found, alternate, ratios
from .overhead import clang, counting

NOTHING_SOURCE: Final = Path(__file__).with_name("nothing_packet.bpf.c")
PACER: Final = str(Path(__file__).parents[1] / "pacer.py")
PATIENCE_S: Final = 60.0
PACKETS: Final = ("stream_in", "stream_out")


@dataclass(frozen=True, slots=True)
class Streamed:
    """One run: chunks a second, and one run of the packets' programs in the stream after it."""

    chunks_per_s: float
    packet_ns: float | None


def measure(extent: Extent) -> Found:
    """The figures `overhead.packet_ns` and `overhead.stream_throughput_ratio`."""
    cpu, others = divided()
    with ground() as on, keeping_to(others), TemporaryDirectory() as directory:
        compiled = clang(NOTHING_SOURCE, Path(directory))
        group, other = on.make_group("streams"), on.make_group("other")
        with paced(group, 0, cpu) as port:
            stream(port, extent.chunks)
            runs = alternate(
                extent.short_rounds,
                {
                    "alone": partial(_run, on, port, extent.chunks, None),
                    "ours": partial(_run, on, port, extent.chunks, group),
                    "unwatched": partial(_run, on, port, extent.chunks, other),
                    "nothing": partial(_nothing, on, port, extent.chunks, group, compiled),
                },
            )
    return figures(runs)


def figures(runs: Mapping[str, list[Streamed]]) -> Found:
    """What the runs of each variant come to."""
    rates = {name: [run.chunks_per_s for run in of] for name, of in runs.items()}
    both = zip(runs["ours"], runs["nothing"], strict=True)
    packets = tuple(
        run.packet_ns - empty.packet_ns
        for run, empty in both
        if run.packet_ns is not None and empty.packet_ns is not None
    )
    unwatched = [run for run in runs["unwatched"] if run.packet_ns is not None]
    said = "none of our packet programs ran" if not unwatched else "our packet programs ran"
    rate = Figure(tuple(rates["alone"])).median or 0.0
    return {
        "overhead.packet_ns": Figure(packets, "a packet of a followed stream, either way"),
        "overhead.stream_throughput_ratio": Figure(
            ratios(rates["ours"], rates["alone"]),
            f"one stream without a pause, {rate:,.0f} chunks/s without sits; beside a stream that"
            f" nobody follows {said}",
            {"a stream nobody follows": Figure(ratios(rates["unwatched"], rates["alone"]))},
        ),
    }


def _run(on: Ground, port: int, chunks: int, followed: TwinGroup | None) -> Streamed:
    if followed is None:
        return Streamed(stream(port, chunks), None)
    with on.watched() as watched:
        watched.watch(engine_target("engine", followed))
        watched.programs.attach(followed.v2, followed.stream_id)
        return _streamed(on, port, chunks, [watched.programs.programs[name] for name in PACKETS])


def _nothing(on: Ground, port: int, chunks: int, group: TwinGroup, compiled: Path) -> Streamed:
    """With a program that does nothing on every packet to the server."""
    lib, opened = on.lib, Object(on.lib, compiled)
    directory = os.open(group.v2, os.O_RDONLY)
    try:
        opened.load()
        program = lib.bpf_program__fd(opened.programs()["nothing_at_packet"])
        link = lib.check(
            lib.bpf_link_create(program, directory, BPF_CGROUP_INET_INGRESS, None),
            "attach a program that does nothing",
        )
        try:
            return _streamed(on, port, chunks, [program])
        finally:
            os.close(link)
    finally:
        os.close(directory)
        opened.close()


def _streamed(on: Ground, port: int, chunks: int, programs: Sequence[int]) -> Streamed:
    """A stream for its rate, and one more while the runs of these programs are counted."""
    rate = stream(port, chunks)
    with counting(on):
        before = _runs(on, programs)
        stream(port, chunks // 2)
        after = _runs(on, programs)
    count = after.count - before.count
    return Streamed(rate, (after.ns - before.ns) / count if count else None)


def _runs(on: Ground, programs: Sequence[int]) -> Runs:
    runs = [program_runs(on.lib, program) for program in programs]
    return Runs(sum(run.count for run in runs), sum(run.ns for run in runs))


def stream(port: int, chunks: int) -> float:
    """Have so many chunks streamed; chunks a second from the first byte to the last."""
    with connect(port, chunks) as client:
        client.recv(1)
        begun_ns = time.monotonic_ns()
        while client.recv(1 << 20):
            pass
        return chunks / ((time.monotonic_ns() - begun_ns) / 1e9)


def connect(port: int, chunks: int) -> socket.socket:
    """A connection on which so many chunks were asked for."""
    client = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
    body = json.dumps({"max_tokens": chunks, "stream": True}).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nHost: bench\r\nContent-Length: %d\r\n\r\n"
    client.sendall(head % len(body) + body)
    return client


@contextmanager
def paced(group: TwinGroup, gap_ms: float, cpu: int | None = None) -> Iterator[int]:
    """The port of a server in `group` that streams a chunk each `gap_ms`."""
    with child(PACER, str(gap_ms), group=group, cpu=cpu) as server:
        server.tell()
        yield int(json.loads(server.answer()))
