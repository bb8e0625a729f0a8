"""Whose client a process is, by its environment."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from controller.mps.clients import DEFAULT_DIRECTORY, are_clients


@contextmanager
def started_with(directory: str | None) -> Iterator[int]:
    environment = {**os.environ, "CUDA_MPS_PIPE_DIRECTORY": directory or ""}
    if directory is None:
        del environment["CUDA_MPS_PIPE_DIRECTORY"]
    with subprocess.Popen(
        (sys.executable, "-S", "-c", "print(flush=True); input()"),
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process.pid
        process.kill()


def test_a_process_is_a_client_of_the_directory_in_its_environment(tmp_path: Path) -> None:
    batch, other = tmp_path / "batch", tmp_path / "other"
    with started_with(str(batch)) as pid:
        assert are_clients([pid], batch) is True
        assert are_clients([pid], other) is False


def test_a_directory_is_the_same_by_another_name(tmp_path: Path) -> None:
    (tmp_path / "batch").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "batch")
    with started_with(f"{tmp_path}/link/") as pid:
        assert are_clients([pid], tmp_path / "batch") is True


def test_a_process_that_says_nothing_is_a_client_of_the_default_daemon(tmp_path: Path) -> None:
    with started_with(None) as unset, started_with("") as empty:
        for pid in (unset, empty):
            assert are_clients([pid], Path(DEFAULT_DIRECTORY)) is True
            assert are_clients([pid], tmp_path) is False


def test_one_client_of_many_processes_is_enough(tmp_path: Path) -> None:
    with started_with(str(tmp_path)) as one, started_with(None) as other:
        assert are_clients([other, one], tmp_path) is True


def test_of_processes_that_are_gone_nothing_is_known(tmp_path: Path) -> None:
    with started_with(str(tmp_path)) as pid:
        pass
    assert are_clients([pid], tmp_path) is None
    assert are_clients([], tmp_path) is None
