"""The supervisor with the real controller and the real guard, over counters that stay zero."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from agent.supervisor import Supervisor
from bpf.layout import COUNTERS, HEALTH
from controller.policy import parse_policy
from controller.policy_model import Engine, Match
from controller.start import Handles, start_controller
from controller.wire import EngineTarget, targets_message

CPUS = 1
MAX_TARGETS = 64
"""So many that the counters fill whole pages: a reader one row short finds nothing behind them."""

LEARNT: dict[str, Any] = {"type": "learnt", "engines": {}}
POLICY = parse_policy(
    f'mode = "shadow"\n[agent]\nmax_targets = {MAX_TARGETS}\n[engines.chat]\nport = 8000\n', "test"
)

CODE = Engine("code", Match("port", 8001))


@pytest.fixture
def handles() -> Iterator[Handles]:
    page = os.sysconf("SC_PAGESIZE")
    fds = []
    for name, size in (("counters", (MAX_TARGETS + 1) * COUNTERS.size), ("health", HEALTH.size)):
        fds.append(os.memfd_create(name))
        os.truncate(fds[-1], -(-size // page) * page)
    yield Handles(fds[0], fds[1], None, CPUS)
    for fd in fds:
        os.close(fd)


@pytest.fixture
def deaths() -> list[int]:
    """One entry for each controller that died."""
    return []


@pytest.fixture
def supervisor(tmp_path: Path, handles: Handles, deaths: list[int]) -> Iterator[Supervisor]:
    made = Supervisor(POLICY, tmp_path / "undo.json", lambda: deaths.append(1), lambda: [LEARNT])
    made.handles = handles
    yield made
    made.stop()
    assert children() == []


def children() -> list[psutil.Process]:
    """Controllers and guards that this process has."""
    return [child for child in psutil.Process().children() if "controller." in _command(child)]


def guards() -> list[psutil.Process]:
    return [child for child in children() if "limits.guard" in _command(child)]


def _command(process: psutil.Process) -> str:
    try:
        # one that has only just been started has none for a moment
        while not (words := process.cmdline()) and process.status() != psutil.STATUS_ZOMBIE:
            time.sleep(0.001)
    except psutil.Error:
        return ""
    return " ".join(words)


def kill(supervisor: Supervisor, number: signal.Signals = signal.SIGKILL) -> None:
    """Signal its controller, which must be there: 0 would be this whole process group."""
    assert supervisor.pid is not None
    os.kill(supervisor.pid, number)


def messages(
    supervisor: Supervisor, enough: Callable[[list[dict[str, Any]]], bool]
) -> list[dict[str, Any]]:
    """What the controller says while the supervisor runs, until it is `enough`."""
    said: list[dict[str, Any]] = []
    deadline = time.monotonic() + 20
    while not enough(said):
        assert time.monotonic() < deadline, said
        supervisor.tick()
        said += supervisor.receive()
        time.sleep(0.01)
    return said


def status(supervisor: Supervisor, **fields: Any) -> dict[str, Any]:
    """The controller's next status with these fields."""

    def fits(message: dict[str, Any]) -> bool:
        return message["type"] == "status" and fields.items() <= message.items()

    said = messages(supervisor, lambda said: any(map(fits, said)))
    return next(filter(fits, said))


def test_the_controller_gets_its_policy_mode_and_targets(supervisor: Supervisor) -> None:
    supervisor.set_targets(targets_message([EngineTarget("chat", 1, None)], []))
    assert list(status(supervisor, mode="shadow")["engines"]) == ["chat"]
    assert supervisor.restarts == 0
    assert len(guards()) == 1


def test_the_last_row_there_is_can_be_read(supervisor: Supervisor, deaths: list[int]) -> None:
    status(supervisor)
    supervisor.set_targets(targets_message([EngineTarget("chat", MAX_TARGETS, None)], []))
    messages(
        supervisor,
        lambda said: deaths != [] or any(m["type"] == "status" and m["engines"] for m in said),
    )
    assert deaths == []


def test_the_controller_is_told_of_queues_and_the_next_one_too_though_they_stay_the_same(
    supervisor: Supervisor,
) -> None:
    queues = {"accept_fill": 0.5, "unsent": 0, "blocked": 0}

    def told() -> bool:
        message = {"type": "queues", "engines": {"chat": queues}}
        supervisor.tell_queues(message, time.monotonic())
        pressure = status(supervisor)["engines"]["chat"]["backpressure"]
        return bool(pressure["accept"] == 0.5)

    status(supervisor)
    supervisor.set_targets(targets_message([EngineTarget("chat", 1, None)], []))
    messages(supervisor, lambda said: any(m["type"] == "status" and m["engines"] for m in said))
    messages(supervisor, lambda _: told())
    kill(supervisor)
    messages(supervisor, lambda _: supervisor.restarts == 1)
    messages(supervisor, lambda said: any(m["type"] == "status" and m["engines"] for m in said))
    messages(supervisor, lambda _: told())


def test_a_change_of_policy_reaches_the_controller_and_the_next_one_too(
    supervisor: Supervisor,
) -> None:
    def both() -> bool:
        fields = status(supervisor)["engines"]
        return set(fields) == {"chat", "code"}

    status(supervisor)
    supervisor.set_policy(replace(POLICY, engines=(*POLICY.engines, CODE)))
    targets = [EngineTarget("chat", 1, None), EngineTarget("code", 2, None)]
    supervisor.set_targets(targets_message(targets, []))
    messages(supervisor, lambda _: both())
    kill(supervisor)
    messages(supervisor, lambda _: supervisor.restarts == 1)
    messages(supervisor, lambda _: both())


def test_a_change_of_mode_reaches_the_controller_and_the_next_one_too(
    supervisor: Supervisor,
) -> None:
    status(supervisor, mode="shadow")
    supervisor.set_mode("control", "test")
    status(supervisor, mode="control")
    kill(supervisor)
    messages(supervisor, lambda _: supervisor.restarts == 1)
    status(supervisor, mode="control")


def test_a_dead_controller_is_told_of_once_and_started_again_with_its_targets(
    supervisor: Supervisor, deaths: list[int]
) -> None:
    supervisor.set_targets(targets_message([EngineTarget("chat", 1, None)], []))
    status(supervisor)
    first = supervisor.pid
    kill(supervisor)
    messages(supervisor, lambda _: deaths != [])
    assert supervisor.pid is None
    assert list(status(supervisor)["engines"]) == ["chat"]
    assert supervisor.pid not in {None, first}
    assert (deaths, supervisor.restarts) == ([1], 1)


def test_controllers_that_die_at_once_are_started_ever_more_slowly(
    supervisor: Supervisor,
) -> None:
    starts = []
    for _ in range(3):
        messages(supervisor, lambda _: supervisor.pid is not None)
        starts.append(time.monotonic())
        kill(supervisor)
        messages(supervisor, lambda _: supervisor.pid is None)
    assert starts[1] - starts[0] >= 0.5
    assert starts[2] - starts[1] >= 1.0


def test_a_dead_guard_is_replaced_and_the_controller_with_it(supervisor: Supervisor) -> None:
    status(supervisor)
    (guard,), controller = guards(), supervisor.pid
    guard.kill()
    messages(supervisor, lambda _: supervisor.restarts == 1)
    status(supervisor)
    (fresh,) = guards()
    assert fresh.pid != guard.pid
    assert supervisor.pid != controller


def test_what_a_dead_controller_left_is_undone(supervisor: Supervisor, tmp_path: Path) -> None:
    status(supervisor)
    # an entry that no cgroup mount allows is a problem that shows the list was run
    (tmp_path / "undo.json").write_text('[\n{"file": "/nowhere"}\n]\n')
    kill(supervisor)
    messages(supervisor, lambda _: supervisor.pid is None)
    assert (tmp_path / "undo.json.corrupt").exists()


def test_the_end_takes_a_stopped_controller_with_it(supervisor: Supervisor) -> None:
    status(supervisor)
    kill(supervisor, signal.SIGSTOP)
    supervisor.stop()
    assert children() == []


def test_ending_what_never_began_is_nothing(supervisor: Supervisor) -> None:
    supervisor.stop()
    assert supervisor.pid is None


def test_a_controller_that_cannot_be_started_is_tried_again(
    tmp_path: Path, handles: Handles
) -> None:
    none = replace(handles, counters=2**30)
    made = Supervisor(POLICY, tmp_path / "undo.json", lambda: None, list)
    made.handles = none
    try:
        made.tick()
        assert (made.pid, made.fileno(), made.restarts) == (None, None, -1)
        made.handles = handles
        status(made)
    finally:
        made.stop()


def test_no_controller_runs_before_there_are_handles_and_a_guard_does(tmp_path: Path) -> None:
    made = Supervisor(POLICY, tmp_path / "undo.json", lambda: None, list)
    try:
        assert len(guards()) == 1
        made.tick()
        assert (made.pid, len(guards())) == (None, 1)
    finally:
        made.stop()


def test_a_controller_that_was_started_before_is_the_first(
    tmp_path: Path, handles: Handles
) -> None:
    first = start_controller()
    made = Supervisor(POLICY, tmp_path / "undo.json", lambda: None, list, first)
    made.handles = handles
    try:
        status(made)
        assert (made.pid, made.restarts) == (first[0].pid, 0)
    finally:
        made.stop()
    assert children() == []


def test_one_that_died_before_it_was_needed_is_replaced(tmp_path: Path, handles: Handles) -> None:
    first = start_controller()
    first[0].kill()
    first[0].wait()
    made = Supervisor(POLICY, tmp_path / "undo.json", lambda: None, list, first)
    made.handles = handles
    try:
        status(made)
        assert (made.pid != first[0].pid, made.restarts) == (True, 1)
    finally:
        made.stop()


def test_the_end_takes_a_controller_with_it_that_never_got_its_handles(tmp_path: Path) -> None:
    process, channel = start_controller()
    Supervisor(POLICY, tmp_path / "undo.json", lambda: None, list, (process, channel)).stop()
    assert process.returncode == 0
    assert children() == []
