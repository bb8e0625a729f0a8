"""The stand-in for NVIDIA's control program on the path, and a daemon for it to speak to."""

import os
from pathlib import Path

import pytest

from controller.mps import control

from .daemon import Daemon, install


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    # however busy the machine is, only what is to hang does
    monkeypatch.setattr(control, "CALL_TIMEOUT_S", 60)
    monkeypatch.setattr(control, "PROGRAM_TIMEOUT_S", 90)
    directory = tmp_path / "bin"
    directory.mkdir()
    monkeypatch.setenv("PATH", f"{directory}:{os.environ['PATH']}")
    return install(directory)


@pytest.fixture
def daemon(program: Path, tmp_path: Path) -> Daemon:
    return Daemon(tmp_path / "mps-batch")
