"""The agent's kernel side, started and stopped again and again on pins of its own."""

from dataclasses import dataclass
from pathlib import Path

from bpf.features import Features
from bpf.layout import Counters
from bpf.libbpf import Libbpf
from bpf.loader import OBJECT_DIR, Plan, Programs, load
from bpf.readers import CounterReader
from bpf.targets import TargetTable
from tests.kernel.bpf.scheduling import cpu_engine, worked
from tests.kernel.conftest import TwinGroup

MAX_TARGETS = 4


@dataclass(frozen=True, slots=True)
class Agent:
    """Starts the agent's kernel side again and again, on pins of its own."""

    lib: Libbpf
    features: Features
    pins: Path
    running: list[Programs]
    pinning: bool = True

    def start(self, objects: Path = OBJECT_DIR, max_targets: int = MAX_TARGETS) -> Programs:
        plan = Plan(self.features, max_targets, self.pins if self.pinning else None)
        programs = load(self.lib, plan, objects)
        self.running.append(programs)
        return programs

    def stop(self) -> None:
        """As a stopped agent does: let go of every descriptor."""
        for programs in self.running:
            programs.close()
        self.running.clear()


def kernel_ids(fds: dict[str, int]) -> dict[str, int]:
    """What the kernel numbers these by: it says so of every BPF descriptor."""
    found = {}
    for name, fd in fds.items():
        for line in Path(f"/proc/self/fdinfo/{fd}").read_text().splitlines():
            key, _, value = line.partition(":")
            if key in {"map_id", "prog_id"}:
                found[name] = int(value)
    return found


def pinned(pins: Path) -> set[str]:
    return {str(path.relative_to(pins)) for path in pins.rglob("*") if not path.is_dir()}


def watch(programs: Programs, group: TwinGroup) -> int:
    table = TargetTable(programs)
    target = cpu_engine(group)
    assert table.apply([target]) == []
    return table.rows[target.name]


def counted(programs: Programs, row: int) -> Counters:
    maps = programs.maps
    reader = CounterReader(
        maps["counters"], maps["health"], programs.plan.max_targets, programs.cpus
    )
    try:
        return reader.counters(row)
    finally:
        reader.close()


def assert_counts(programs: Programs, row: int, group: TwinGroup) -> None:
    """That these programs see the group's tasks now."""
    before = counted(programs, row).waits
    worked(group, "wake", "20")
    assert counted(programs, row).waits >= before + 10
