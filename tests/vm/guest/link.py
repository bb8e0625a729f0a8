"""A server in a network namespace of its own, behind a link that netem makes bad."""

import json
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.kernel.bpf.child import Child, child
from tests.kernel.bpf.network import Network
from tests.kernel.bpf.wire import PATIENCE_S, Client
from tests.kernel.conftest import TwinGroup

SERVER: Final = "10.77.0.1"
CLIENT: Final = "10.77.0.2"
THERE: Final = "sits-there"
HERE: Final = "sits-here"


@dataclass(frozen=True, slots=True)
class Link:
    """A veth pair: one end is the scripted server's, the other is in the tests' namespace."""

    server: Child
    network: Network
    port: int

    def connect(self, receive_buffer: int | None = None) -> Client:
        """A connection over the link."""
        return Client.to(self.port, SERVER, receive_buffer)

    def begin(self) -> Client:
        """A connection that is made while one does other things."""
        made = socket.socket()
        made.setblocking(False)
        with suppress(BlockingIOError):
            made.connect((SERVER, self.port))
        made.settimeout(PATIENCE_S)
        return Client(made)

    @contextmanager
    def answers(self, *how: str) -> Iterator[None]:
        """Meanwhile netem does this (see tc-netem(8)) to what the server sends."""
        run = ("nsenter", "-t", str(self.server.pid), "-n", "tc", "qdisc")
        with _netem(*run, device=THERE, how=how):
            yield

    @contextmanager
    def acknowledgements(self, *how: str) -> Iterator[None]:
        """Meanwhile netem does this to what the clients send."""
        with _netem("tc", "qdisc", device=HERE, how=how):
            yield


@contextmanager
def _netem(*tc: str, device: str, how: tuple[str, ...]) -> Iterator[None]:
    subprocess.run([*tc, "add", "dev", device, "root", "netem", *how], check=True)
    try:
        yield
    finally:
        subprocess.run([*tc, "del", "dev", device, "root"], check=True)


@contextmanager
def linked(cgroup: Path, cpu: int | None = None) -> Iterator[Link]:
    """A scripted server in `cgroup` and on `cpu`, alone in its network namespace, and the link."""
    subprocess.run(["modprobe", "sch_netem"], check=True)
    group = TwinGroup(cgroup, cgroup)
    # what it allocates in one piece it gets from the kernel each time, as with large arrays
    wrapper = ("unshare", "--net", "env", "MALLOC_MMAP_THRESHOLD_=65536")
    with child("script_server.py", SERVER, group=group, cpu=cpu, wrapper=wrapper) as server:
        inside = ("nsenter", "-t", str(server.pid), "-n")
        ends = (
            (THERE, SERVER, "02:00:00:00:00:01", inside),
            (HERE, CLIENT, "02:00:00:00:00:02", ()),
        )
        ip("link", "add", HERE, "type", "veth", "peer", "name", THERE, "netns", str(server.pid))
        try:
            for (device, address, mac, where), (_, other, to, _) in (ends, ends[::-1]):
                ip("link", "set", device, "address", mac, "up", where=where)
                ip("address", "add", f"{address}/24", "dev", device, where=where)
                # asking for it would be lost too
                ip("neighbour", "add", other, "lladdr", to, "dev", device, where=where)
            server.tell()
            (port,) = json.loads(server.answer())
            yield Link(server, Network(server.pid), port)
        finally:
            ip("link", "del", HERE)


def ip(*command: str, where: tuple[str, ...] = ()) -> None:
    """Run ip(8), by a command that executes another if one is given."""
    subprocess.run([*where, "ip", *command], check=True)
