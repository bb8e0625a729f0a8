"""The controller's own loop retunes a real tritonserver by the window law."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bpf.readers import CounterReader
from controller.loop import Loop
from controller.policy_model import Controller, Engine, Match, Mode, Policy, Slo
from controller.wire import EngineTarget, targets_message
from tests.engines.otlp_receiver import eventually
from tests.engines.triton.server import traffic, triton_server
from tests.engines.triton.test_adapter import Adapter, adapter, in_force
from tests.unit.controller.rig import AgentEnd, Cgroups, Kernel, actuator_of

pytestmark = pytest.mark.engines

SLOW_MS = 150.0
SLO = Slo(ttft_ms=120, gap_ms=10_000)
ROW = 1
PATIENCE_S = 90
"""A busy machine makes batches uneven, and the model of them is believed the later."""


@contextmanager
def loop(directory: Path, served: Adapter, mode: Mode) -> Iterator[AgentEnd]:
    """The loop on a thread, with the engine as its only target and a kernel that counts nothing."""
    agent, cgroups, kernel = AgentEnd(), Cgroups(directory), Kernel(8)
    cgroups.make("triton")
    engine = Engine("triton", Match("port", 1), admin_socket=served.socket, slo=SLO)
    policy = Policy(mode=mode, controller=Controller(), engines=(engine,))
    reader = CounterReader(kernel.counters_fd, kernel.health_fd, 8, 1)
    made = Loop(policy, agent.theirs, reader, actuator_of(agent, cgroups), 2)
    thread = threading.Thread(target=made.run, args=(None,))
    thread.start()
    agent.channel.send(targets_message([EngineTarget("triton", ROW, "/triton")], []))
    try:
        yield agent
    finally:
        agent.close()
        thread.join()
        agent.theirs.close()
        reader.close()
        kernel.close()


def knobs(agent: AgentEnd) -> list[tuple[str, object, str]]:
    """Every change that was decided: knob, value, and the decision's reason."""
    return [
        (change["knob"], change["to"], decision["reason"])
        for decision in agent.of("decision")
        for change in decision["action"]
        if change["kind"] == "knob"
    ]


def median_s(load: list[tuple[float, float, float]]) -> float:
    return sorted(took for _, took, _ in load)[len(load) // 2]


def test_a_window_too_long_for_the_slo_is_cut_once_and_given_back_at_the_end(
    tmp_path: Path,
) -> None:
    with (
        triton_server(tmp_path, window_ms=SLOW_MS) as server,
        adapter(server) as served,
        traffic(server.port, "batcher", clients=3) as load,
    ):
        with loop(tmp_path, served, "control") as agent:
            eventually(lambda: bool(knobs(agent)), PATIENCE_S)
            before = list(load.answered)
            ack = agent.next("ack", lambda message: bool(message["ack"] == "applied"))
            assert in_force(server) < SLOW_MS
            asked_after = time.monotonic()
            eventually(lambda: load.answered[-1][0] > asked_after + 2)
            after = [each for each in load.answered if each[0] > asked_after]
            (change,) = knobs(agent)
            told = agent.of("event", kind="engine_reloaded")
        eventually(served.has(SLOW_MS))
    assert not load.failed
    assert change[0] == "batch_window_ms"
    assert "items/s may come, against a TTFT SLO of 120 ms" in change[2]
    assert "in force after" in ack["detail"]
    assert len(told) == 1
    assert median_s(before) > SLO.ttft_ms / 1000 > median_s(after)


def test_in_shadow_the_same_is_decided_and_nothing_is_reloaded(tmp_path: Path) -> None:
    with (
        triton_server(tmp_path, window_ms=SLOW_MS) as server,
        adapter(server) as served,
        traffic(server.port, "batcher", clients=3) as load,
        loop(tmp_path, served, "shadow") as agent,
    ):
        eventually(lambda: bool(knobs(agent)), PATIENCE_S)
        assert in_force(server) == SLOW_MS
    assert not load.failed
