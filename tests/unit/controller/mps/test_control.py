"""What is said to a control daemon, and what each of its failures is called."""

from pathlib import Path

import pytest

from controller.mps import control as module
from controller.mps.control import Control, MpsError, State

from .daemon import Daemon


def state_of(control: Control) -> State:
    with pytest.raises(MpsError) as caught:
        control.read()
    return caught.value.state


def test_what_is_in_force_is_read_for_servers_to_come_and_for_each_that_runs(
    daemon: Daemon,
) -> None:
    daemon.set(default=50, servers={"4242": 40.0, "4343": 100.0})
    assert Control(daemon.directory).read() == {"default": 50, "4242": 40, "4343": 100}


def test_each_place_is_written_by_its_own_command(daemon: Daemon) -> None:
    daemon.set(servers={"4242": 100.0})
    control = Control(daemon.directory)
    control.write("default", 30)
    control.write("4242", 33.5)
    assert daemon.asked == [
        "set_default_active_thread_percentage 30",
        "set_active_thread_percentage 4242 33.5",
    ]
    assert (daemon.default, daemon.servers) == (30, {"4242": 33.5})


def test_a_restarted_daemon_is_another_instance(daemon: Daemon) -> None:
    control = Control(daemon.directory)
    first = control.instance()
    control.write("default", 30)
    assert control.instance() == first
    daemon.start(pid=4001)
    assert control.instance() != first


def test_a_directory_without_a_daemon_is_told_without_asking(daemon: Daemon) -> None:
    daemon.stop()
    with pytest.raises(MpsError, match="no such file") as caught:
        Control(daemon.directory).instance()
    assert caught.value.state is State.NO_DAEMON
    assert daemon.asked == []


def test_a_daemon_that_was_killed_is_no_daemon_by_the_program_s_word(daemon: Daemon) -> None:
    (daemon.directory / "stand_in.json").unlink()
    assert state_of(Control(daemon.directory)) is State.NO_DAEMON


def test_a_machine_without_the_program_is_told(daemon: Daemon, program: Path) -> None:
    program.unlink()
    assert state_of(Control(daemon.directory)) is State.NO_PROGRAM


@pytest.mark.parametrize("said", ["nonsense", "-3", "0", "101", "nan"])
def test_what_is_no_percentage_is_refused(daemon: Daemon, program: Path, said: str) -> None:
    program.write_text(f"#!/bin/sh\necho {said}\n")
    assert state_of(Control(daemon.directory)) is State.REFUSED


def test_a_refusal_has_the_daemon_s_words(daemon: Daemon) -> None:
    daemon.set(refuses={"set_default_active_thread_percentage": "Not allowed here"})
    with pytest.raises(MpsError, match="status 1: Not allowed here") as caught:
        Control(daemon.directory).write("default", 30)
    assert caught.value.state is State.REFUSED


def test_a_daemon_s_words_are_printable(daemon: Daemon) -> None:
    daemon.set(refuses={"get_default_active_thread_percentage": "no\x1b[2J\nNOT A LINE"})
    with pytest.raises(MpsError) as caught:
        Control(daemon.directory).read()
    assert str(caught.value).isprintable()


def test_a_server_that_does_not_say_is_left_out(daemon: Daemon) -> None:
    daemon.set(servers={"4242": 40.0}, refuses={"get_active_thread_percentage": "gone"})
    assert Control(daemon.directory).read() == {"default": 100}


def test_a_program_that_hangs_is_killed_and_told(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon.set(hangs=["get_default_active_thread_percentage"])
    with monkeypatch.context() as hasty:
        hasty.setattr(module, "CALL_TIMEOUT_S", 0.2)
        assert state_of(Control(daemon.directory)) is State.HUNG
    daemon.set(hangs=[])
    assert Control(daemon.directory).read() == {"default": 100}
