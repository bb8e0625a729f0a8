import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.watchdog import Watchdog, period_s


@pytest.fixture
def manager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """What systemd listens on."""
    path = tmp_path / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(str(path))
        sock.setblocking(False)
        monkeypatch.setenv("NOTIFY_SOCKET", str(path))
        yield sock


def heard(manager: socket.socket) -> int:
    """How many signs of life came since the last call."""
    count = 0
    while True:
        try:
            assert manager.recv(64) == b"WATCHDOG=1"
        except BlockingIOError:
            return count
        count += 1


def test_the_period_is_the_managers() -> None:
    assert period_s({"WATCHDOG_USEC": "20000000", "WATCHDOG_PID": "7"}, 7) == 20


@pytest.mark.parametrize(
    "environment",
    [{}, {"WATCHDOG_USEC": "20000000", "WATCHDOG_PID": "8"}, {"WATCHDOG_USEC": "0"}],
    ids=["nobody watches", "another process is watched", "switched off"],
)
def test_who_is_not_watched_has_no_period(environment: dict[str, str]) -> None:
    assert period_s(environment, 7) is None


def test_a_loop_that_turns_says_so_several_times_in_a_period(manager: socket.socket) -> None:
    watchdog = Watchdog(20)
    for tenth in range(200):
        watchdog.tick(1000 + tenth / 10, alive=True, silent_s=0.1)
    assert heard(manager) == 4


def test_a_controller_that_hangs_is_not_called_well(manager: socket.socket) -> None:
    watchdog = Watchdog(20)
    watchdog.tick(1000, alive=True, silent_s=10)
    assert heard(manager) == 0
    watchdog.tick(1001, alive=True, silent_s=0.1)
    assert heard(manager) == 1


def test_a_controller_that_died_is_the_supervisors_business(manager: socket.socket) -> None:
    Watchdog(20).tick(1000, alive=False, silent_s=100)
    assert heard(manager) == 1


def test_without_a_watch_nothing_is_said(manager: socket.socket) -> None:
    Watchdog(None).tick(1000, alive=True, silent_s=0)
    assert heard(manager) == 0
