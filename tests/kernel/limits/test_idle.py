"""A neighbour that is made idle, by the hands of the loop, and gets its weight back."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from controller.actions import ReleaseLimit, SetWeight
from controller.limits import cgroup, cpu
from controller.limits.cgroup import Group, Hierarchies
from controller.neighbour_limits import Hold
from controller.wire import NeighbourTarget, targets_message

from .conftest import IDLING_WEIGHT, MakeGroup
from .turning import Turning, turning

pytestmark = pytest.mark.kernel

MAKE_IDLE = SetWeight(cpu.IDLE_WEIGHT, None, "n")


@pytest.fixture
def target(idling: Group) -> NeighbourTarget:
    return NeighbourTarget("n", 2, idling.path, limit=True, min_cores=0.1)


@pytest.fixture
def loop(
    hierarchies: Hierarchies, idling: Group, target: NeighbourTarget, tmp_path: Path
) -> Iterator[Turning]:
    """A loop that has made its neighbour idle."""
    with turning(hierarchies, idling, tmp_path / "undo.json", target) as made:
        made.hands.hold = Hold(weights={"n": cpu.IDLE_WEIGHT})
        assert made.hands.do(MAKE_IDLE, "test") is None
        assert is_idle(idling)
        yield made
    assert cpu.read_weight(idling) == IDLING_WEIGHT


def is_idle(group: Group) -> bool:
    return cgroup.read(group.directory / "cpu.idle") == "1"


def test_it_is_told_and_stays_so_while_the_loop_turns(loop: Turning) -> None:
    loop.turn(3)
    status = loop.hands.status("n")
    assert (status["idle"], status["weight"]) == (True, None)
    assert loop.agent.of("event") == []
    assert is_idle(loop.group)


def test_it_gets_its_weight_back_when_it_is_let_go_of(loop: Turning) -> None:
    assert loop.hands.do(ReleaseLimit("n", "cpu_weight", cpu.IDLE_WEIGHT), "test") is None
    assert cpu.read_weight(loop.group) == IDLING_WEIGHT
    assert not loop.hands.status("n")["idle"]


def test_it_gets_its_weight_back_when_its_class_does_not_allow_it_any_more(
    loop: Turning, target: NeighbourTarget
) -> None:
    loop.loop.take(dict(targets_message([], [replace(target, idle=False)])))
    assert cpu.read_weight(loop.group) == IDLING_WEIGHT
    assert loop.hands.hold.idle == []


def test_it_gets_its_weight_back_when_there_is_no_engine_it_could_give_way_to(
    loop: Turning, target: NeighbourTarget
) -> None:
    loop.loop.take(dict(targets_message([], [target])))
    assert cpu.read_weight(loop.group) == IDLING_WEIGHT
    assert loop.hands.hold.idle == []


def test_it_gets_its_weight_back_when_it_is_no_neighbour_any_more(loop: Turning) -> None:
    loop.loop.take(dict(targets_message([], [])))
    assert cpu.read_weight(loop.group) == IDLING_WEIGHT


def test_who_wakes_it_has_it_and_that_is_told(loop: Turning) -> None:
    cpu.write_weight(loop.group, 77)
    loop.turn(1)
    (event,) = loop.agent.of("event", kind="foreign_write")
    assert event["detail"]["found"] in {"77", str(cpu.shares_of(77))}
    assert loop.hands.hold.idle == []
    assert loop.hands.do(MAKE_IDLE, "test") is not None
    assert cpu.read_weight(loop.group) == 77
    cpu.write_weight(loop.group, IDLING_WEIGHT)


def test_one_that_cannot_be_made_idle_is_not_taken_for_idle(loop: Turning) -> None:
    cpu.write_weight(loop.group, 77)
    loop.hands.hold = Hold(weights={"n": cpu.IDLE_WEIGHT})
    assert loop.hands.do(MAKE_IDLE, "test") is not None
    assert loop.hands.hold.idle == []
    cpu.write_weight(loop.group, IDLING_WEIGHT)


@pytest.mark.parametrize("engine", ["engine", "engine/worker"])
@pytest.mark.parametrize(("neighbour", "gives_way"), [("beside", True), ("slice/below", False)])
def test_only_one_that_would_give_way_to_an_engine_may_be_made_idle(
    loop: Turning, make_group: MakeGroup, engine: str, neighbour: str, gives_way: bool
) -> None:
    names = ("engine", "engine/worker", "beside", "slice", "slice/below")
    made = {name: make_group(name) for name in names}
    loop.hands.take_on({"n": made[neighbour]}, [made[engine]], freezable=False)
    assert ("n" in loop.hands.may_be_idle) == gives_way
