import gc
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import count, pairwise
from pathlib import Path
from typing import Any, Final

import pytest

from bpf.layout import Edge, EdgeKind
from bpf.readers import CounterReader
from controller.actions import changes_of
from controller.engines.page import EngineNow, PageWriter, Step
from controller.loop import STATUS_EVERY_NS, SWEEP_NS, Loop
from controller.pace import EDGE_SPACING_NS
from controller.policy import policy_to_json
from controller.policy_model import (
    Controller,
    Engine,
    KnobFloors,
    Limits,
    Match,
    Mode,
    Policy,
    Slo,
)
from controller.recording import decide_batch_of, decide_cpu_of, inputs_of
from controller.wire import EngineTarget, NeighbourTarget, targets_message

from .peers import PAGELESS, PATIENCE_S, START, STATE, Peer
from .rig import AgentEnd, Cgroups, Kernel, actuator_of
from .situations import MS, SECOND

ROWS: Final = 8
LEASE_MS: Final = 10_000
"""So long that no renewal comes into a test's way."""

BUDGET: Final = {"max_batched_tokens": 1433}
"""What a blind cut makes of 2048."""


class EngineSide:
    """An engine: its admin socket, its page and its row."""

    def __init__(self, directory: Path, name: str, row: int) -> None:
        self.name, self.row = name, row
        self.peer = Peer(directory / f"{name}.sock")
        self.page = PageWriter(directory / f"{name}.page")
        self.hello = replace(PAGELESS, page=str(self.page.path), instance=name)
        self.page.write(EngineNow(steps=100, running=2))
        self.steps = 100

    def greet(self) -> None:
        for call, fields in (("hello", self.hello.as_dict()), ("get", dict(STATE))):
            self.answer(call, **fields)

    def answer(self, call: str, **fields: Any) -> dict[str, Any]:
        """Wait for what the controller asks next, and do it."""
        request = self.peer.request(call)
        self.peer.answer(request, **(STATE | fields))
        return request

    def long_step(self, step_ns: int) -> None:
        self.steps += 1
        step = Step(self.steps, time.monotonic_ns(), step_ns, 500, 2, 1000)
        self.page.write(EngineNow(steps=self.steps, running=2), step)

    def close(self) -> None:
        self.peer.close()
        self.page.close()


class Edges:
    """Edges as the ring hands them on, but written by the test."""

    def __init__(self) -> None:
        self._read_fd, self._write_fd = os.pipe()
        self.take: Callable[[Edge], None] = lambda _: None

    def fileno(self) -> int:
        return self._read_fd

    def consume(self) -> int:
        rows = os.read(self._read_fd, 4096)
        for row in rows:
            self.take(Edge(time.monotonic_ns(), 1, row, EdgeKind.WAIT))
        return len(rows)

    def raise_for(self, row: int) -> None:
        os.write(self._write_fd, bytes([row]))

    def close(self) -> None:
        os.close(self._read_fd)
        os.close(self._write_fd)


class Rig:
    """The loop on a thread, and everything it touches in the test's hands."""

    def __init__(self, directory: Path, mode: Mode, tick_ms: float, ranks: bool = False) -> None:
        """With `ranks`, b is a second rank of a, and no engine of its own."""
        self.agent = AgentEnd()
        self.cgroups = Cgroups(directory)
        self.cgroups.make("a", "b", "n1", "n2")
        self.kernel = Kernel(ROWS)
        self.edges = Edges()
        self.engines = {
            name: EngineSide(directory, name, row) for name, row in (("a", 1), ("b", 2))
        }
        self._reader = CounterReader(self.kernel.counters_fd, self.kernel.health_fd, ROWS, 1)
        self._frozen_ns: int | None = None
        self._ahead_ns = 0
        self.policy = Policy(
            mode=mode,
            controller=Controller(
                scheduler_tick_interval_ms=tick_ms, fast_tick_interval_ms=1, lease_ms=LEASE_MS
            ),
            engines=tuple(
                Engine(
                    name,
                    Match("port", engine.row),
                    admin_socket=directory / "*.sock" if ranks else engine.peer.path,
                    slo=Slo(ttft_ms=1000, gap_ms=100),
                )
                for name, engine in self.engines.items()
                if name == "a" or not ranks
            ),
        )
        actuator = actuator_of(self.agent, self.cgroups, self._clock)
        self.loop = Loop(self.policy, self.agent.theirs, self._reader, actuator, 2, self._clock)
        self.edges.take = self.loop.on_edge
        self._thread = threading.Thread(target=self.loop.run, args=(self.edges,), daemon=True)

    def start(self) -> None:
        self._thread.start()

    def freeze(self) -> None:
        """The loop's time stands still from now on."""
        self._frozen_ns = self._clock()

    def advance(self, by_ns: int) -> None:
        if self._frozen_ns is None:
            self._ahead_ns += by_ns
        else:
            self._frozen_ns += by_ns

    def targets(
        self, *engines: str, neighbours: tuple[str, ...] = (), named: dict[str, str] | None = None
    ) -> None:
        """Tell the loop its targets; `named` gives an engine's cgroup where it isn't its name."""
        groups = named or {}
        self.agent.channel.send(
            targets_message(
                [
                    EngineTarget(name, self.engines[name].row, f"/{groups.get(name, name)}")
                    for name in engines
                ],
                [
                    NeighbourTarget(name, row, f"/{name}", limit=True, min_cores=0.1)
                    for row, name in enumerate(neighbours, 3)
                ],
            )
        )

    def begin(self, *engines: str, neighbours: tuple[str, ...] = ()) -> None:
        """Start the loop and wait until it is connected to its engines."""
        self.start()
        self.targets(*engines, neighbours=neighbours)
        for name in engines:
            self.engines[name].greet()
        self.agent.status(lambda status: connected(status) == set(engines))

    def mode(self, mode: Mode) -> None:
        self.agent.channel.send({"type": "mode", "mode": mode, "reason": "test"})

    def steal(self, row: int = 1) -> None:
        """Others hold the CPU for half the time that an engine wants it."""
        self.kernel.count(row, run_ns=50 * MS, wait_ns=50 * MS, wait_other_ns=50 * MS, waits_over=1)

    def stretch(self, name: str = "a") -> None:
        """A step takes too long, and streams feel it."""
        self.engines[name].long_step(300 * MS)
        self.kernel.count(self.engines[name].row, run_ns=300 * MS, gaps_over=2, chunks=2)

    def end(self) -> None:
        """The agent goes; the loop must end by itself."""
        self.agent.close()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()

    def close(self) -> None:
        self.agent.close()
        if self._thread.is_alive():
            self._thread.join(PATIENCE_S)
        self.agent.theirs.close()
        self._reader.close()
        self.kernel.close()
        self.edges.close()
        for engine in self.engines.values():
            engine.close()
        assert not self._thread.is_alive()

    def _clock(self) -> int:
        return self._frozen_ns or time.monotonic_ns() + self._ahead_ns


@contextmanager
def rig(directory: Path, mode: Mode, tick_ms: float = 2, ranks: bool = False) -> Iterator[Rig]:
    made = Rig(directory, mode, tick_ms, ranks)
    try:
        yield made
    finally:
        made.close()


def connected(status: dict[str, Any]) -> set[str]:
    return {
        name
        for name, engine in status["engines"].items()
        if engine["admin"]["state"] == "connected" and engine["knobs"]
    }


def cause(status: dict[str, Any], name: str = "a") -> str:
    found: str = status["engines"][name]["cause"]
    return found


def is_in(mode: Mode, status: dict[str, Any]) -> bool:
    return bool(status["mode"] == mode)


def ticks(status: dict[str, Any]) -> int:
    found: int = status["loop"]["ticks"]
    return found


def is_weight(decision: dict[str, Any]) -> bool:
    return bool(decision["action"][0]["knob"] == "cpu_weight")


def is_knob(decision: dict[str, Any]) -> bool:
    return bool(decision["action"][0]["kind"] == "knob")


def test_in_observe_mode_it_sees_everything_and_does_nothing(tmp_path: Path) -> None:
    with rig(tmp_path, "observe") as made:
        made.begin("a", neighbours=("n1",))
        status = made.agent.status(lambda status: cause(status) == "neighbour_cpu", made.steal)
        assert status["mode"] == "observe"
        assert status["engines"]["a"]["evidence"]["neighbour_pressure"] == 0.5
        assert status["engines"]["a"]["now"]["running"] == 2
        made.advance(SECOND)
        made.agent.status(lambda status: cause(status) == "batch", made.stretch)
        assert made.agent.of("decision") == []
        assert made.agent.of("ack") == []
        assert made.cgroups.untouched()
        assert made.engines["a"].peer.asks_nothing()


def test_in_shadow_mode_it_says_what_it_would_do(tmp_path: Path) -> None:
    with rig(tmp_path, "shadow") as made:
        made.begin("a")
        made.steal()
        decision = made.agent.next("decision", is_weight)
        assert (decision["mode"], decision["ack"]) == ("shadow", "shadow")
        made.advance(SECOND)
        made.stretch()
        decision = made.agent.next("decision", is_knob)
        assert decision["ack"] == "shadow"
        made.agent.status()
        assert made.agent.of("ack") == []
        assert made.cgroups.untouched()
        assert made.engines["a"].peer.asks_nothing()


def test_in_control_mode_it_acts_and_tells_what_became_of_it(tmp_path: Path) -> None:
    with rig(tmp_path, "control") as made:
        made.begin("a")
        made.steal()
        decision = made.agent.next("decision", is_weight)
        assert (decision["engine"], decision["cause"]) == ("a", "neighbour_cpu")
        assert decision["ack"] == "pending"
        ack = made.agent.next("ack", lambda ack: bool(ack["tag"] == decision["tag"]))
        assert ack["ack"] == "applied"
        assert made.cgroups.weight("a") == 1000
        assert made.cgroups.weight("b") == 100

        made.advance(SECOND)
        made.stretch()
        decision = made.agent.next("decision", is_knob)
        assert (decision["engine"], decision["cause"]) == ("a", "batch")
        request = made.engines["a"].answer("set", values=START | BUDGET, epoch=1)
        assert request["values"] == BUDGET
        ack = made.agent.next("ack", lambda ack: bool(ack["tag"] == decision["tag"]))
        assert ack["ack"] == "applied"
        knob = made.agent.status()["engines"]["a"]["knobs"]["max_batched_tokens"]
        assert knob == {"value": 1433, "start": 2048, "unit": "tokens", "held": True}


def test_what_a_decision_was_made_on_follows_and_leads_to_the_same_again(tmp_path: Path) -> None:
    with rig(tmp_path, "control") as made:
        made.begin("a")
        made.steal()
        decision = made.agent.next("decision", is_weight)
        told = made.agent.next("inputs", lambda each: bool(each["tag"] == decision["tag"]))
        _, proposal = decide_cpu_of(inputs_of(told["inputs"]))
        assert proposal is not None
        assert [each.as_dict() for each in changes_of(proposal, "a")] == decision["action"]

        made.advance(SECOND)
        made.stretch()
        decision = made.agent.next("decision", is_knob)
        told = made.agent.next("inputs", lambda each: bool(each["tag"] == decision["tag"]))
        inputs = inputs_of(told["inputs"])
        assert (inputs.mode, inputs.cause, inputs.slo.gap_ms) == ("control", "batch", 100)
        assert inputs.batch_view is not None
        assert inputs.batch_view.knobs["max_batched_tokens"].start == 2048
        _, proposal = decide_batch_of(inputs)
        assert proposal is not None
        assert [each.as_dict() for each in changes_of(proposal, "a")] == decision["action"]


def test_what_there_is_to_decide_on_is_sampled_once_a_second_in_any_mode(tmp_path: Path) -> None:
    with rig(tmp_path, "observe") as made:
        made.begin("a", "b")
        for _ in range(3):
            made.advance(SECOND)
            made.agent.next("inputs", lambda each: bool(each["engine"] == "b"))
        for name in ("a", "b"):
            samples = made.agent.of("inputs", engine=name)
            times = [each["mono_ns"] for each in samples]
            assert len(times) >= 2
            assert all(later - earlier >= SECOND for earlier, later in pairwise(times))
            assert {each["tag"] for each in samples} == {0}
            assert {inputs_of(each["inputs"]).mode for each in samples} == {"observe"}


def hold_down(made: Rig) -> None:
    """Bring the loop to hold quotas on both neighbours."""
    made.begin("a", neighbours=("n1", "n2"))
    deadline = time.monotonic() + PATIENCE_S
    while made.cgroups.quota("n1") is None:
        assert time.monotonic() < deadline
        made.steal()
        for row in (3, 4):
            made.kernel.count(row, run_ns=100 * MS)
        made.advance(100 * MS)
        time.sleep(0.005)


def test_quotas_come_when_the_weight_does_not_help(tmp_path: Path) -> None:
    with rig(tmp_path, "control") as made:
        hold_down(made)
        quotas = [
            (change["target"], change["knob"])
            for decision in made.agent.of("decision")
            for change in decision["action"]
            if change["knob"] == "cpu_quota"
        ]
        assert quotas[:2] == [("n1", "cpu_quota"), ("n2", "cpu_quota")]
        assert made.cgroups.weight("a") == 10_000
        status = made.agent.status(lambda status: status["neighbours"]["n1"]["quota_cores"])
        assert status["neighbours"]["n1"]["used_cores"] > 0
        made.mode("observe")
        made.agent.next("event", lambda event: bool(event["kind"] == "mode"))
        assert made.cgroups.untouched()


def holding(made: Rig) -> None:
    """Bring the loop to hold a weight and a knob."""
    made.begin("a")
    made.steal()
    made.agent.next("ack")
    made.advance(SECOND)
    made.stretch()
    made.engines["a"].answer("set", values=START | BUDGET, epoch=1)
    made.agent.next("ack")
    assert made.cgroups.weight("a") == 1000


def change_policy(made: Rig, *, afresh: tuple[str, ...] = (), **fields: Any) -> None:
    """Send the loop its policy with other fields for engine a."""
    old = made.policy
    engines = tuple(
        replace(engine, **fields) if engine.name == "a" else engine for engine in old.engines
    )
    text = policy_to_json(replace(old, engines=engines))
    made.agent.channel.send({"type": "policy", "policy": text, "afresh": list(afresh)})


def test_under_another_policy_it_keeps_what_it_holds(tmp_path: Path) -> None:
    with rig(tmp_path, "control") as made:
        holding(made)
        change_policy(made, slo=Slo(ttft_ms=500, gap_ms=50))
        status = made.agent.status()
        assert status["engines"]["a"]["knobs"]["max_batched_tokens"]["held"]
        assert made.cgroups.weight("a") == 1000
        assert made.engines["a"].peer.asks_nothing()
        assert made.agent.of("event", kind="given_back") == []


def test_it_decides_by_the_new_policy(tmp_path: Path) -> None:
    with rig(tmp_path, "control") as made:
        made.begin("a")
        change_policy(made, limits=Limits(cpu_weight_max=300))
        made.agent.status()  # a round that had begun before is over
        made.steal()
        decision = made.agent.next("decision", is_weight)
        assert decision["action"][0]["to"] == 300


def test_what_the_new_policy_forbids_is_given_back(tmp_path: Path) -> None:
    with rig(tmp_path, "control") as made:
        holding(made)
        change_policy(
            made,
            limits=Limits(cpu_weight_max=999),
            knobs=KnobFloors(min_batched_tokens=BUDGET["max_batched_tokens"] + 1),
        )
        made.engines["a"].answer("release", released=True)
        given = [made.agent.next("event")["detail"]["what"] for _ in range(2)]
        assert given == ["max_batched_tokens", "cpu_weight"]
        assert made.cgroups.untouched()
        status = made.agent.status()
        assert status["engines"]["a"]["cpu_weight"] == {"value": 100, "base": 100}


def test_an_engine_that_is_to_start_afresh_gives_its_knobs_back(tmp_path: Path) -> None:
    with rig(tmp_path, "control") as made:
        holding(made)
        change_policy(made, afresh=("a", "gone"))
        made.engines["a"].answer("release", released=True)
        status = made.agent.status()
        assert not status["engines"]["a"]["knobs"]["max_batched_tokens"]["held"]
        assert made.cgroups.weight("a") == 1000


def test_an_engine_of_a_new_policy_becomes_a_target(tmp_path: Path) -> None:
    with rig(tmp_path, "control") as made:
        made.begin("a")
        old = made.policy
        added = Engine("c", Match("port", 3))
        policy = replace(old, engines=(*old.engines[:1], added))
        made.agent.channel.send({"type": "policy", "policy": policy_to_json(policy), "afresh": []})
        made.agent.channel.send(
            targets_message([EngineTarget("a", 1, "/a"), EngineTarget("c", 5, None)], [])
        )
        made.agent.status(lambda status: set(status["engines"]) == {"a", "c"})


@pytest.mark.parametrize("changes", [{"limit": False}, {"min_cores": 1.9}])
def test_a_neighbour_that_may_not_be_held_so_low_gets_its_quota_back(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    with rig(tmp_path, "control") as made:
        hold_down(made)
        targets = [
            replace(NeighbourTarget(name, row, f"/{name}", limit=True, min_cores=0.1), **changes)
            for row, name in enumerate(("n1", "n2"), 3)
        ]
        made.agent.channel.send(targets_message([EngineTarget("a", 1, "/a")], targets))
        made.agent.status(
            lambda status: all(n["quota_cores"] is None for n in status["neighbours"].values())
        )
        assert made.cgroups.quota("n1") is None
        assert made.cgroups.quota("n2") is None


@pytest.mark.parametrize("mode", ["observe", "shadow"])
def test_leaving_control_gives_everything_back(tmp_path: Path, mode: Mode) -> None:
    with rig(tmp_path, "control") as made:
        holding(made)
        made.mode(mode)
        assert made.engines["a"].answer("release", released=True)["owner"] == "sits"
        undo = made.agent.next("event", lambda event: bool(event["kind"] == "undo"))
        assert undo["detail"] == {"reason": f"mode {mode}: test", "restored": 1}
        event = made.agent.next("event", lambda event: bool(event["kind"] == "mode"))
        assert event["subject"] == mode
        assert event["detail"] == {"from": "control", "reason": "test"}
        assert made.cgroups.untouched()
        status = made.agent.status()
        assert status["mode"] == mode
        assert not status["engines"]["a"]["knobs"]["max_batched_tokens"]["held"]
        assert status["engines"]["a"]["cpu_weight"] == {"value": 100, "base": 100}


def test_the_same_mode_again_changes_nothing(tmp_path: Path) -> None:
    with rig(tmp_path, "control") as made:
        holding(made)
        made.mode("control")
        status = made.agent.status()
        assert status["engines"]["a"]["knobs"]["max_batched_tokens"]["held"]
        assert made.cgroups.weight("a") == 1000
        assert made.agent.of("event", kind="mode") == []


def test_entering_control_begins_from_nothing(tmp_path: Path) -> None:
    with rig(tmp_path, "shadow") as made:
        made.begin("a")
        made.steal()
        made.agent.next("decision", is_weight)
        made.mode("control")
        made.advance(SECOND)
        made.steal()
        decision = made.agent.next("decision", lambda each: bool(each["mode"] == "control"))
        assert (decision["action"][0]["from"], decision["action"][0]["to"]) == (100, 1000)


def test_when_the_agent_is_gone_everything_is_given_back_and_it_ends(tmp_path: Path) -> None:
    with rig(tmp_path, "control") as made:
        holding(made)
        made.end()
        assert made.cgroups.untouched()
        assert made.engines["a"].peer.request("release")["owner"] == "sits"
        assert made.engines["a"].peer.sock.recv(100) == b""


def test_an_engine_that_is_no_target_any_more_is_let_go(tmp_path: Path) -> None:
    with rig(tmp_path, "control") as made:
        holding(made)
        made.targets()
        assert made.engines["a"].peer.request("release")["owner"] == "sits"
        assert made.engines["a"].peer.sock.recv(100) == b""
        assert made.agent.status()["engines"] == {}
        assert made.cgroups.untouched()


def test_an_engine_that_stays_a_target_keeps_what_it_holds(tmp_path: Path) -> None:
    with rig(tmp_path, "control") as made:
        holding(made)
        made.targets("a", "b")
        made.engines["b"].greet()
        status = made.agent.status(lambda status: connected(status) == {"a", "b"})
        assert status["engines"]["a"]["knobs"]["max_batched_tokens"]["held"]
        assert made.cgroups.weight("a") == 1000
        assert made.engines["a"].peer.asks_nothing()


def test_an_engine_under_another_name_begins_anew(tmp_path: Path) -> None:
    with rig(tmp_path, "control") as made:
        holding(made)
        made.targets("b", named={"b": "a"})
        made.engines["b"].greet()
        made.agent.status(lambda status: connected(status) == {"b"})
        assert made.engines["a"].peer.request("release")["owner"] == "sits"
        assert made.cgroups.untouched()
        made.advance(SECOND)
        made.steal(row=2)
        decision = made.agent.next("decision", is_weight)
        # the weight it starts from is its own, not the one that was held
        assert (decision["action"][0]["from"], decision["action"][0]["to"]) == (100, 1000)


def test_a_cgroup_made_anew_is_looked_at_anew(tmp_path: Path) -> None:
    with rig(tmp_path, "control") as made:
        holding(made)
        (made.cgroups.root / "a").rename(tmp_path / "old")
        made.cgroups.make("a")
        made.cgroups.write("a", "cpu.weight", "200")
        made.targets("a")
        made.engines["a"].peer.request("release")
        made.engines["a"].peer.hang_up()
        made.engines["a"].greet()
        status = made.agent.status(lambda status: connected(status) == {"a"})
        assert status["engines"]["a"]["cpu_weight"] == {"value": 200, "base": 200}


def test_two_engines_are_judged_and_answered_apart(tmp_path: Path) -> None:
    with rig(tmp_path, "control") as made:
        made.begin("a", "b")
        made.stretch("a")
        made.stretch("b")
        decisions = [made.agent.next("decision") for _ in range(2)]
        assert {decision["engine"] for decision in decisions} == {"a", "b"}
        made.engines["b"].peer.refuse(made.engines["b"].peer.request("set"), "out_of_range")
        made.engines["a"].answer("set", values=START | BUDGET, epoch=1)
        acks = {ack["tag"]: ack["ack"] for ack in (made.agent.next("ack") for _ in range(2))}
        by_engine = {each["engine"]: acks[each["tag"]] for each in decisions}
        assert by_engine == {"a": "applied", "b": "refused"}
        status = made.agent.status()
        assert status["engines"]["a"]["admin"]["state"] == "connected"
        assert status["engines"]["b"]["admin"]["state"] == "refused"


def test_an_engine_that_hangs_does_not_hold_up_the_other(tmp_path: Path) -> None:
    with rig(tmp_path, "control") as made:
        made.begin("a", "b")
        made.stretch("a")
        decision = made.agent.next("decision")
        made.engines["a"].peer.request("set")
        made.advance(SECOND)
        ack = made.agent.next("ack")
        assert (ack["tag"], ack["ack"]) == (decision["tag"], "lost")
        made.agent.next("event", lambda event: bool(event["kind"] == "engine_lost"))
        made.stretch("b")
        assert made.agent.next("decision")["engine"] == "b"
        made.engines["b"].answer("set", values=START | BUDGET, epoch=1)
        assert made.agent.next("ack")["ack"] == "applied"


def test_a_restarted_engine_is_greeted_again_and_told(tmp_path: Path) -> None:
    with rig(tmp_path, "control") as made:
        holding(made)
        engine = made.engines["a"]
        engine.peer.hang_up()
        engine.hello = replace(engine.hello, instance="another")
        made.agent.next("event", lambda event: bool(event["kind"] == "engine_lost"))
        made.advance(2 * SECOND)
        engine.greet()
        event = made.agent.next("event", lambda event: bool(event["kind"] == "engine_restarted"))
        assert event["subject"] == "a"
        status = made.agent.status(lambda status: connected(status) == {"a"})
        assert not status["engines"]["a"]["knobs"]["max_batched_tokens"]["held"]


def test_the_engines_own_quota_is_seen_and_nothing_done_about_it(tmp_path: Path) -> None:
    with rig(tmp_path, "control") as made:
        made.begin("a")
        seconds = count(1)

        def throttle() -> None:
            text = f"nr_periods 40\nnr_throttled 35\nthrottled_usec {next(seconds)}000000"
            made.cgroups.write("a", "cpu.stat", text)
            made.kernel.count(1, run_ns=50 * MS, gaps_over=1)

        made.agent.status(lambda status: cause(status) == "own_quota", throttle)
        assert made.agent.of("decision") == []


def test_an_edge_makes_a_tick_at_once(tmp_path: Path) -> None:
    with rig(tmp_path, "control", tick_ms=1000) as made:
        made.begin("a")
        made.freeze()
        made.advance(4 * MS)
        made.steal()
        # time stands still: no tick comes by itself, nor for an edge that is nobody's
        made.edges.raise_for(7)
        time.sleep(0.05)
        assert made.agent.of("decision") == []
        made.edges.raise_for(1)
        made.agent.next("decision", is_weight)
        made.agent.next("ack")
        made.advance(2 * SECOND)
        made.mode("observe")
        reaction = made.agent.next("status")["loop"]["reaction"]
        assert sum(reaction["slots"].values()) == 1


def test_an_engine_that_is_found_is_told_of_at_once_however_rare_ticks_are(tmp_path: Path) -> None:
    with rig(tmp_path, "observe", tick_ms=10 * 60 * 1000) as made:
        made.start()
        made.targets("a")
        made.engines["a"].greet()
        made.agent.next("status", lambda status: connected(status) == {"a"})


def test_an_edge_before_the_first_tick_is_no_pause(tmp_path: Path) -> None:
    with rig(tmp_path, "observe", tick_ms=1000) as made:
        now_ns = time.monotonic_ns()
        made.loop.tick_on_edges(now_ns)
        made.loop.tick(now_ns + MS)
        assert made.agent.of("event", kind="loop_paused") == []
        made.start()


def test_edges_close_together_share_a_tick(tmp_path: Path) -> None:
    with rig(tmp_path, "observe", tick_ms=1000) as made:
        made.begin("a")
        made.freeze()

        def now() -> int:
            made.mode("shadow")
            made.agent.next("status", partial(is_in, "shadow"))
            made.mode("observe")
            return ticks(made.agent.next("status", partial(is_in, "observe")))

        # one may be due anyway, before time stood still
        time.sleep(0.05)
        before = now()
        for _ in range(3):
            made.advance(EDGE_SPACING_NS)
            made.edges.raise_for(1)
            until = time.monotonic() + PATIENCE_S
            while now() == before:
                assert time.monotonic() < until
            for _ in range(5):
                made.edges.raise_for(1)
                time.sleep(0.005)
            assert now() == before + 1
            before += 1


def test_an_edge_is_no_reason_to_look_at_the_other_engines(tmp_path: Path) -> None:
    with rig(tmp_path, "control", tick_ms=1000) as made:
        made.begin("a", "b")
        made.freeze()
        made.advance(4 * MS)
        made.steal(row=1)
        made.steal(row=2)
        made.edges.raise_for(2)
        assert made.agent.next("decision", is_weight)["engine"] == "b"
        time.sleep(0.05)
        assert {decision["engine"] for decision in made.agent.of("decision")} <= {"b"}


def test_under_backpressure_it_ticks_at_its_fast_period(tmp_path: Path) -> None:
    with rig(tmp_path, "observe", tick_ms=50) as made:
        made.begin("a")
        first = ticks(made.agent.status())
        slow = ticks(made.agent.status()) - first
        made.agent.channel.send({"type": "inject", "value": 0.9, "duration_ms": 60_000})
        made.agent.status(lambda status: status["engines"]["a"]["backpressure"]["value"] == 0.9)
        first = ticks(made.agent.status())
        assert ticks(made.agent.status()) - first > 2 * slow


def test_what_the_agent_sees_in_an_engines_sockets_presses_that_engine(tmp_path: Path) -> None:
    with rig(tmp_path, "observe") as made:
        made.begin("a")
        seen = {"accept_fill": 0.75, "unsent": 2, "blocked": 0}
        made.agent.channel.send({"type": "queues", "engines": {"a": seen, "gone": seen}})
        made.agent.status(
            lambda status: (
                (now := status["engines"]["a"]["backpressure"])["accept"] == 0.75
                and now["send"] == 1
            )
        )


def test_an_injected_signal_ends_by_itself(tmp_path: Path) -> None:
    with rig(tmp_path, "observe") as made:
        made.begin("a")
        made.agent.channel.send({"type": "inject", "value": 0.9, "duration_ms": 5000})
        made.agent.status(lambda status: status["engines"]["a"]["backpressure"]["value"] == 0.9)
        made.advance(6 * SECOND)
        made.agent.status(lambda status: status["engines"]["a"]["backpressure"]["value"] == 0)


def test_it_tells_how_long_its_stages_take(tmp_path: Path) -> None:
    with rig(tmp_path, "observe") as made:
        made.begin("a")
        status = made.agent.status()
        for stage in ("collect", "decide", "tick"):
            assert sum(status["loop"][stage]["slots"].values()) == ticks(status)
        assert sum(status["loop"]["actuate"]["slots"].values()) == 0


def test_where_python_collects_no_garbage_the_loop_does_in_ticks_without_a_decision(
    tmp_path: Path, no_collection: None
) -> None:
    with rig(tmp_path, "observe") as made:
        made.begin("a")
        left = Cycle()
        gone = weakref.ref(left)
        del left
        assert gone() is not None
        made.advance(SWEEP_NS)
        deadline = time.monotonic() + PATIENCE_S
        while gone() is not None:
            assert time.monotonic() < deadline, "still there"
            time.sleep(0.01)


class Cycle:
    """Refers to itself: only a collection ends it."""

    def __init__(self) -> None:
        self.me = self


@pytest.fixture
def no_collection() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def test_an_agent_that_does_not_read_is_not_told_ever_more(tmp_path: Path) -> None:
    made = Rig(tmp_path, "observe", 17)
    made.loop.take(dict(targets_message([EngineTarget("a", 1, "/a")], [])))
    for i in range(1, 3000):
        made.loop.tick(i * STATUS_EVERY_NS)
    assert len(made.agent.of("status")) < 1000
    # once it reads again, it is told again
    for i in range(3000, 3005):
        made.agent.listen()
        made.loop.tick(i * STATUS_EVERY_NS)
    last = made.agent.of("status")[-1]
    assert ticks(last) >= 3003
    made.loop.stop()
    made.close()


def ranks_of(made: Rig) -> None:
    """Start the loop on one engine of two ranks, and wait until both are connected."""
    made.start()
    made.targets("a")
    for name in ("a", "b"):
        made.engines[name].greet()
    made.agent.status(
        lambda status: (
            [each["state"] for each in status["engines"]["a"]["admin_sockets"]]
            == ["connected", "connected"]
        )
    )


def test_the_ranks_of_an_engine_are_decided_about_each_by_itself(tmp_path: Path) -> None:
    with rig(tmp_path, "control", ranks=True) as made:
        ranks_of(made)
        made.stretch("a")
        decision = made.agent.next("decision", is_knob)
        assert decision["engine"] == "a"
        assert decision["action"][0]["target"] == "a/a.sock"
        assert made.engines["a"].answer("set", values=START | BUDGET, epoch=1)["values"] == BUDGET
        assert made.engines["b"].peer.asks_nothing()


def test_the_cpu_of_an_engine_with_ranks_is_looked_after_once(tmp_path: Path) -> None:
    with rig(tmp_path, "control", ranks=True) as made:
        ranks_of(made)
        made.steal()
        decision = made.agent.next("decision", is_weight)
        assert decision["action"][0]["target"] == "a"
        made.agent.status()
        assert len(made.agent.of("decision")) == 1


def test_a_status_sums_what_the_ranks_do(tmp_path: Path) -> None:
    with rig(tmp_path, "observe", ranks=True) as made:
        made.engines["b"].page.write(EngineNow(steps=7, running=3, waiting=4))
        ranks_of(made)
        status = made.agent.status(
            lambda status: (now := status["engines"]["a"]["now"]) and now["running"] == 5
        )
        assert list(status["engines"]) == ["a"]
        assert status["engines"]["a"]["now"]["waiting"] == 4
        keys = [each["key"] for each in status["engines"]["a"]["admin_sockets"]]
        assert keys == ["a/a.sock", "a/b.sock"]


def test_a_rank_whose_socket_comes_later_is_found_and_one_that_went_is_said(
    tmp_path: Path,
) -> None:
    with rig(tmp_path, "observe", ranks=True) as made:
        made.engines["b"].peer.close()
        made.start()
        made.targets("a")
        made.engines["a"].greet()
        made.agent.status(lambda status: len(status["engines"]["a"]["admin_sockets"]) == 1)
        made.engines["b"].peer = Peer(tmp_path / "b.sock")
        made.engines["b"].greet()
        made.agent.status(lambda status: len(status["engines"]["a"]["admin_sockets"]) == 2)
        made.engines["a"].peer.close()
        status = made.agent.status(
            lambda status: status["engines"]["a"]["admin"]["state"] == "unreachable"
        )
        states = {e["key"]: e["state"] for e in status["engines"]["a"]["admin_sockets"]}
        assert states == {"a/a.sock": "unreachable", "a/b.sock": "connected"}
