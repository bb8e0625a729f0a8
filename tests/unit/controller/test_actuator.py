import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from controller.actions import (
    Action,
    Proposal,
    ReleaseKnobs,
    ReleaseLimit,
    SetKnobs,
    SetQuota,
    SetWeight,
)
from controller.actuator import Actuator
from controller.attribution import Cause
from controller.cpu_limits import CpuMemory
from controller.limits import cpu
from controller.limits.limiter import Limiter
from controller.limits.undo import run_undo
from controller.neighbour_limits import NeighbourView
from controller.policy_model import Engine, Match, Mode
from controller.watch import EngineWatch

from .rig import AgentEnd, Cgroups, actuator_of

Changes = list[tuple[str, str, str, object, object]]


class Lab:
    """An actuator over plain files, with an engine and two neighbours."""

    def __init__(self, directory: Path) -> None:
        self.agent = AgentEnd()
        self.cgroups = Cgroups(directory)
        self.cgroups.make("engine", "other", "n1", "n2")
        self.actuator = actuator_of(self.agent, self.cgroups)
        self.engine = self.watch("engine")
        self.other = self.watch("other")
        self.engines = {"engine": self.engine, "other": self.other}
        self.neighbours("n1", "n2")

    def watch(self, name: str) -> EngineWatch:
        group, detail, weight = self.actuator.find_group(f"/{name}")
        assert (detail, weight) == ("", 100)
        watch = EngineWatch(Engine(name, Match("port", 1)), 1, group, 500)
        watch.base_weight = weight
        return watch

    def neighbours(self, *names: str) -> None:
        self.actuator.set_neighbours({name: f"/{name}" for name in names}, self.engines)

    def do(self, *actions: Action, mode: Mode = "control", edge_ns: int | None = None) -> None:
        """Carry out a decision for the engine, whose law remembers it as in force."""
        for action in actions:
            cpu_memory = self.engine.cpu
            match action:
                case SetWeight(weight=weight):
                    self.engine.cpu = replace(cpu_memory, weight=weight)
                case SetQuota(target=target, cores=cores):
                    hands = self.actuator.neighbours
                    quotas = {**hands.hold.quotas, target: cores}
                    hands.hold = replace(hands.hold, quotas=quotas)
        self.actuator.carry_out(
            self.engine, mode, Cause.NEIGHBOUR_CPU, Proposal(actions, "why"), edge_ns
        )

    def ack(self) -> tuple[str, str]:
        """The one answer to the last decision."""
        tag = self.agent.of("decision")[-1]["tag"]
        (message,) = self.agent.of("ack", tag=tag)
        return message["ack"], message["detail"]

    def events(self) -> list[tuple[str, str]]:
        return [(each["kind"], each["subject"]) for each in self.agent.of("event")]

    def quota_of(self, name: str) -> float | None:
        quota: float | None = self.actuator.neighbours.status(name)["quota_cores"]
        return quota

    def limitable(self) -> list[str]:
        views = tuple(NeighbourView(name, 1.0, 0.1) for name in ("n1", "n2"))
        return [each.name for each in self.actuator.neighbours.limitable(views)]

    def close(self) -> None:
        self.agent.close()
        self.agent.theirs.close()


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    made = Lab(tmp_path)
    yield made
    made.close()


ACTIONS: dict[str, tuple[Action, Changes]] = {
    "knobs": (
        SetKnobs({"a": 5, "b": 7}, {"a": 9, "b": 7}),
        [("knob", "engine", "a", 9, 5)],
    ),
    "released knobs": (ReleaseKnobs({"a": 5}), [("knob", "engine", "a", 5, "start")]),
    "weight": (SetWeight(1000, 100), [("limit", "engine", "cpu_weight", 100, 1000)]),
    "idle": (SetWeight(0, None, "n1"), [("limit", "n1", "cpu_weight", None, "idle")]),
    "released idle": (
        ReleaseLimit("n1", "cpu_weight", 0),
        [("limit", "n1", "cpu_weight", "idle", "original")],
    ),
    "quota": (SetQuota("n1", 0.5, None), [("limit", "n1", "cpu_quota", None, 0.5)]),
    "released weight": (
        ReleaseLimit("", "cpu_weight", 1000),
        [("limit", "engine", "cpu_weight", 1000, "original")],
    ),
    "released quota": (
        ReleaseLimit("n1", "cpu_quota", 0.5),
        [("limit", "n1", "cpu_quota", 0.5, "original")],
    ),
}


@pytest.mark.parametrize("kind", ACTIONS)
def test_a_decision_is_told_with_what_it_changes(lab: Lab, kind: str) -> None:
    action, changes = ACTIONS[kind]
    lab.do(action, mode="shadow")
    (decision,) = lab.agent.of("decision")
    told = [(c["kind"], c["target"], c["knob"], c["from"], c["to"]) for c in decision["action"]]
    assert told == changes
    assert decision["engine"] == "engine"
    assert (decision["cause"], decision["reason"]) == ("neighbour_cpu", "why")
    assert (decision["mode"], decision["ack"]) == ("shadow", "shadow")


def test_where_no_cgroup_can_be_idle_nobody_may_be_made_so(lab: Lab) -> None:
    assert set(lab.actuator.neighbours.may_be_idle) == set()


def test_in_shadow_mode_nothing_is_done(lab: Lab) -> None:
    for action, _ in ACTIONS.values():
        lab.do(action, mode="shadow")
    assert len(lab.agent.of("decision")) == len(ACTIONS)
    assert lab.agent.of("ack") == []
    assert lab.cgroups.untouched()


def test_a_decision_is_told_before_its_answer(lab: Lab) -> None:
    lab.do(SetWeight(1000, 100))
    kinds = [message["type"] for message in lab.agent.listen()]
    assert kinds == ["decision", "ack"]
    assert lab.agent.of("decision")[0]["ack"] == "pending"


def test_a_weight_is_set_and_given_back(lab: Lab) -> None:
    lab.do(SetWeight(1000, 100))
    assert lab.ack() == ("applied", "")
    assert lab.cgroups.weight("engine") == 1000
    lab.do(ReleaseLimit("", "cpu_weight", 1000))
    assert lab.ack() == ("applied", "")
    assert lab.cgroups.untouched()


def test_quotas_are_set_with_one_answer_and_given_back(lab: Lab) -> None:
    lab.do(SetQuota("n1", 0.5, None), SetQuota("n2", 0.25, None))
    assert lab.ack() == ("applied", "")
    assert [lab.cgroups.quota(name) for name in ("n1", "n2")] == [0.5, 0.25]
    assert [lab.quota_of(name) for name in ("n1", "n2")] == [0.5, 0.25]
    lab.do(ReleaseLimit("n1", "cpu_quota", 0.5), SetQuota("n2", 0.3, 0.25))
    assert lab.ack() == ("applied", "")
    assert [lab.cgroups.quota(name) for name in ("n1", "n2")] == [None, 0.3]
    assert lab.quota_of("n1") is None


def test_one_refusal_makes_the_whole_decision_refused_and_says_why(lab: Lab) -> None:
    (lab.cgroups.root / "n1" / "cpu.max").unlink()
    lab.do(SetQuota("n1", 0.5, None), SetQuota("n2", 0.25, None))
    ack, detail = lab.ack()
    assert ack == "refused"
    assert "n1/cpu.max" in detail
    assert lab.cgroups.quota("n2") == 0.25
    # the one that refused is left in peace for a while
    assert lab.limitable() == ["n2"]
    assert lab.events() == [("limit_refused", "/n1")]


def test_a_weight_that_is_refused_is_not_tried_again_but_quotas_stay_known(lab: Lab) -> None:
    lab.do(SetQuota("n1", 0.5, None))
    (lab.cgroups.root / "engine" / "cpu.weight").unlink()
    lab.do(SetWeight(1000, 100))
    assert lab.ack()[0] == "refused"
    assert lab.engine.base_weight is None
    assert lab.engine.cpu.weight is None
    assert lab.actuator.neighbours.hold.quotas == {"n1": 0.5}


def test_what_somebody_else_wrote_is_left_to_them(lab: Lab) -> None:
    lab.do(SetWeight(1000, 100))
    lab.do(SetQuota("n1", 0.5, None), SetQuota("n2", 0.5, None))
    lab.cgroups.write("engine", "cpu.weight", "77")
    lab.cgroups.write("n1", "cpu.max", "7000 100000")
    lab.actuator.check_limits(lab.engines)
    files = [str(lab.cgroups.root / each) for each in ("engine/cpu.weight", "n1/cpu.max")]
    assert lab.events() == [("foreign_write", file) for file in files]
    assert lab.engine.cpu.weight is None
    assert lab.actuator.neighbours.hold.quotas == {"n2": 0.5}
    assert lab.quota_of("n1") is None
    assert lab.limitable() == ["n2"]
    lab.do(SetWeight(1000, 100))
    assert lab.ack() == ("refused", f"somebody else wrote '{files[0]}'")
    assert lab.cgroups.weight("engine") == 77
    assert lab.cgroups.quota("n1") == 0.07


def test_after_a_reset_what_somebody_else_wrote_may_be_limited_again(lab: Lab) -> None:
    lab.do(SetQuota("n1", 0.5, None))
    lab.cgroups.write("n1", "cpu.max", "7000 100000")
    lab.actuator.check_limits(lab.engines)
    lab.actuator.reset()
    assert lab.limitable() == ["n1", "n2"]
    lab.do(SetQuota("n1", 0.05, None))
    assert lab.ack() == ("applied", "")
    lab.actuator.give_back_limits("test")
    assert lab.cgroups.quota("n1") == 0.07


def test_a_limit_undone_from_outside_is_not_thought_to_hold(lab: Lab, tmp_path: Path) -> None:
    lab.do(SetWeight(1000, 100))
    lab.do(SetQuota("n1", 0.5, None))
    run_undo(tmp_path / "undo.json", [lab.cgroups.root])
    lab.actuator.check_limits(lab.engines)
    assert {kind for kind, _ in lab.events()} == {"limit_lapsed"}
    assert lab.engine.cpu == CpuMemory()
    lab.do(SetWeight(1000, 100))
    assert lab.ack() == ("applied", "")


def test_a_neighbour_that_is_no_longer_one_gets_its_quota_back(lab: Lab) -> None:
    lab.do(SetQuota("n1", 0.5, None), SetQuota("n2", 0.5, None))
    lab.neighbours("n2")
    assert lab.cgroups.quota("n1") is None
    assert lab.cgroups.quota("n2") == 0.5
    assert lab.actuator.neighbours.hold.quotas == {"n2": 0.5}
    assert lab.limitable() == ["n2"]


def test_a_neighbour_that_moved_gets_its_quota_back_where_it_was(lab: Lab) -> None:
    lab.cgroups.make("elsewhere")
    lab.do(SetQuota("n1", 0.5, None))
    lab.actuator.set_neighbours({"n1": "/elsewhere"}, lab.engines)
    assert lab.cgroups.untouched()
    assert lab.actuator.neighbours.hold.quotas == {}
    lab.do(SetQuota("n1", 0.5, None))
    assert lab.cgroups.quota("elsewhere") == 0.5


def test_a_neighbour_without_a_cgroup_of_its_own_is_not_limited(lab: Lab) -> None:
    lab.actuator.set_neighbours({"n1": None, "n2": "/gone"}, lab.engines)
    assert lab.limitable() == []
    lab.do(SetQuota("n1", 0.5, None))
    assert lab.ack() == ("refused", "its cgroup is gone")


def test_what_neighbours_are_held_to_outlives_an_engine_but_not_the_last(lab: Lab) -> None:
    lab.do(SetWeight(1000, 100))
    lab.do(SetQuota("n1", 0.5, None), SetQuota("n2", 0.5, None))
    lab.actuator.drop(lab.engine, [lab.other], time.monotonic_ns())
    assert lab.cgroups.weight("engine") == 100
    assert [lab.cgroups.quota(name) for name in ("n1", "n2")] == [0.5, 0.5]
    lab.actuator.drop(lab.other, [], time.monotonic_ns())
    assert lab.cgroups.untouched()
    assert lab.actuator.neighbours.hold.quotas == {}


def test_everything_is_given_back_at_once(lab: Lab) -> None:
    lab.do(SetWeight(1000, 100))
    lab.do(SetQuota("n1", 0.5, None))
    lab.actuator.give_back_limits("the controller stops")
    assert lab.cgroups.untouched()
    assert lab.quota_of("n1") is None
    (event,) = lab.agent.of("event")
    assert event["kind"] == "undo"
    assert event["detail"] == {"reason": "the controller stops", "restored": 2}


def test_nothing_to_give_back_is_no_news(lab: Lab) -> None:
    lab.actuator.give_back_limits("the controller stops")
    assert lab.agent.of("event") == []


@pytest.mark.parametrize("action", [SetKnobs({"a": 1}, {"a": 2}), ReleaseKnobs({"a": 1})])
def test_knobs_of_an_engine_out_of_reach_are_lost(lab: Lab, action: Action) -> None:
    lab.do(action, edge_ns=5)
    assert lab.ack() == ("lost", "no connection to the engine")
    assert lab.actuator.take_reactions() == []


def test_the_time_from_an_edge_to_a_limit_is_told_once(lab: Lab) -> None:
    edge_ns = time.monotonic_ns()
    lab.do(SetWeight(1000, 100), edge_ns=edge_ns)
    (reaction_ns,) = lab.actuator.take_reactions()
    assert 0 < reaction_ns <= time.monotonic_ns() - edge_ns
    assert lab.actuator.take_reactions() == []
    lab.do(SetWeight(10_000, 1000))
    assert lab.actuator.take_reactions() == []


def test_a_group_that_shares_its_cgroup_or_is_not_there_says_so(lab: Lab) -> None:
    assert lab.actuator.find_group(None)[1].startswith("shares its cgroup")
    group, why, weight = lab.actuator.find_group("/nowhere")
    assert (group, weight) == (None, None)
    assert "no such cgroup: '/nowhere'" in why


def test_the_weight_without_us_is_not_the_one_we_set(lab: Lab) -> None:
    lab.do(SetWeight(1000, 100))
    group, _, weight = lab.actuator.find_group("/engine")
    assert group is not None
    assert cpu.read_weight(group) == 1000
    assert weight is None


def test_a_dead_guard_is_told_once(lab: Lab, tmp_path: Path) -> None:
    read_fd, write_fd = os.pipe()
    limiter = Limiter(tmp_path / "undo.json", write_fd, roots=[lab.cgroups.root])
    actuator = Actuator(lab.agent.theirs, limiter, lab.cgroups.hierarchies)
    actuator.heartbeat(10**9)
    assert os.read(read_fd, 10) == b"b"
    os.close(read_fd)
    for second in range(2, 5):
        actuator.heartbeat(second * 10**9)
    os.close(write_fd)
    assert lab.events() == [("guard_lost", "guard")]


def test_a_list_that_cannot_be_used_is_told_and_no_error(lab: Lab, tmp_path: Path) -> None:
    lab.do(SetWeight(1000, 100))
    (tmp_path / "undo.json").write_text("nonsense")
    lab.actuator.check_limits(lab.engines)
    lab.actuator.give_back_limits("test")
    told: list[dict[str, Any]] = [event["detail"] for event in lab.agent.of("event")]
    assert all("undo.json" in detail["error"] for detail in told)
    assert len(told) == 2


def test_what_is_protected_is_not_limited_and_one_event_says_why(lab: Lab) -> None:
    lab.cgroups.make("init.scope")
    lab.neighbours("init.scope", "n1")
    for _ in range(2):
        lab.do(SetQuota("init.scope", 0.5, None))
        assert lab.ack() == ("refused", "it is protected: it is systemd's own")
    assert lab.cgroups.untouched()
    assert lab.events() == [("protected", "init.scope")]
    assert lab.limitable() == ["n1"]


def test_a_neighbour_that_an_engine_runs_in_is_protected(lab: Lab) -> None:
    lab.neighbours("engine")
    lab.do(SetQuota("engine", 0.5, None))
    assert lab.ack() == ("refused", "it is protected: an engine runs in it")
    assert lab.cgroups.quota("engine") is None
