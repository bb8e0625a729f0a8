import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from controller.limits.guard import start_guard


@contextmanager
def guarding(path: Path, timeout_ms: int = 60_000) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    guard, write_fd = start_guard(path, timeout_ms)
    with guard:
        try:
            yield guard, write_fd
        finally:
            guard.kill()
            try:
                os.close(write_fd)
            except OSError:
                assert guard.wait() == 0, "only a test that ends the guard closes the pipe itself"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "undo.json"


def test_it_ends_when_the_last_holder_of_the_pipe_is_gone(path: Path) -> None:
    with guarding(path) as (guard, write_fd):
        command = (sys.executable, "-c", "input()")
        with subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=(write_fd,)) as controller:
            os.close(write_fd)
            with pytest.raises(subprocess.TimeoutExpired):
                guard.wait(0.3)
            controller.kill()
        assert guard.wait(10) == 0


def test_no_other_child_keeps_it_waiting(path: Path) -> None:
    with guarding(path) as (guard, write_fd):
        command = (sys.executable, "-c", "input()")
        with subprocess.Popen(command, stdin=subprocess.PIPE, close_fds=False) as other:
            os.close(write_fd)
            assert guard.wait(10) == 0
            other.kill()


def test_it_holds_its_standard_files_and_the_pipe_and_nothing_else(path: Path) -> None:
    spare = os.open(os.devnull, os.O_RDONLY)
    try:
        with guarding(path) as (guard, _):
            links = {fd.name: str(fd.readlink()) for fd in Path(f"/proc/{guard.pid}/fd").iterdir()}
    finally:
        os.close(spare)
    assert len(links) == 4
    assert links["0"] == links["1"] == "/dev/null"
    assert [link[:5] for fd, link in links.items() if fd not in ("0", "1", "2")] == ["pipe:"]


def test_it_is_a_session_of_its_own(path: Path) -> None:
    with guarding(path) as (guard, _):
        assert os.getsid(guard.pid) == guard.pid


def test_signals_that_stop_services_do_not_stop_it(path: Path) -> None:
    with guarding(path) as (guard, _):
        for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            guard.send_signal(each)
        with pytest.raises(subprocess.TimeoutExpired):
            guard.wait(0.3)


def test_silence_without_a_list_is_nothing_to_act_on(path: Path) -> None:
    with guarding(path, timeout_ms=10) as (guard, write_fd):
        time.sleep(0.1)
        assert guard.poll() is None
        assert list(path.parent.iterdir()) == []
        os.close(write_fd)
        assert guard.wait(10) == 0


def test_a_list_that_makes_no_sense_does_not_end_it(
    path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path.write_text("{nonsense")
    with guarding(path, timeout_ms=10) as (guard, write_fd):
        deadline = time.monotonic() + 10
        while path.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        assert guard.poll() is None
        os.close(write_fd)
        assert guard.wait(10) == 0
    assert f"silent for 10 ms: could not read undo list '{path}', line 1" in capfd.readouterr().err
    assert Path(f"{path}.corrupt").read_text() == "{nonsense"


def test_a_list_that_cannot_be_read_at_all_is_reported_once_and_not_given_up(
    path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path.mkdir()
    with guarding(path, timeout_ms=10) as (guard, write_fd):
        time.sleep(0.2)
        assert guard.poll() is None
        path.rmdir()
        os.close(write_fd)
        assert guard.wait(10) == 0
    assert capfd.readouterr().err.count(f"could not run undo list '{path}'") == 1


def test_a_guard_that_does_not_start_is_an_error(
    path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    before = set(Path("/proc/self/fd").iterdir())
    with pytest.raises(RuntimeError, match="could not start the guard: it ended with 2"):
        start_guard(path, 0)
    assert "--timeout-ms must be above 0" in capfd.readouterr().err
    assert set(Path("/proc/self/fd").iterdir()) == before
