"""Retransmissions, against the counts of a network namespace that has only the engine's flow."""

import ctypes
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from bpf.features import Features
from bpf.layout import Event, EventKind
from tests.kernel.bpf.conftest import engine_target, server
from tests.kernel.bpf.watched import Look, Watched
from tests.kernel.bpf.wire import (
    CHUNKED_HEAD,
    LAST,
    Client,
    chunk,
    event,
    pause,
    post,
    send,
)
from tests.kernel.conftest import MakeGroup

pytestmark = pytest.mark.kernel

CLONE_NEWNET = 0x40000000


@contextmanager
def in_network_of(pid: int) -> Iterator[None]:
    """This thread's new sockets belong to that process's network namespace meanwhile."""
    libc = ctypes.CDLL(None, use_errno=True)
    here, there = os.open("/proc/self/ns/net", os.O_RDONLY), os.open(f"/proc/{pid}/ns/net", 0)
    try:
        if libc.setns(there, CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "could not enter the network namespace")
        try:
            yield
        finally:
            assert libc.setns(here, CLONE_NEWNET) == 0
    finally:
        os.close(here)
        os.close(there)


class Network:
    """The network namespace of a server: loopback only."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        # packets as small as on a wire, so that some of many are dropped
        self._run("ip", "link", "set", "lo", "mtu", "1500", "up")

    def _run(self, *command: str) -> None:
        subprocess.run(["nsenter", "-t", str(self._pid), "-n", *command], check=True)

    def drop_some(self) -> None:
        """A token bucket with next to no queue behind it."""
        shape = ("rate", "20mbit", "burst", "4kb", "limit", "8kb")
        self._run("tc", "qdisc", "add", "dev", "lo", "root", "tbf", *shape)

    def drop_none(self) -> None:
        self._run("tc", "qdisc", "del", "dev", "lo", "root")

    def connect(self, port: int) -> Client:
        with in_network_of(self._pid):
            return Client.to(port)

    def counted(self, file: str, group: str, name: str) -> int:
        """A counter of /proc/net/snmp or /proc/net/netstat."""
        text = Path(f"/proc/{self._pid}/net/{file}").read_text()
        lines = [line.split() for line in text.splitlines() if line.startswith(f"{group}:")]
        return int(dict(zip(*lines, strict=True))[name])

    def retransmitted(self) -> int:
        """Segments sent again: neither those that open a connection, nor those that failed."""
        return (
            self.counted("snmp", "Tcp", "RetransSegs")
            - self.counted("netstat", "TcpExt", "TCPSynRetrans")
            - self.counted("netstat", "TcpExt", "TCPRetransFail")
        )


@pytest.fixture
def flow(
    watched: Watched, features: Features, make_cgroup: MakeGroup
) -> Iterator[tuple[Network, Look, int]]:
    """A followed server alone in its network namespace; its network, its counts and its port."""
    if not features.can_stream:
        pytest.skip(f"this kernel can't follow streams: {features}")
    group = make_cgroup("engine")
    # the server makes its socket when it is told to go on, once its loopback is up
    with server(group, "127.0.0.1", wrapper=("unshare", "--net")) as (process, (port,)):
        row = watched.watch(engine_target(group.v2.name, group, port))
        watched.programs.attach(group.v2, group.stream_id)
        yield Network(process.pid), watched.look(row), port
        watched.programs.detach(group.stream_id)


@dataclass(frozen=True, slots=True)
class Counted:
    """Segments sent again in one stream: by three counts, the last in the stream's end."""

    by_kernel: int
    by_engine: int
    end: Event


def over_a_bad_network(flow: tuple[Network, Look, int], data: bytes, times: int) -> Counted:
    """Have `data` sent as so many chunks, with some packets dropped.

    While they are, the client only acknowledges, and acknowledgements are not sent again: all that
    is retransmitted is the server's.
    """
    network, look, port = flow
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


def test_segments_sent_again_are_those_the_kernel_counts(flow: tuple[Network, Look, int]) -> None:
    # Some hardened kernels run no tracing program on top of tasks of their host's: what interrupts
    # such a task is then missed, and only a run without one is exact. Nothing is counted twice.
    for _ in range(6):
        counted = over_a_bad_network(flow, b"x" * 20_000, 50)
        assert 0 < counted.by_engine <= counted.by_kernel
        # the stream's own count stops at its end, whose last bytes may be sent again after it
        assert 0 < counted.end.stream.retransmits <= counted.by_engine
        if counted.by_engine == counted.by_kernel:
            return
    pytest.fail("not one run of six was counted exactly")


def test_bytes_sent_again_are_followed_once(flow: tuple[Network, Look, int]) -> None:
    counted = over_a_bad_network(flow, event(1) * 10, 3_000)
    assert counted.by_kernel > 0
    stream = counted.end.stream
    assert (stream.chunks, stream.body_bytes) == (3_000, 3_000 * 10 * len(event(1)))


def test_nothing_is_sent_again_on_a_clean_loopback(flow: tuple[Network, Look, int]) -> None:
    network, look, port = flow
    with network.connect(port) as client:
        client.run(send(CHUNKED_HEAD), send(chunk(event(1)), times=1_000), send(LAST))
        end = look.end()
    assert (look.counters.retransmits, end.stream.retransmits) == (0, 0)
