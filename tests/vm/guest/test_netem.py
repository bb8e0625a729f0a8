"""Streams over a link that loses, delays and reorders, against the kernel's own counters.

Nobody else sends in the server's network namespace, so what is counted there is the streams'.
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import pytest

from bpf.features import Features
from bpf.layout import Stream, TargetKind
from bpf.libbpf import Libbpf
from bpf.loader import Plan, load
from bpf.targets import Target
from tests.kernel.bpf.network import Network
from tests.kernel.bpf.watched import Look, Watched, watching
from tests.kernel.bpf.wire import (
    CHUNKED_HEAD,
    LAST,
    REPORT,
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
from tests.vm.guest.conftest import cgroups, wait_until
from tests.vm.guest.link import Link, linked

MAX_TARGETS = 4
SHORT = [send(CHUNKED_HEAD + chunk(event(1))), send(LAST)]
CHUNKS = 40
CHUNK_BYTES = 20_000
BODY = chunk(b"x" * CHUNK_BYTES)
CUTS = range(len(BODY), CHUNKS * len(BODY), len(BODY))
LONG = [send(CHUNKED_HEAD), send(BODY, CUTS, CHUNKS), send(LAST)]
EVENT = chunk(event(1) * 5)
HELD_S = 2.0


@dataclass(frozen=True, slots=True)
class Followed:
    """A server behind a good link, whose streams are followed."""

    link: Link
    watched: Watched
    row: int


@pytest.fixture(scope="module")
def followed(streaming: None, lib: Libbpf, features: Features) -> Iterator[Followed]:
    """Such a server."""
    with (
        cgroups("+cpu") as make,
        linked(cgroup := make("engine")) as link,
        watching(load(lib, Plan(features, MAX_TARGETS, None))) as watched,
    ):
        ids = frozenset({cgroup.stat().st_ino})
        target = Target(
            "engine",
            TargetKind.ENGINE,
            cpu_cgroups=ids,
            stream_cgroups=ids,
            ports=frozenset({link.port}),
        )
        row = watched.watch(target)
        watched.programs.attach(cgroup, cgroup.stat().st_ino)
        yield Followed(link, watched, row)


@dataclass(frozen=True, slots=True)
class Flow:
    """What happened on the link since, by our count and by the kernel's."""

    link: Link
    look: Look
    before: Mapping[str, int]

    def kernels(self, name: str) -> int:
        """What the server's kernel counted: one of `COUNTS`."""
        return COUNTS[name](self.link.network) - self.before[name]

    def sent_again(self, client: Client) -> tuple[int, int, int]:
        """Segments sent again so far: by our count, the namespace's, and the only socket's.

        The link is to be good again. The machine may stand still for so long that something is
        sent again for it: the counts are of a moment when nothing was.
        """
        while True:
            before = self.kernels("segments")
            client.run(*SHORT, REPORT)
            socket = json.loads(self.link.server.answer())
            ours = self.look.counters.retransmits
            if self.kernels("segments") == before:
                return ours, before, socket["total_retrans"]


COUNTS: dict[str, Callable[[Network], int]] = {
    "segments": Network.retransmitted,
    "probes": lambda network: network.counted("netstat", "TcpExt", "TCPLossProbes"),
    "timeouts": lambda network: network.counted("netstat", "TcpExt", "TCPTimeouts"),
    "synacks": lambda network: network.counted("netstat", "TcpExt", "TCPSynRetrans"),
}
"""Of segments, neither those that open a connection nor those that failed."""


@pytest.fixture
def flow(followed: Followed) -> Flow:
    """What happens from now on."""
    before = {name: count(followed.link.network) for name, count in COUNTS.items()}
    return Flow(followed.link, followed.watched.look(followed.row), before)


@pytest.mark.parametrize(
    "how",
    [
        "loss 10%",
        "delay 5ms loss 10% 50%",
        "delay 5ms duplicate 20% loss 5%",
        "delay 20ms 15ms loss 5%",
        "delay 10ms reorder 75% 50% loss 5%",
    ],
)
def test_segments_sent_again_are_those_the_kernel_and_the_socket_count(
    flow: Flow, how: str
) -> None:
    runs = 0
    with flow.link.connect() as client:
        client.run(*SHORT)
        with flow.link.answers(*how.split()):
            while not flow.kernels("segments"):
                client.run(*LONG)
                runs += 1
        streams = [end.stream for end in flow.look.ends(1 + runs)[1:]]
        ours, kernel, socket = flow.sent_again(client)
    assert ours == kernel == socket > 0
    # a stream's own count stops at its end, whose last bytes may be sent again after it
    assert sum(stream.retransmits for stream in streams) <= ours
    assert {(each.chunks, each.body_bytes) for each in streams} == {(CHUNKS, CHUNKS * CHUNK_BYTES)}
    assert flow.look.counters.synack_retransmits == 0


def test_what_arrived_and_is_sent_again_for_want_of_an_answer_is_no_chunk_twice(flow: Flow) -> None:
    script: list[Step] = [send(CHUNKED_HEAD), *[send(EVENT), pause(0.1)] * CHUNKS, send(LAST)]
    with flow.link.connect() as client:
        client.write(post(script))
        client.read(len(CHUNKED_HEAD))
        with flow.link.acknowledgements("loss", "100%"):
            wait_until(lambda: flow.kernels("segments") > 2, "segments sent again")
        client.read(len(sent_by(script)) - len(CHUNKED_HEAD))
        stream = flow.look.end().stream
        ours, kernel, socket = flow.sent_again(client)
    assert ours == kernel == socket > 2
    assert (stream.chunks, stream.events) == (CHUNKS, 5 * CHUNKS)


def test_loss_probes_are_told_from_timeouts(flow: Flow) -> None:
    with flow.link.connect() as client:
        client.run(*SHORT)
        assert flow.kernels("probes") == flow.look.counters.loss_probes
        before, timeouts = flow.kernels("probes"), flow.kernels("timeouts")
        with flow.link.answers("loss", "100%"):
            client.write(post(SHORT[:1]))
            wait_until(lambda: flow.kernels("timeouts") > timeouts, "a timeout")
            seen, probes = flow.look.counters, flow.kernels("probes")
        client.read(len(sent_by(SHORT[:1])))
    assert seen.loss_probes == probes > before
    assert seen.retransmits > seen.loss_probes


def test_synacks_sent_again_are_apart_and_exactly_the_kernels(flow: Flow) -> None:
    with flow.link.answers("loss", "100%"):
        client = flow.link.begin()
        wait_until(lambda: flow.kernels("synacks") > 1, "SYN-ACKs sent again")
    with client:
        client.run(*SHORT)
        flow.look.end()
    assert flow.look.counters.synack_retransmits == flow.kernels("synacks")
    assert flow.look.counters.retransmits == flow.kernels("segments")


@dataclass(frozen=True, slots=True)
class Held:
    """A stream to a client with a small window, and what its server's socket says."""

    stream: Stream
    limited_ms: float
    tick_ms: float

    def is_close(self, ms: float) -> bool:
        """Within 5%, and three of the ticks that the kernel counts in."""
        return abs(ms - self.limited_ms) <= 0.05 * self.limited_ms + 3 * self.tick_ms


@pytest.fixture(scope="module", params=[4_096, 16_384])
def held(followed: Followed, features: Features, request: pytest.FixtureRequest) -> Held:
    """The client's window is small, the way is long, and for a while nothing is read."""
    events = send(EVENT, range(len(EVENT), len(EVENT) * 600, len(EVENT)), 600)
    script: list[Step] = [buffer(1 << 20), send(CHUNKED_HEAD), events, REPORT, send(LAST)]
    link, look = followed.link, followed.watched.look(followed.row)
    with link.answers("delay", "30ms"), link.connect(receive_buffer=request.param) as client:
        client.write(post(script))
        client.read(len(CHUNKED_HEAD))
        time.sleep(HELD_S)
        client.read(len(sent_by(script)) - len(CHUNKED_HEAD))
        stream = look.end().stream
        says = json.loads(link.server.answer())
    limited_ms = (says["rwnd_limited_us"] + says["sndbuf_limited_us"]) / 1_000
    assert limited_ms > HELD_S * 1_000 / 2
    return Held(stream, limited_ms, 1_000 / features.hz)


def test_time_held_by_the_clients_window_is_what_tcp_info_says(held: Held) -> None:
    assert held.is_close(held.stream.rwnd_limited_ms + held.stream.sndbuf_limited_ms)
    assert held.stream.rwnd_limited_ms > held.stream.sndbuf_limited_ms


def test_bytes_were_unsent_for_as_long_as_the_window_held_them(held: Held) -> None:
    assert held.is_close(held.stream.blocked_ns / 1e6)
