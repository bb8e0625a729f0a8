"""Programs loaded once a module, without pins: they go with this process."""

import json
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from uuid import uuid4

import pytest

from bpf.features import Features
from bpf.layout import TargetKind
from bpf.libbpf import Libbpf
from bpf.loader import OBJECT_DIR, Plan, load, unload
from bpf.targets import Target
from tests.kernel.bpf.agents import Agent
from tests.kernel.bpf.child import Child, child
from tests.kernel.bpf.network import Network
from tests.kernel.bpf.watched import Look, Watched, watching
from tests.kernel.conftest import MakeGroup, TwinGroup

MAX_TARGETS = 8


@pytest.fixture(scope="module")
def watched(lib: Libbpf, features: Features) -> Iterator[Watched]:
    """Loaded programs that watch nothing yet."""
    with watching(load(lib, Plan(features, MAX_TARGETS, None))) as made:
        yield made


@dataclass(frozen=True, slots=True)
class Engine:
    """A scripted server in a cgroup of its own, followed as a target."""

    watched: Watched
    group: TwinGroup
    row: int
    port: int
    other_port: int
    ports6: tuple[int, ...]

    def watch(
        self,
        *more_ports: int,
        ttft_slo_ns: int = 0,
        gap_slo_ns: int = 0,
        first_chunk_deadline_ns: int = 0,
    ) -> None:
        """Follow the engine's own ports, and these."""
        target = engine_target("engine", self.group, self.port, *self.ports6, *more_ports)
        target = replace(
            target,
            ttft_slo_ns=ttft_slo_ns,
            gap_slo_ns=gap_slo_ns,
            first_chunk_deadline_ns=first_chunk_deadline_ns,
        )
        assert self.watched.watch(target) == self.row

    def look(self) -> Look:
        """What happens to its streams from now on."""
        return self.watched.look(self.row)


@contextmanager
def server(
    group: TwinGroup, *addresses: str, wrapper: tuple[str, ...] = ()
) -> Iterator[tuple[Child, list[int]]]:
    """A scripted server, and the ports it listens on."""
    with child("script_server.py", *addresses, group=group, wrapper=wrapper) as process:
        process.tell()
        yield process, json.loads(process.answer())


def engine_target(name: str, group: TwinGroup, *ports: int) -> Target:
    """An engine that is known by its cgroups and ports."""
    return Target(
        name,
        TargetKind.ENGINE,
        cpu_cgroups=frozenset([group.cpu_id]),
        stream_cgroups=frozenset([group.stream_id]),
        ports=frozenset(ports),
    )


@pytest.fixture(scope="module")
def engine(watched: Watched, features: Features, make_cgroup: MakeGroup) -> Iterator[Engine]:
    """A followed server with one port that is the target's and one that is not."""
    if not features.can_stream:
        pytest.skip(f"this kernel can't follow streams: {features}")
    group = make_cgroup("engine")
    addresses = ["127.0.0.1", "127.0.0.1", *(["::1", "::"] if has_ipv6() else [])]
    with server(group, *addresses) as (_, (port, other_port, *ports6)):
        row = watched.watch(engine_target("engine", group))
        engine = Engine(watched, group, row, port, other_port, tuple(ports6))
        engine.watch()
        watched.programs.attach(group.v2, group.stream_id)
        yield engine
        watched.programs.detach(group.stream_id)


@dataclass(frozen=True, slots=True)
class Flow:
    """A followed server alone in its network namespace, and what was seen of it since."""

    network: Network
    process: Child
    look: Look
    port: int


@pytest.fixture
def flow(
    watched: Watched, features: Features, make_cgroup: MakeGroup, request: pytest.FixtureRequest
) -> Iterator[Flow]:
    """Such a server; a parameter is the address it listens on."""
    if not features.can_stream:
        pytest.skip(f"this kernel can't follow streams: {features}")
    group = make_cgroup("engine")
    address = getattr(request, "param", "127.0.0.1")
    # the server makes its socket when it is told to go on, once its loopback is up
    with server(group, address, wrapper=("unshare", "--net")) as (process, (port,)):
        row = watched.watch(engine_target(group.v2.name, group, port))
        watched.programs.attach(group.v2, group.stream_id)
        yield Flow(Network(process.pid), process, watched.look(row), port)
        watched.programs.detach(group.stream_id)


def has_ipv6() -> bool:
    """Whether ::1 can be bound."""
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


@pytest.fixture
def agent(lib: Libbpf, features: Features, bpffs: Path) -> Iterator[Agent]:
    agent = Agent(lib, features, bpffs / uuid4().hex, [])
    yield agent
    agent.stop()
    unload(agent.pins)


@pytest.fixture
def other_objects(tmp_path: Path) -> Path:
    """The objects of another version: the same programs in other files."""
    copy = tmp_path / "objects"
    shutil.copytree(OBJECT_DIR, copy)
    with (copy / "sched.bpf.o").open("ab") as file:
        file.write(b"another build")
    return copy
