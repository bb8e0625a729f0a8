"""When a limit is held, given back, or refused; and that another process can undo it."""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from controller.kept_file import KeptFile, UndoError
from controller.mps import control as control_module
from controller.mps import undo as undo_module
from controller.mps.control import State
from controller.mps.keeping import Asked, Keeping, Shown
from controller.mps.undo import names_left, undo_all, undo_path

from .daemon import Daemon


class Lab:
    """A `Keeping` with its daemon, and what it told."""

    def __init__(self, daemon: Daemon, directory: Path) -> None:
        self.daemon = daemon
        self.directory = directory
        self.told: list[tuple[str, Mapping[str, Any]]] = []
        self.asked = Asked(daemon.directory, 30, "control", {})
        self.keeping = self.another()

    def another(self) -> Keeping:
        return Keeping(
            "batch",
            undo_path(self.directory, "batch"),
            lambda kind, _, detail: self.told.append((kind, detail)),
        )

    def turn(self, **changes: Any) -> Shown:
        self.asked = replace(self.asked, **changes)
        return self.keeping.turn(self.asked)

    @property
    def kinds(self) -> list[str]:
        return [kind for kind, _ in self.told]


@pytest.fixture
def lab(daemon: Daemon, tmp_path: Path) -> Iterator[Lab]:
    made = Lab(daemon, tmp_path / "run")
    yield made
    made.keeping.close()


def test_in_control_it_is_held_and_outside_it_is_given_back(lab: Lab) -> None:
    lab.daemon.set(servers={"1": 100.0})
    assert lab.turn() == Shown(State.OK, "", 30, 100, 1)
    assert (lab.daemon.default, lab.daemon.servers) == (30, {"1": 30})
    assert lab.turn(mode="observe").state is State.OFF
    assert (lab.daemon.default, lab.daemon.servers) == (100, {"1": 100})
    assert lab.kinds == ["mps_limited", "mps_restored"]
    assert names_left(lab.directory) == []


@pytest.mark.parametrize(("mode", "state"), [("observe", State.OFF), ("shadow", State.SHADOW)])
def test_in_other_modes_nobody_is_asked_for_anything(lab: Lab, mode: str, state: State) -> None:
    shown = lab.turn(mode=mode)
    assert (shown.state, shown.percent) == (state, None)
    assert lab.daemon.asked == []
    assert lab.kinds == (["mps_would_limit"] if state is State.SHADOW else [])


def test_a_server_that_starts_later_has_the_limit_too(lab: Lab) -> None:
    lab.turn()
    lab.daemon.set(servers={"1": 100.0})
    assert lab.turn().servers == 1
    assert lab.daemon.servers == {"1": 30}


def test_a_daemon_that_allows_less_already_is_left_alone(lab: Lab) -> None:
    lab.daemon.set(default=20)
    assert lab.turn() == Shown(State.OK, "", 20, 20, 0)
    assert not [command for command in lab.daemon.asked if command.startswith("set_")]


def test_another_percentage_begins_anew_with_the_daemon_s_own(lab: Lab) -> None:
    lab.turn()
    assert lab.turn(percent=60) == Shown(State.OK, "", 60, 100, 0)
    assert lab.daemon.default == 60
    lab.turn(mode="shadow")
    assert lab.daemon.default == 100


def test_an_engine_that_is_a_client_gets_no_limit(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.turn()
    assert lab.daemon.default == 30
    with subprocess.Popen(
        (sys.executable, "-S", "-c", "print(flush=True); input()"),
        env={**os.environ, "CUDA_MPS_PIPE_DIRECTORY": str(lab.daemon.directory)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as engine:
        assert engine.stdout is not None
        engine.stdout.readline()
        shown = lab.turn(engines={"chat": frozenset({engine.pid})})
        engine.kill()
    assert shown.state is State.ENGINE
    assert "engine chat is a client" in shown.detail
    assert lab.daemon.default == 100
    # it comes back as what it was
    assert lab.turn(engines={"chat": frozenset()}).state is State.ENGINE
    assert lab.kinds == ["mps_limited", "mps_restored", "mps_refused"]


def test_an_engine_that_nobody_saw_running_could_be_a_client(lab: Lab) -> None:
    shown = lab.turn(engines={"chat": frozenset()})
    assert shown.state is State.WAITING
    assert lab.daemon.asked == []
    # this process is a client of another daemon
    assert lab.turn(engines={"chat": frozenset({os.getpid()})}).state is State.OK


def test_somebody_else_s_value_is_left_until_the_mode_changes(lab: Lab) -> None:
    lab.turn()
    lab.daemon.set(default=55)
    assert lab.turn().state is State.FOREIGN
    assert lab.turn().state is State.FOREIGN
    assert lab.daemon.default == 55
    assert lab.kinds == ["mps_limited", "foreign_write", "mps_restored"]
    lab.turn(mode="observe")
    assert lab.turn(mode="control") == Shown(State.OK, "", 30, 55, 0)


def test_a_restarted_daemon_is_limited_again(lab: Lab) -> None:
    lab.turn()
    lab.daemon.start(pid=4001)
    assert lab.turn().state is State.OK
    assert lab.daemon.default == 30
    assert lab.kinds == ["mps_limited", "mps_limited"]


def test_without_a_daemon_it_waits_for_one(lab: Lab) -> None:
    lab.daemon.stop()
    assert lab.turn().state is State.NO_DAEMON
    lab.daemon.start(pid=4001)
    assert lab.turn().state is State.OK


def test_a_refusal_is_told_once_and_leaves_nothing_behind(lab: Lab) -> None:
    lab.daemon.set(
        servers={"1": 100.0}, refuses={"set_active_thread_percentage": "static partitioning"}
    )
    shown = lab.turn()
    assert shown.state is State.REFUSED
    assert "static partitioning" in shown.detail
    assert (lab.daemon.default, lab.daemon.servers) == (100, {"1": 100})
    count = len(lab.daemon.asked)
    assert lab.turn() == shown
    assert len(lab.daemon.asked) == count
    assert lab.kinds.count("mps_refused") == 1


def test_what_hangs_is_put_back_once_it_does_not(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    lab.turn()
    lab.daemon.set(hangs=["get_default_active_thread_percentage"])
    with monkeypatch.context() as hasty:
        hasty.setattr(control_module, "CALL_TIMEOUT_S", 0.3)
        assert lab.turn().state is State.HUNG
        assert lab.turn(mode="observe").state is State.HUNG
    assert names_left(lab.directory) == ["batch"]
    lab.daemon.set(hangs=[])
    assert lab.turn().state is State.OFF
    assert lab.daemon.default == 100


def test_what_a_killed_agent_left_another_one_puts_back(lab: Lab) -> None:
    lab.turn()
    lab.keeping.close()
    assert [done for _, done in undo_all(lab.directory)] == [True]
    assert lab.daemon.default == 100
    assert names_left(lab.directory) == []
    assert list(undo_all(lab.directory)) == []


def test_the_next_start_puts_back_what_was_left_even_if_nothing_is_asked_for(lab: Lab) -> None:
    lab.turn()
    lab.keeping.close()
    lab.keeping = lab.another()
    lab.keeping.turn(None)
    assert lab.keeping.done
    assert lab.daemon.default == 100


def test_while_the_agent_runs_nobody_else_undoes_it(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(undo_module, "LOCK_WAIT_S", 0.0)
    lab.turn()
    ((line, done),) = undo_all(lab.directory)
    assert not done
    assert "an agent that runs" in line
    assert lab.daemon.default == 30


def test_a_control_program_that_outlives_a_killed_agent_keeps_the_lock(lab: Lab) -> None:
    """What it was told may still be done, so nothing may be undone before it has ended."""
    lab.daemon.set(hangs=["set_default_active_thread_percentage"])
    code = (
        "import sys; from pathlib import Path; from controller.mps import control;"
        "from controller.mps.keeping import Asked, Keeping;"
        "control.CALL_TIMEOUT_S = control.PROGRAM_TIMEOUT_S = 600;"
        "asked = Asked(Path(sys.argv[2]), 30, 'control', {});"
        "Keeping('batch', Path(sys.argv[1]), print).turn(asked)"
    )
    path = undo_path(lab.directory, "batch")
    command = (sys.executable, "-c", code, str(path), str(lab.daemon.directory))
    with subprocess.Popen(command) as agent:
        while not any(each.startswith("set_") for each in lab.daemon.asked):
            assert agent.poll() is None
        programs = psutil.Process(agent.pid).children(recursive=True)
        agent.kill()
    assert programs
    with pytest.raises(UndoError, match="holds it"):
        KeptFile(path, "somebody else")
    for each in programs:
        each.kill()
    lab.daemon.set(hangs=[])
    assert [done for _, done in undo_all(lab.directory)] == [True]
    assert names_left(lab.directory) == []


def test_a_program_that_hangs_ends_though_who_started_it_was_killed(lab: Lab) -> None:
    lab.daemon.set(hangs=["set_default_active_thread_percentage"])
    code = (
        "import sys; from pathlib import Path; from controller.mps import control;"
        "control.CALL_TIMEOUT_S = 600; control.Control(Path(sys.argv[1])).write('default', 30)"
    )
    command = (sys.executable, "-c", code, str(lab.daemon.directory))
    with subprocess.Popen(command) as agent:
        while not (programs := psutil.Process(agent.pid).children(recursive=True)):
            assert agent.poll() is None
        agent.kill()
    assert not psutil.wait_procs(programs, 60)[1]
