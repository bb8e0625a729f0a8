"""Memory runs short by what a file says: what the whole loop does about it, by a virtual clock."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from controller.actions import changes_of
from controller.memory_reader import MemoryReader
from controller.memory_watch import LEAST_BYTES, MemoryWatch
from controller.recording import decide_batch_of, decide_memory_of, inputs_of

from .scene import Scene, scene
from .situations import SECOND

GIB = 1 << 30
TOTAL = 100 * GIB


@dataclass(slots=True)
class Machine:
    """A machine whose memory a test fills: what the loop reads instead of /proc/meminfo."""

    scene: Scene
    meminfo: Path
    neighbour: Path
    available: int = 60 * GIB

    def say(self) -> None:
        fields = f"MemTotal: {TOTAL >> 10:20d} kB\nMemAvailable: {self.available >> 10:20d} kB\n"
        with self.meminfo.open("r+" if self.meminfo.exists() else "w") as file:
            file.write(fields)

    def take(self, seconds: float, per_s: int) -> None:
        """For so long, so many bytes a second are taken, and the neighbour has them."""
        ends_ns = self.scene.now_ns + int(seconds * SECOND)
        while self.scene.now_ns < ends_ns:
            before_ns = self.scene.now_ns
            self.scene.run(0.02)
            taken = int(per_s * (self.scene.now_ns - before_ns) / SECOND)
            self.available -= taken
            had = int((self.neighbour / "memory.current").read_text())
            (self.neighbour / "memory.current").write_text(str(max(0, had + taken)))
            self.say()

    @property
    def high(self) -> str:
        return (self.neighbour / "memory.high").read_text().strip()

    def short_events(self) -> list[str]:
        return [kind for kind in self.scene.events() if kind.startswith("memory_")]


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    with scene(tmp_path) as made:
        neighbour = made.cgroups.root / "n1"
        (neighbour / "memory.current").write_text(str(GIB))
        (neighbour / "memory.high").write_text("max\n")
        machine = Machine(made, tmp_path / "meminfo", neighbour)
        machine.say()
        watch = made.loop._engines["e"]
        watch.memory.close()
        watch.memory = MemoryWatch(None)
        watch.memory.reader = MemoryReader(None, machine.meminfo)
        yield machine


def test_a_neighbour_that_fills_the_machine_is_held_and_the_engine_takes_no_more_in(
    machine: Machine,
) -> None:
    made = machine.scene
    made.control()
    machine.take(3, 0)
    assert machine.high == "max"
    before = dict(made.engine.values)
    machine.take(9, 6 * GIB)
    assert LEAST_BYTES < int(machine.high) < 60 * GIB
    assert made.engine.values["max_running"] <= made.engine.running
    (decision, *_) = [
        each for each in made.agent.of("decision") if each["action"][0]["knob"] == "memory_high"
    ]
    assert "of the machine are left" in decision["reason"]
    memory = made.status()["memory"]
    assert memory["short"]
    assert memory["held"] == {"n1": int(machine.high)}
    # it gives back what it had
    machine.available = 60 * GIB
    machine.take(20, 0)
    assert machine.high == "max"
    assert made.engine.values["max_running"] >= min(before["max_running"], 64)
    assert machine.short_events() == ["memory_short", "memory_eased"]
    assert not made.status()["memory"]["short"]


def test_what_was_decided_comes_out_again_from_what_was_recorded(machine: Machine) -> None:
    made = machine.scene
    made.control()
    machine.take(9, 6 * GIB)
    machine.available = 60 * GIB
    machine.take(20, 0)
    recorded = {each["tag"]: inputs_of(each["inputs"]) for each in made.agent.of("inputs")}
    replayed = 0
    for decision in made.agent.of("decision"):
        inputs = recorded.get(decision["tag"])
        knobs = {change["knob"] for change in decision["action"]}
        if inputs is None or not knobs & {"memory_high", "max_running"}:
            continue
        decide = decide_memory_of if "memory_high" in knobs else decide_batch_of
        _, proposal = decide(inputs)
        assert proposal is not None
        changes = [each.as_dict() for each in changes_of(proposal, "e")]
        assert changes == decision["action"]
        assert proposal.reason == decision["reason"]
        replayed += 1
    assert replayed >= 3
