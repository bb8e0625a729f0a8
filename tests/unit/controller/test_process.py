import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from bpf.layout import COUNTERS
from controller.policy import policy_to_json
from controller.policy_model import Agent, Engine, Match, Policy
from controller.start import Handles, hand_over, start_controller
from controller.wire import EngineTarget, targets_message

from .peers import PATIENCE_S
from .rig import AgentEnd, Kernel

PAGE_ROWS = 4096 // COUNTERS.size
"""So many rows fill a page: the row after them is on one of its own."""


@dataclass(frozen=True, slots=True)
class Running:
    process: subprocess.Popen[bytes]
    agent: AgentEnd
    kernel: Kernel


@contextmanager
def controller(directory: Path, max_targets: int = 8) -> Iterator[Running]:
    """The controller as sitsd starts it, with its configuration sent."""
    kernel = Kernel(max_targets + 1)
    beat_read, beat_write = os.pipe()
    process, channel = start_controller()
    agent = AgentEnd(channel)
    hand_over(channel, Handles(kernel.counters_fd, kernel.health_fd, None, 1), beat_write)
    policy = Policy(agent=Agent(max_targets=max_targets), engines=(Engine("e", Match("port", 1)),))
    agent.channel.send(
        {
            "type": "config",
            "policy": policy_to_json(policy),
            "mode": "shadow",
            "undo_path": str(directory / "undo.json"),
        }
    )
    try:
        yield Running(process, agent, kernel)
    finally:
        process.kill()
        process.wait()
        agent.close()
        kernel.close()
        os.close(beat_read)
        os.close(beat_write)


def test_it_takes_its_mode_and_targets_and_ends_with_the_agent(tmp_path: Path) -> None:
    with controller(tmp_path) as running:
        running.agent.channel.send(targets_message([EngineTarget("e", 1, None)], []))
        status = running.agent.next("status", lambda status: "e" in status["engines"])
        assert status["mode"] == "shadow"
        running.agent.close()
        assert running.process.wait(PATIENCE_S) == 0


def test_the_last_target_has_a_row_too(tmp_path: Path) -> None:
    with controller(tmp_path, max_targets=PAGE_ROWS) as running:
        running.agent.channel.send(targets_message([EngineTarget("e", PAGE_ROWS, None)], []))
        running.agent.next("status", lambda status: "e" in status["engines"])
        running.agent.status(
            lambda status: bool(status["engines"]["e"]["evidence"]["gaps_over"]),
            meanwhile=lambda: running.kernel.count(PAGE_ROWS, chunks=5, gaps_over=3),
        )


def test_it_ends_with_the_agent_before_it_got_anything() -> None:
    process, channel = start_controller()
    channel.close()
    assert process.wait(PATIENCE_S) == 0


def test_it_ends_cleanly_when_it_is_told_to(tmp_path: Path) -> None:
    with controller(tmp_path) as running:
        running.agent.next("status")
        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait(PATIENCE_S) == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_a_signal_to_the_whole_group_does_not_end_it(
    tmp_path: Path, number: signal.Signals
) -> None:
    with controller(tmp_path) as running:
        running.agent.next("status")
        running.process.send_signal(number)
        running.agent.status()
        assert running.process.poll() is None
