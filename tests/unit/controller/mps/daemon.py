"""A stand-in MPS control daemon for tests, and its control program on the path."""

import json
import socket
import stat
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

STAND_IN = Path(__file__).with_name("stand_in_mps_control.py")


def install(directory: Path) -> Path:
    """The stand-in program, as `nvidia-cuda-mps-control` in `directory`."""
    program = directory / "nvidia-cuda-mps-control"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "{STAND_IN}"\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return program


class Daemon:
    """A daemon with its pipe directory, which is made; `pid` tells it from one before it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir()
        self.start(pid=4000)

    def start(self, pid: int, default: float = 100.0) -> None:
        """A new daemon: no server, its own default."""
        self.stop()
        with socket.socket(socket.AF_UNIX) as control:
            control.bind(str(self.directory / "control"))
        (self.directory / "nvidia-cuda-mps-control.pid").write_text(f"{pid}\n")
        self._write({"default": default, "servers": {}, "hangs": [], "refuses": {}, "ignores": []})

    def stop(self) -> None:
        """As after `quit`."""
        for name in ("control", "nvidia-cuda-mps-control.pid", "stand_in.json"):
            (self.directory / name).unlink(missing_ok=True)

    def set(self, **what: Any) -> None:
        """Change its state: `default`, `servers`, `hangs`, `refuses` or `ignores`."""
        self._write({**self.state, **what})

    @property
    def state(self) -> Mapping[str, Any]:
        state: dict[str, Any] = json.loads((self.directory / "stand_in.json").read_text())
        return state

    @property
    def default(self) -> float:
        return float(self.state["default"])

    @property
    def servers(self) -> dict[str, float]:
        return dict(self.state["servers"])

    @property
    def asked(self) -> list[str]:
        """Every command so far."""
        log = self.directory / "stand_in.log"
        return log.read_text().splitlines() if log.exists() else []

    def _write(self, state: Mapping[str, Any]) -> None:
        fresh = self.directory / "stand_in.fresh"
        fresh.write_text(json.dumps(state))
        fresh.replace(self.directory / "stand_in.json")
