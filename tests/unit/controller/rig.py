"""What the loop's hands reach for, made of plain files, and the agent's end of its channel."""

import mmap
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bpf.layout import COUNTERS, HEALTH, Counters
from controller.actuator import Actuator
from controller.limits import cpu
from controller.limits.cgroup import Group, Hierarchies, Mount, cpu_group
from controller.limits.limiter import Limiter
from controller.wire import Channel, Message

from .limits.conftest import make_group
from .peers import PATIENCE_S

Wanted = Callable[[Message], bool]


class Cgroups:
    """A v2 tree with a limiter for it; a group is made when it is first named."""

    def __init__(self, directory: Path) -> None:
        self.root = directory / "cgroup"
        self.root.mkdir()
        (self.root / "cgroup.controllers").write_text("cpu\n")
        (self.root / "cgroup.subtree_control").write_text("cpu\n")
        self.hierarchies = Hierarchies(v2=Mount(self.root), v1_cpu=None)
        self.limiter = Limiter(directory / "undo.json", roots=[self.root])

    def make(self, *names: str) -> None:
        for name in names:
            make_group(self.root, name, 2)

    def group(self, name: str) -> Group:
        return cpu_group(self.hierarchies, f"/{name}")

    def weight(self, name: str) -> int:
        return cpu.read_weight(self.group(name))

    def quota(self, name: str) -> float | None:
        return cpu.read_quota(self.group(name))

    def write(self, name: str, file: str, text: str) -> None:
        (self.root / name / file).write_text(text + "\n")

    def untouched(self) -> bool:
        groups = [each for each in self.root.iterdir() if each.is_dir()]
        return all(
            (each / "cpu.weight").read_text().strip() == "100"
            and (each / "cpu.max").read_text().strip() == "max 100000"
            for each in groups
        )


class AgentEnd:
    """The agent's end of the channel: sends, and remembers all it was told."""

    def __init__(self, ours: socket.socket | None = None) -> None:
        """The other end is `theirs`, but for `ours` of a controller in a process of its own."""
        self._theirs: Channel | None = None
        if ours is None:
            ours, theirs = socket.socketpair()
            self._theirs = Channel(theirs)
        self.channel = Channel(ours)
        self.told: list[Message] = []
        self._seen = 0

    @property
    def theirs(self) -> Channel:
        assert self._theirs is not None
        return self._theirs

    def listen(self) -> list[Message]:
        self.told += self.channel.receive()
        return self.told

    def of(self, kind: str, /, **fields: Any) -> list[Message]:
        """All messages of a type so far, with these fields."""
        return [
            message
            for message in self.listen()
            if message["type"] == kind and fields.items() <= message.items()
        ]

    def next(
        self,
        kind: str,
        wanted: Wanted = lambda _: True,
        meanwhile: Callable[[], None] = lambda: None,
    ) -> Message:
        """Wait for the next such message that was not returned before, doing `meanwhile`."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            for at, message in enumerate(self.listen()):
                if at >= self._seen and message["type"] == kind and wanted(message):
                    self._seen = at + 1
                    return message
            assert time.monotonic() < deadline, f"no such {kind}; told {self.told[-5:]}"
            meanwhile()
            time.sleep(0.001)

    def status(
        self, wanted: Wanted = lambda _: True, meanwhile: Callable[[], None] = lambda: None
    ) -> Message:
        """Wait for a status that is sent from now on, doing `meanwhile`."""
        self._seen = len(self.listen())
        return self.next("status", wanted, meanwhile)

    def close(self) -> None:
        self.channel.close()


class Kernel:
    """The counters map, as the kernel would fill it: one CPU."""

    def __init__(self, rows: int) -> None:
        self.counters_fd = self._map_fd("counters", rows * COUNTERS.size)
        self.health_fd = self._map_fd("health", HEALTH.size)
        self._map = mmap.mmap(self.counters_fd, os.fstat(self.counters_fd).st_size)
        self._rows = [Counters()] * rows

    @staticmethod
    def _map_fd(name: str, size: int) -> int:
        fd = os.memfd_create(f"test-{name}")
        os.truncate(fd, -(-size // mmap.PAGESIZE) * mmap.PAGESIZE)
        return fd

    def count(self, row: int, **growth: int) -> None:
        """Let the counters of a target grow."""
        old = self._rows[row]
        new = old._replace(**{name: getattr(old, name) + by for name, by in growth.items()})
        self._rows[row] = new
        COUNTERS.pack_into(self._map, row * COUNTERS.size, *new)

    def close(self) -> None:
        self._map.close()
        os.close(self.counters_fd)
        os.close(self.health_fd)


def actuator_of(
    agent: AgentEnd, cgroups: Cgroups, clock: Callable[[], int] = time.monotonic_ns
) -> Actuator:
    return Actuator(agent.theirs, cgroups.limiter, cgroups.hierarchies, clock)
