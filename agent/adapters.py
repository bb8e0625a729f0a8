"""Starts, watches and ends the adapters that the policy names: one process for each engine.

An adapter ends when its standard input does, so none outlives the agent, however that ends; it
gives the engine its start values back then. One that was killed is started again, and does that
first.
"""

import json
import logging
import math
import os
import subprocess
import sys
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from agent.backoff import Backoff
from controller.kept_file import SUFFIX
from controller.policy_model import Adapter, Policy, adapter_socket

BACKOFF: Final = Backoff(first_s=0.1, factor=3)
"""The first restart comes soon: it brings the start values back."""

STOP_TIMEOUT_S: Final = 3.0
MOST_BYTES: Final = 65536
"""Of what an adapter says at once."""

_PACKAGES: Final = Path(__file__).parents[1]
_LOG: Final = logging.getLogger("sits.adapters")


@dataclass(slots=True, eq=False)
class _Process:
    """One engine's adapter; `process` is None between two runs."""

    name: str
    adapter: Adapter
    state: str = "starting"
    detail: str = ""
    restarts: int = -1
    process: "subprocess.Popen[bytes] | None" = None
    said: bytes = b""
    backoff: Backoff = BACKOFF
    kill_at_s: float | None = field(default=None)
    """When it is to be killed, once it was asked to end."""


class Adapters:
    """The adapters of the policy in force; for the main thread."""

    def __init__(self, policy: Policy) -> None:
        """Bring engines back that an adapter was ended on, and that have none any more."""
        self._dir = policy.agent.adapters_dir
        self._processes: dict[str, _Process] = {}
        self._ending: list[_Process] = []
        self.set_policy(policy)
        self._undo_left(self._processes)

    def set_policy(self, policy: Policy) -> None:
        """Start and end what the policy adds and removes, at the next `tick`."""
        wanted = {each.name: each.adapter for each in policy.engines if each.adapter.kind}
        for name in [name for name in self._processes if name not in wanted]:
            self._ending.append(self._processes.pop(name))
        for name, adapter in wanted.items():
            if name not in self._processes:
                self._processes[name] = _Process(name, adapter)

    def tick(self) -> None:
        """Start what does not run and is due, hear what they say, find out what died."""
        now_s = time.monotonic()
        for each in self._processes.values():
            if each.process is None and now_s >= each.backoff.due_s:
                self._start(each)
            elif each.process is not None:
                code = each.process.poll()
                self._hear(each)
                if code is not None:
                    self._died(each, code)
        self._ending = [each for each in self._ending if not self._ended(each, now_s)]

    @property
    def due_s(self) -> float:
        """When the next is to be started, on the monotonic clock; infinity while all run."""
        waiting = (each for each in self._processes.values() if each.process is None)
        return min((each.backoff.due_s for each in waiting), default=math.inf)

    def status(self) -> Mapping[str, Mapping[str, Any]]:
        """How each adapter stands, by the name of its engine."""
        return {
            each.name: {
                "kind": each.adapter.kind,
                "state": each.state,
                "detail": each.detail,
                "pid": each.process.pid if each.process is not None else None,
                "restarts": max(0, each.restarts),
            }
            for each in self._processes.values()
        }

    def stop(self) -> None:
        """End all of them; what one that had to be killed left behind is undone."""
        self._ending += self._processes.values()
        self._processes = {}
        killed = False
        ends_s = time.monotonic() + STOP_TIMEOUT_S
        for each in self._ending:
            self._end(each)
        for each in self._ending:
            if each.process is None:
                continue
            try:
                each.process.wait(max(0, ends_s - time.monotonic()))
            except subprocess.TimeoutExpired:
                each.process.kill()
                each.process.wait()
                killed = True
            self._close(each)
        self._ending = []
        if killed:
            self._undo_left()

    def _start(self, each: _Process) -> None:
        adapter, place = each.adapter, self._dir / each.name
        options = [
            f"--admin-socket={adapter_socket(self._dir, each.name)}",
            f"--page={place}.page",
            f"--undo-file={place}{SUFFIX}",
            *(f"--{key.replace('_', '-')}={value}" for key, value in adapter.settings().items()),
        ]
        command = [sys.executable, "-m", "controller.adapters.command", str(adapter.kind)]
        try:
            self._dir.mkdir(parents=True, exist_ok=True)
            each.process = subprocess.Popen(
                [*command, "--supervised", *options],
                cwd=_PACKAGES,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
        except OSError as error:
            self._wait(each, f"could not be started: {error}")
            return
        assert each.process.stdout is not None
        os.set_blocking(each.process.stdout.fileno(), False)
        each.backoff, each.said = each.backoff.started(time.monotonic()), b""
        each.restarts += 1

    def _hear(self, each: _Process) -> None:
        assert each.process is not None
        assert each.process.stdout is not None
        with suppress(BlockingIOError):
            each.said += os.read(each.process.stdout.fileno(), MOST_BYTES)
        *lines, each.said = each.said.split(b"\n")
        for line in lines:
            said = json.loads(line)
            if (said["state"], said["detail"]) != (each.state, each.detail):
                _LOG.info("adapter of %s %s: %s", each.name, said["state"], said["detail"])
            each.state, each.detail = said["state"], said["detail"]

    def _died(self, each: _Process, code: int) -> None:
        self._close(each)
        self._wait(each, f"ended with {f'signal {-code}' if code < 0 else f'exit status {code}'}")

    def _wait(self, each: _Process, why: str) -> None:
        each.state, each.detail = "down", why
        each.backoff = each.backoff.ended(time.monotonic())
        _LOG.warning("adapter of %s %s, starting again", each.name, why)

    def _ended(self, each: _Process, now_s: float) -> bool:
        """Whether one that was asked to end has; it is killed when that takes too long."""
        if each.process is None:
            return True
        if each.kill_at_s is None:
            self._end(each)
            each.kill_at_s = now_s + STOP_TIMEOUT_S
        if each.process.poll() is None:
            if now_s >= each.kill_at_s:
                each.process.kill()
            return False
        self._close(each)
        self._undo_left(self._processes)
        return True

    def _end(self, each: _Process) -> None:
        if each.process is not None and each.process.stdin is not None:
            each.process.stdin.close()

    def _undo_left(self, but: Collection[str] = ()) -> None:
        for line in undo_left(self._dir, but):
            _LOG.warning("%s", line)

    def _close(self, each: _Process) -> None:
        self._end(each)
        if each.process is not None and each.process.stdout is not None:
            each.process.stdout.close()
        each.process = None


def undo_left(directory: Path, but: Collection[str] = ()) -> Iterator[str]:
    """Bring engines back whose adapters were killed, but for those an adapter will see to.

    What became of each, as it is done.
    """
    if not any(directory.glob(f"*{SUFFIX}")):
        return
    # few nodes have adapters, and it takes a tenth of a start
    from controller.adapters.command import undo_all

    for line, _ in undo_all(directory, but):
        yield line
