"""The controller's loop over real cgroup files, by a clock of the test's own, and what it tells."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from bpf.readers import CounterReader
from controller.actuator import Actuator
from controller.limits.cgroup import Group, Hierarchies
from controller.limits.holds import Held
from controller.limits.limiter import Limiter
from controller.limits.undo import Foreign
from controller.loop import Loop
from controller.policy_model import Policy
from controller.wire import Message, NeighbourTarget, targets_message
from tests.unit.controller.rig import AgentEnd, Kernel

MIB: Final = 1 << 20
TICK_NS: Final = 20_000_000

SETTERS: Final[Mapping[str, Callable[[Limiter, Group], Held | Foreign]]] = {
    "weight": lambda limiter, group: limiter.set_weight(group, 10, "test"),
    "quota": lambda limiter, group: limiter.set_quota(group, 0.5, "test"),
    "memory": lambda limiter, group: limiter.set_memory_high(group, MIB, "test"),
    "disk": lambda limiter, group: limiter.set_io_weight(group, 10, "test"),
}

THEIRS: Final = {
    "cpu.weight": "55",
    "cpu.shares": "555",
    "cpu.max": "70000 100000",
    "cpu.cfs_quota_us": "70000",
    "memory.high": "2097152",
    "io.weight": "default 55",
    "io.bfq.weight": "default 55",
    "blkio.bfq.weight": "55",
    "blkio.weight": "55",
}
"""What another controller writes to each file."""


class Turning:
    """A loop whose one neighbour is `group`, and the limiter it looks after."""

    def __init__(
        self,
        hierarchies: Hierarchies,
        group: Group,
        undo: Path,
        neighbour: NeighbourTarget | None = None,
    ) -> None:
        """`neighbour` is the group as discovery has it; without one, a neighbour of no class."""
        self.group = group
        self.now_ns = 1_000_000_000_000
        self.agent = AgentEnd()
        self.limiter = Limiter(undo, hierarchies=hierarchies)
        self._kernel = Kernel(4)
        self._reader = CounterReader(self._kernel.counters_fd, self._kernel.health_fd, 4, 1)
        actuator = Actuator(self.agent.theirs, self.limiter, hierarchies, self._clock)
        self.hands = actuator.neighbours
        policy, channel = Policy(mode="control"), self.agent.theirs
        self.loop = Loop(policy, channel, self._reader, actuator, 2, self._clock)
        its = neighbour or NeighbourTarget("n", 2, group.path, limit=True, min_cores=0.1)
        self.loop.take(dict(targets_message([], [its])))

    def _clock(self) -> int:
        return self.now_ns

    def turn(self, seconds: float) -> None:
        """Tick for so long, without waiting."""
        ends_ns = self.now_ns + int(seconds * 1e9)
        while self.now_ns < ends_ns:
            self.now_ns += TICK_NS
            self.loop.tick(self.now_ns)
            self.agent.listen()

    def told(self, kind: str, file: Path) -> list[Message]:
        """The events of a kind about a file, so far."""
        return self.agent.of("event", kind=kind, subject=str(file))

    def close(self) -> None:
        self.loop.stop()
        self.limiter.close()
        self.agent.close()
        self.agent.theirs.close()
        self._reader.close()
        self._kernel.close()


@contextmanager
def turning(
    hierarchies: Hierarchies, group: Group, undo: Path, neighbour: NeighbourTarget | None = None
) -> Iterator[Turning]:
    made = Turning(hierarchies, group, undo, neighbour)
    try:
        yield made
    finally:
        made.close()


def yields_to_a_value(loop: Turning, kind: str) -> Path:
    """Another controller writes a value of its own; the file, which is to stay his."""
    held = SETTERS[kind](loop.limiter, loop.group)
    assert isinstance(held, Held)
    loop.turn(1)
    assert loop.limiter.held() == (held,)
    before = len(loop.told("foreign_write", held.file))
    held.file.write_text(THEIRS[held.file.name])
    theirs = held.file.read_text()
    loop.turn(1)
    (event,) = loop.told("foreign_write", held.file)[before:]
    assert event["detail"]["found"] in theirs
    assert loop.limiter.held() == ()
    assert isinstance(SETTERS[kind](loop.limiter, loop.group), Foreign)
    loop.turn(10)
    assert held.file.read_text() == theirs
    return held.file


def yields_to_the_first_value(loop: Turning, kind: str, most: int) -> Path:
    """Another controller writes what was there before, `most` times; the file is his then."""
    file, first = Path(), ""
    for turn in range(most):
        held = SETTERS[kind](loop.limiter, loop.group)
        assert isinstance(held, Held)
        file, first = held.file, held.original
        file.write_text(first)
        loop.turn(1)
        assert len(loop.told("limit_lapsed", file)) == min(turn + 1, most - 1)
    (event,) = loop.told("foreign_write", file)
    assert event["detail"]["found"] == first
    assert isinstance(SETTERS[kind](loop.limiter, loop.group), Foreign)
    assert loop.limiter.held() == ()
    return file
