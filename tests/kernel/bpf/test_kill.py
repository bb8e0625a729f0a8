"""Killing what loaded the programs costs nothing: the kernel goes on counting without it."""

import threading
import time
from contextlib import closing
from pathlib import Path

import pytest

from bpf.features import Features
from bpf.libbpf import Libbpf
from bpf.loader import Plan, load, unload
from bpf.readers import CounterReader
from bpf.targets import TargetTable
from tests.kernel.bpf.child import child
from tests.kernel.bpf.conftest import server
from tests.kernel.bpf.holder import MAX_TARGETS
from tests.kernel.bpf.wire import DONE, Client, chunked, event, send
from tests.kernel.conftest import MakeGroup

pytestmark = pytest.mark.kernel

ROUNDS = 50
PAYLOADS = [event(1), event(2), b"x" * 5_000, DONE]
CHUNKS = 3


class Load:
    """Streams, one after the other on new connections, until it is told to stop."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.streams = 0

    def _run(self) -> None:
        whole = chunked(PAYLOADS)
        while not self._stop.is_set():
            with Client.to(self._port) as client:
                client.run(send(whole, range(40, len(whole), 500)))
                client.run(send(whole))
            self.streams += 2
            time.sleep(0.001)

    def __enter__(self) -> "Load":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


def test_fifty_kills_lose_no_chunk_and_no_stream(
    lib: Libbpf, features: Features, bpffs: Path, make_cgroup: MakeGroup
) -> None:
    if not features.can_stream:
        pytest.skip(f"this kernel can't follow streams: {features}")
    pins, group = bpffs / "kill", make_cgroup("engine")
    with server(group, "127.0.0.1") as (_, (port,)):
        arguments = (str(pins), str(group.v2), str(group.stream_id), str(port))
        with child("holder.py", *arguments) as first:
            first.tell()
            assert first.answer() == "fresh"
        with child("holder.py", *arguments) as second:
            begun = time.monotonic()
            second.tell()
            assert second.answer() == "adopted"
            span_s = time.monotonic() - begun
        with Load(port) as running:
            for number in range(ROUNDS):
                with child("holder.py", *arguments) as holder:
                    holder.tell()
                    # each a little later in its start, the last ones after it
                    time.sleep(span_s * 1.2 * number / ROUNDS)
                    holder.kill()
    programs = load(lib, Plan(features, MAX_TARGETS, pins))
    try:
        assert programs.how == "adopted"
        row = TargetTable(programs).rows["engine"]
        maps = programs.maps
        with closing(
            CounterReader(maps["counters"], maps["health"], MAX_TARGETS, programs.cpus)
        ) as reader:
            counters, health = reader.counters(row), reader.health()
    finally:
        programs.close()
        unload(pins)
    assert running.streams > ROUNDS
    assert counters.requests == counters.ends_complete == running.streams
    assert counters.chunks == running.streams * CHUNKS
    assert counters.body_bytes == running.streams * sum(map(len, PAYLOADS))
    assert (health.lost_streams, counters.ends_early) == (0, 0)


def test_a_kill_at_any_moment_of_the_first_load_leaves_what_the_next_can_use(
    lib: Libbpf, features: Features, bpffs: Path, make_cgroup: MakeGroup
) -> None:
    pins, group = bpffs / "first", make_cgroup("engine")
    arguments = (str(pins), str(group.v2), str(group.stream_id), "1")
    with child("holder.py", *arguments) as first:
        begun = time.monotonic()
        first.tell()
        assert first.answer() == "fresh"
        span_s = time.monotonic() - begun
    unload(pins)
    for number in range(10):
        with child("holder.py", *arguments) as holder:
            holder.tell()
            time.sleep(span_s * number / 10)
            holder.kill()
        programs = load(lib, Plan(features, MAX_TARGETS, pins))
        programs.attach(group.v2, group.stream_id)
        assert programs.attached_cgroups() == {group.stream_id}
        programs.close()
        unload(pins)
        assert not pins.exists()
