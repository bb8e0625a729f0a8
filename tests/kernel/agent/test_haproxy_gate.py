"""HAProxy before an engine without knobs, measured and retuned through its adapter."""

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.engines.haproxy.gate import Asked, Gate, Server, asking, haproxy
from tests.engines.reference_process import Running, reference_engine
from tests.kernel.conftest import MakeGroup, TwinGroup

from .groups import inside
from .rig import Site, Sitsd
from .waiting import becomes

pytestmark = [pytest.mark.kernel, pytest.mark.engines]

MAXCONN = 4
CLIENTS = 40
"""So many that, without a limit of the queue, ten times as long is waited as served."""

TOKENS = 32


@dataclass(frozen=True, slots=True)
class Door:
    """A HAProxy in a cgroup, and an engine behind it that has no admin socket in the policy."""

    gate: Gate
    engine: Running
    group: TwinGroup

    def targets(self, ttft_ms: float, gap_ms: float = 30_000) -> str:
        return f"""
[controller]
neighbour_pressure = 1.0
[engines.chat]
cgroup = "/{self.group.cpu.name}"
adapter = {{ kind = "haproxy", address = "{self.gate.admin}", backend = "engines" }}
slo = {{ ttft_ms = {ttft_ms}, gap_ms = {gap_ms} }}
"""

    def at_start(self) -> bool:
        return self.gate.maxconn == {"a": MAXCONN} and self.gate.max_queued == 1000


@pytest.fixture
def door(make_cgroup: MakeGroup, tmp_path: Path) -> Iterator[Door]:
    group = make_cgroup("gate")
    with reference_engine() as engine:
        servers = [Server("a", engine.port, MAXCONN)]
        with haproxy(tmp_path, servers, wrap=lambda command: inside(group, *command)) as gate:
            yield Door(gate, engine, group)


def child(sitsd: Sitsd, module: str) -> int:
    """The process of the agent's that runs this module, which is there."""
    found = sitsd.child(module)
    assert found is not None, module
    return found.pid


def following(sitsd: Sitsd) -> None:
    sitsd.engine(lambda engine: engine["admin"]["state"] == "connected")


def overloaded(door: Door, answers: int) -> tuple[Asked, float]:
    """What became of requests in an overload, from `answers` on until so many more; answers/s."""
    with asking(door.gate, clients=CLIENTS, max_tokens=TOKENS) as asked:
        becomes(lambda: asked.statuses[200] >= answers, patience_s=240)
        asked.statuses.clear()
        asked.ttft_s.clear()
        began_s = time.monotonic()
        becomes(lambda: asked.statuses[200] >= answers, patience_s=240)
        per_s = asked.statuses[200] / (time.monotonic() - began_s)
    assert asked.failures == []
    return asked, per_s


def test_an_overload_is_shed_so_that_those_let_in_are_on_time_and_the_end_gives_back(
    door: Door, site: Site
) -> None:
    answers = 4 * CLIENTS
    site.write(door.targets(60_000), "observe")
    with site.sitsd() as sitsd:
        following(sitsd)
        free, free_per_s = overloaded(door, answers)
        assert set(free.statuses) == {200}
    slo_s = sorted(free.ttft_s)[len(free.ttft_s) // 2] / 3
    site.write(door.targets(slo_s * 1e3), "control")
    with site.sitsd() as sitsd:
        following(sitsd)
        held, held_per_s = overloaded(door, answers)
        assert held.statuses[503] > 0
        assert all(1 <= int(seconds) <= 60 for seconds in held.retry_after)
        assert becomes(lambda: [d for d in sitsd.decisions() if d["ack"] == "applied"])
        becomes(lambda: door.gate.max_queued < 1000)
    assert door.at_start()
    good = [sum(t <= slo_s for t in each.ttft_s) / len(each.ttft_s) for each in (free, held)]
    print(
        f"TTFT SLO {slo_s * 1e3:.0f} ms: {good[1]:.1%} of the answers on time, {good[0]:.1%}"
        f" without control; {held_per_s / free_per_s:.2f} times as many answers a second"
    )
    assert good[1] > 2 * good[0]


def test_whoever_is_killed_haproxy_has_its_own_values_in_the_end(door: Door, site: Site) -> None:
    site.write(door.targets(1), "control")

    def limited() -> bool:
        return not door.at_start()

    for module in ("controller.adapters.command", "controller.process", None):
        with site.sitsd() as sitsd:
            following(sitsd)
            with asking(door.gate, clients=CLIENTS, max_tokens=TOKENS):
                becomes(limited)
                if module is None:
                    sitsd.kill()
                    becomes(door.at_start)
                    continue
                os.kill(child(sitsd, module), signal.SIGKILL)
                becomes(limited)
                following(sitsd)
        assert door.at_start(), module


def test_if_agent_and_adapter_are_killed_at_once_the_guard_brings_haproxy_back(
    door: Door, site: Site
) -> None:
    site.write(door.targets(1), "control")
    with site.sitsd() as sitsd:
        following(sitsd)
        adapter = child(sitsd, "controller.adapters.command")
        with asking(door.gate, clients=CLIENTS, max_tokens=TOKENS):
            becomes(lambda: not door.at_start())
            # stopped, so that it does not see the agent's end before its own
            os.kill(adapter, signal.SIGSTOP)
            sitsd.kill()
            os.kill(adapter, signal.SIGKILL)
            becomes(door.at_start)


def test_an_adapter_whose_haproxy_is_gone_is_a_problem_that_is_told(door: Door, site: Site) -> None:
    site.write(door.targets(60_000), "control")
    with site.sitsd() as sitsd:
        following(sitsd)
        away = door.gate.admin.with_suffix(".away")
        door.gate.admin.rename(away)
        told = sitsd.status(
            lambda s: any("haproxy adapter is unreachable" in p for p in s["problems"])
        )
        assert told["engines"][0]["adapter"]["state"] == "unreachable"
        assert "could not talk to HAProxy" in told["engines"][0]["adapter"]["detail"]
        away.rename(door.gate.admin)
        following(sitsd)
        sitsd.status(lambda status: status["problems"] == [])
