"""Killed, stopped and started again while weights and knobs are not as they were."""

import os
import random
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from uuid import uuid4

import pytest

from .conftest import Node
from .groups import burning, limits
from .rig import Site, Sitsd, gone
from .traffic import Load, at_start, load
from .waiting import becomes

pytestmark = pytest.mark.kernel

GAP_MS = 20
GIVEN_BACK_S = 3.0
"""The promise is one second; a busy two-core machine gets three, and the time is printed."""


@dataclass(frozen=True, slots=True)
class Controlled:
    """A sitsd in control mode, its traffic, and what every limit was before it came."""

    sitsd: Sitsd
    site: Site
    traffic: Load
    before: dict[str, str]


@pytest.fixture(scope="module")
def controlled(
    node: Node, bpffs: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Controlled]:
    """One for all tests below, with six neighbours that take the engine's CPU."""
    site = Site(tmp_path_factory.mktemp("controlled"), bpffs / f"sits-{uuid4().hex[:12]}")
    site.write(node.targets(ttft_ms=GAP_MS, gap_ms=GAP_MS), "control")
    before = all_limits(node)
    with burning(*node.neighbours), load(node.engine) as traffic, site.sitsd() as sitsd:
        yield Controlled(sitsd, site, traffic, before)
        assert sitsd.end() == 0
        assert traffic.failures == []
        assert all_limits(node) == before
        assert not site.undo.exists()
    site.unload()


def raised(sitsd: Sitsd, node: Node, before: dict[str, str]) -> None:
    """Wait until the engine's weight is not what it was."""
    sitsd.engine(
        lambda engine: (
            engine["cpu_weight"] and engine["cpu_weight"]["value"] > engine["cpu_weight"]["base"]
        )
    )
    becomes(lambda: all_limits(node) != before)


def all_limits(node: Node) -> dict[str, str]:
    return limits(node.group, *node.neighbours)


def given_back_s(node: Node, before: dict[str, str], since_s: float) -> float:
    """How long it took until every file and knob was as before."""
    becomes(lambda: all_limits(node) == before and at_start(node.engine), GIVEN_BACK_S)
    return time.monotonic() - since_s


def test_killed_at_any_moment_it_leaves_nothing_behind_and_nothing_runs_on(
    node: Node, site: Site
) -> None:
    chance = random.Random(2)
    before, took_ms, held = all_limits(node), [], 0
    site.write(node.targets(ttft_ms=GAP_MS, gap_ms=GAP_MS), "control")
    with burning(*node.neighbours), load(node.engine) as traffic:
        for number in range(10):
            with site.sitsd() as sitsd:
                controller = becomes(lambda: sitsd.api.status()["controller"]["pid"])
                if number % 4 < 2:
                    becomes(lambda: all_limits(node) != before)
                time.sleep(chance.uniform(0, 0.5))
                family = sitsd.family()
                held += all_limits(node) != before
                pids = [sitsd.process.pid, controller]
                for pid in pids if number % 2 else pids[::-1]:
                    os.kill(pid, signal.SIGKILL)
                took_ms.append(1e3 * given_back_s(node, before, time.monotonic()))
                becomes(partial(gone, family))
                assert not site.undo.exists()
                sitsd.kill()
        assert traffic.failures == []
    print(f"given back in ms: {sorted(map(round, took_ms))}, {held} times from limits in force")
    assert held > 0


def test_a_killed_controller_is_undone_at_once_and_its_successor_goes_on(
    node: Node, controlled: Controlled
) -> None:
    sitsd, before = controlled.sitsd, controlled.before
    raised(sitsd, node, before)
    controller = sitsd.api.status()["controller"]
    # its successor comes after 500 ms: until then nothing holds the limits
    os.kill(controller["pid"], signal.SIGKILL)
    given_back_s(node, before, time.monotonic())
    status = sitsd.status(
        lambda status: status["controller"]["restarts"] == controller["restarts"] + 1
    )
    assert status["mode"] == "control"
    raised(sitsd, node, before)


def test_a_stopped_controller_loses_its_limits_and_takes_them_again(
    node: Node, controlled: Controlled
) -> None:
    sitsd, before = controlled.sitsd, controlled.before
    raised(sitsd, node, before)
    controller = sitsd.api.status()["controller"]
    os.kill(controller["pid"], signal.SIGSTOP)
    try:
        took_s = given_back_s(node, before, time.monotonic())
        sitsd.status(lambda status: not status["controller"]["alive"])
    finally:
        os.kill(controller["pid"], signal.SIGCONT)
    raised(sitsd, node, before)
    assert sitsd.api.status()["controller"] == controller
    print(f"given back {took_s * 1e3:.0f} ms after the stop")


def test_a_killed_guard_is_replaced_together_with_the_controller(
    node: Node, controlled: Controlled
) -> None:
    sitsd, before = controlled.sitsd, controlled.before
    raised(sitsd, node, before)
    guard, controller = sitsd.guard(), sitsd.api.status()["controller"]
    assert guard is not None
    guard.kill()
    status = sitsd.status(
        lambda status: (
            status["controller"]["alive"]
            and status["controller"]["restarts"] == controller["restarts"] + 1
        )
    )
    fresh = sitsd.guard()
    assert fresh is not None
    assert fresh.pid != guard.pid
    assert status["controller"]["pid"] != controller["pid"]
    raised(sitsd, node, before)
