"""The threads that keep MPS limits: asked by policy and mode, and ended in time."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from agent import mps as module
from agent.discovery import Found
from agent.mps import MpsLimits, limit_text
from controller.kept_file import KeptFile
from controller.mps.control import Control
from controller.mps.limit import hold
from controller.mps.undo import names_left, undo_path
from controller.policy import parse_policy
from controller.policy_model import Mode, Policy
from tests.unit.controller.mps.daemon import Daemon, install

PATIENCE_S = 60


@pytest.fixture
def daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Daemon:
    (tmp_path / "bin").mkdir()
    install(tmp_path / "bin")
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    return Daemon(tmp_path / "mps-batch")


class Lab:
    def __init__(self, daemon: Daemon, directory: Path) -> None:
        self.daemon, self.directory = daemon, directory
        self.told: list[str] = []
        self.limits = self.another()

    def another(self) -> MpsLimits:
        return MpsLimits(self.directory, lambda kind, *_: self.told.append(kind), lambda: None)

    def policy(self, percent: int = 30) -> Policy:
        return parse_policy(
            f'[mps.batch]\npipe_directory = "{self.daemon.directory}"\n'
            f"active_thread_percent = {percent}\n",
            "test",
        )

    def until(self, true: Callable[[], object], policy: Policy, mode: Mode = "control") -> Any:
        ends = time.monotonic() + PATIENCE_S
        while not (value := true()):
            assert time.monotonic() < ends, self.limits.status()
            self.limits.tick(policy, mode, ())
            time.sleep(0.01)
        return value

    def state(self) -> list[str]:
        return [each["state"] for each in self.limits.status()]


@pytest.fixture
def lab(daemon: Daemon, tmp_path: Path) -> Iterator[Lab]:
    made = Lab(daemon, tmp_path / "run")
    yield made
    made.daemon.set(hangs=[])
    made.limits.stop()


def test_policy_and_mode_are_followed_at_once(lab: Lab) -> None:
    lab.until(lambda: lab.state() == ["ok"], lab.policy())
    assert lab.daemon.default == 30
    assert limit_text(lab.limits.status()[0]) == "clients that start now get 30% at the most"
    lab.until(lambda: lab.daemon.default == 100, lab.policy(), "shadow")
    lab.until(lambda: lab.daemon.default == 40, lab.policy(40))
    lab.until(lambda: lab.limits.status() == [], Policy())
    assert lab.daemon.default == 100
    assert lab.told[-1] == "mps_restored"


def test_at_the_end_everything_is_as_it_was(lab: Lab) -> None:
    lab.until(lambda: lab.state() == ["ok"], lab.policy())
    lab.limits.stop()
    assert lab.daemon.default == 100
    assert names_left(lab.directory) == []
    assert lab.told == ["mps_limited", "mps_restored"]


def test_what_an_earlier_run_left_is_put_back_though_no_policy_names_it(lab: Lab) -> None:
    lab.directory.mkdir()
    with closing(KeptFile(undo_path(lab.directory, "batch"), "the test")) as file:
        hold(Control(lab.daemon.directory), 30, None, lambda held: file.save(asdict(held)))
    assert lab.daemon.default == 30
    lab.limits = lab.another()
    lab.until(lambda: lab.daemon.default == 100, Policy())
    lab.until(lambda: lab.limits.status() == [], Policy())


def test_a_program_that_hangs_holds_up_neither_tick_nor_end(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.daemon.set(hangs=["get_default_active_thread_percentage"])
    monkeypatch.setattr(module, "STOP_TIMEOUT_S", 0.2)
    lab.until(lambda: lab.daemon.asked, lab.policy())
    lab.limits.tick(lab.policy(), "control", ())
    lab.until(lambda: lab.state() == ["hung"], lab.policy())
    assert "hung" in lab.limits.problems[0]
    lab.until(lambda: lab.told == ["mps_refused"], lab.policy())


def test_an_engine_is_waited_for(lab: Lab) -> None:
    policy = parse_policy(
        "[engines.chat]\nport = 1\n[mps.batch]\n"
        f'pipe_directory = "{lab.daemon.directory}"\nactive_thread_percent = 30\n',
        "test",
    )
    lab.until(lambda: lab.state() == ["waiting"], policy)
    ends = time.monotonic() + PATIENCE_S
    while lab.state() != ["ok"]:
        assert time.monotonic() < ends
        lab.limits.tick(policy, "control", (Found("chat", frozenset({os.getpid()})),))
        time.sleep(0.01)
