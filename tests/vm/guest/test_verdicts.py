"""sitsd's word on what goes wrong in this machine: each trouble is made and has to be named.

No time is judged: a trouble lasts until it is named, and the engine's gaps may be so long that the
machine's own slowness makes none late.
"""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from agent.client import AgentClient
from bpf.features import Features
from controller.attribution import MEANING, Cause
from tests.kernel.agent.rig import Site
from tests.kernel.bpf.wire import CHUNKED_HEAD, Client, Step, chunk, event, pause, post, send
from tests.vm.guest.conftest import Burn, cgroups, wait_until
from tests.vm.guest.link import Link, linked

GAP_MS = 5_000
TROUBLE_S = 3 * GAP_MS / 1e3
"""So long a trouble makes a chunk late, however soon it is named."""

PATIENCE_S = 400
ENGINE_CPU = 0
"""Where `burn` burns too."""

CHUNK = chunk(event(1) * 2)
ENDLESS = [send(CHUNKED_HEAD), *[send(CHUNK), pause(0.05)] * 2_000]
HOG_BYTES = 96 << 20
TARGETS = f"""
[engines.streaming]
cgroup = "/tests/streaming"
slo = {{ ttft_ms = 60000, gap_ms = {GAP_MS} }}
[engines.computing]
cgroup = "/tests/computing"
slo = {{ ttft_ms = 60000, gap_ms = 4 }}
[neighbours.n]
cgroup = "/tests/neighbour"
"""


@dataclass(frozen=True, slots=True)
class Node:
    """sitsd, and the cgroups of its targets."""

    api: AgentClient
    streaming: Path
    computing: Path
    neighbour: Path

    def explain(self, engine: str, since_s: float) -> dict[str, Any]:
        return self.api.explain(engine, max(1.0, time.monotonic() - since_s))

    def worst(self, engine: str, since_s: float) -> str:
        """The cause that ailed it longest since then."""
        causes = self.causes(engine, since_s)
        return max(causes, key=lambda name: causes[name], default=str(Cause.NONE))

    def causes(self, engine: str, since_s: float) -> dict[str, float]:
        """The share of the time that each cause ailed it."""
        return {each["cause"]: each["share"] for each in self.explain(engine, since_s)["causes"]}

    def wait_for(self, engine: str, cause: Cause, since_s: float) -> None:
        """Return once that is the worst."""
        until_s = time.monotonic() + PATIENCE_S
        while self.worst(engine, since_s) != cause:
            assert time.monotonic() < until_s, self.causes(engine, since_s)
            time.sleep(1)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A sitsd that only watches."""
    site = Site(tmp_path_factory.mktemp("sitsd"), Path("/sys/fs/bpf/sits-verdicts"))
    everywhere = os.sched_getaffinity(0)
    # whoever asks and whoever answers is in nobody's way
    os.sched_setaffinity(0, everywhere - {ENGINE_CPU})
    with cgroups("+cpu +memory") as make:
        groups = [make(name) for name in ("streaming", "computing", "neighbour")]
        site.write(TARGETS)
        try:
            with site.sitsd(patience_s=PATIENCE_S):
                yield Node(AgentClient(site.admin_socket, PATIENCE_S), *groups)
        finally:
            site.unload()
            os.sched_setaffinity(0, everywhere)


@pytest.fixture
def link(node: Node, streaming: None) -> Iterator[Link]:
    """A streaming engine behind a link, which sitsd follows."""
    with linked(node.streaming, ENGINE_CPU) as made:
        wait_until(lambda: made.port in ports(node), "the engine's port")
        yield made


def ports(node: Node) -> list[int]:
    """Those of all engines."""
    return [port for engine in node.api.status()["engines"] for port in engine["ports"]]


@contextmanager
def streams(link: Link, count: int, script: Sequence[Step]) -> Iterator[None]:
    """Clients that read what a script sends."""

    def read(client: Client) -> None:
        with suppress(OSError):
            client.read_to_end()

    with ExitStack() as stack:
        for _ in range(count):
            client = stack.enter_context(link.connect())
            client.socket.settimeout(PATIENCE_S)
            client.write(post(script))
            reader = threading.Thread(target=read, args=(client,))
            reader.start()
            stack.callback(reader.join)
            stack.callback(client.socket.shutdown, socket.SHUT_RDWR)
        yield


@contextmanager
def hog(group: Path) -> Iterator[None]:
    """A process in the group that holds so much memory and does nothing."""
    hold = f"m = bytearray(b'x') * {HOG_BYTES}; print(flush=True); input()"
    join = 'echo $$ >"$1"; shift; exec "$@"'
    with subprocess.Popen(
        ["sh", "-c", join, "join", str(group / "cgroup.procs"), sys.executable, "-c", hold],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield
        finally:
            process.kill()


def last_until(then_s: float) -> None:
    """Return at that time, by the monotonic clock."""
    time.sleep(max(0.0, then_s - time.monotonic()))


def late(node: Node, since_s: float) -> bool:
    """Whether a chunk of the streaming engine's has left late since then."""
    return bool(node.explain("streaming", since_s)["evidence"].get("gaps_over"))


def slow(node: Node, since_s: float) -> dict[str, int]:
    """The causes of the streaming engine's slow streams since then."""
    causes: dict[str, int] = node.explain("streaming", since_s)["stream_causes"]
    return causes


def never_the_batch(node: Node, since_s: float) -> None:
    """Neither the engine nor one of its streams."""
    told = node.explain("streaming", since_s)
    named = {each["cause"] for each in told["causes"]} | set(told["stream_causes"])
    assert not named & {Cause.BATCH, Cause.QUEUE}, told


def test_segments_that_are_lost(node: Node, link: Link) -> None:
    with streams(link, 4, ENDLESS):
        began = time.monotonic()
        with link.answers("delay", "20ms", "loss", "40%"):
            node.wait_for("streaming", Cause.NETWORK, began)
            never_the_batch(node, began)


def test_a_link_that_is_down(node: Node, link: Link, features: Features) -> None:
    with streams(link, 2, ENDLESS):
        began = time.monotonic()
        with link.answers("loss", "100%"):
            node.wait_for("streaming", Cause.NETWORK, began)
            last_until(began + TROUBLE_S)
        wait_until(lambda: late(node, began), "a late chunk", PATIENCE_S)
    wait_until(lambda: slow(node, began) != {}, "the end of a stream that was late", PATIENCE_S)
    never_the_batch(node, began)
    # kernels that do not trace writes show no more than that segments were sent again
    unsure = set() if "sock_send_length" in features.tracepoints else {Cause.UNKNOWN}
    assert set(slow(node, began)) <= {Cause.NETWORK} | unsure


def test_a_client_that_does_not_read(node: Node, link: Link) -> None:
    began = time.monotonic()
    with link.answers("delay", "20ms"), link.connect(receive_buffer=4_096) as client:
        client.write(post(ENDLESS))
        node.wait_for("streaming", Cause.SLOW_READER, began)
        last_until(began + TROUBLE_S)
        # all that comes: of a window that opens a little the server would learn by its next probe
        wait_until(
            lambda: client.read(10 * len(CHUNK)) != b"" and late(node, began),
            "a late chunk",
            PATIENCE_S,
        )
    wait_until(lambda: slow(node, began) != {}, "the end of a stream that was late", PATIENCE_S)
    assert set(slow(node, began)) == {Cause.SLOW_READER}
    never_the_batch(node, began)


def test_an_engine_that_is_stopped(node: Node, link: Link) -> None:
    with streams(link, 1, ENDLESS):
        began = time.monotonic()
        os.kill(link.server.pid, signal.SIGSTOP)
        try:
            node.wait_for("streaming", Cause.ENGINE_STOPPED, began)
        finally:
            os.kill(link.server.pid, signal.SIGCONT)


def test_memory_that_is_short(node: Node, link: Link) -> None:
    large = [send(chunk(b"x" * 300), times=1_000), pause(0.05)]
    high = node.streaming / "memory.high"
    with hog(node.streaming), streams(link, 1, [send(CHUNKED_HEAD), *large * 300]):
        began = time.monotonic()
        high.write_text(str(HOG_BYTES // 2))
        try:
            node.wait_for("streaming", Cause.MEMORY, began)
        finally:
            high.write_text("max")


def test_neighbours_that_take_the_cpu(node: Node, burn: Burn) -> None:
    began = time.monotonic()
    burn(node.computing)
    burn(node.neighbour)
    node.wait_for("computing", Cause.NEIGHBOUR_CPU, began)
    # also on kernels where no stream is seen
    assert MEANING[Cause.NEIGHBOUR_CPU] in node.explain("computing", began)["verdict"]


def test_its_own_quota(node: Node, burn: Burn) -> None:
    began = time.monotonic()
    (node.computing / "cpu.max").write_text("20000 100000")
    try:
        burn(node.computing)
        node.wait_for("computing", Cause.OWN_QUOTA, began)
    finally:
        (node.computing / "cpu.max").write_text("max")
