"""Keeps a guard on watch: what undoes every limit if the agent and the controller both die."""

import logging
import os
import subprocess
import time
from pathlib import Path
from typing import Final

from agent.backoff import LAST_S
from agent.ending import end_of
from controller.limits.guard import await_guard, launch_guard
from controller.policy_model import Agent

GUARD_TIMEOUT_MS: Final = 700
"""Silence after which limits are undone: seven missed heartbeats, and well under a second."""

_LOG: Final = logging.getLogger("sits.guarding")


class Guarding:
    """Owns the guard; one is started at once, and has its time until the first `tick`."""

    def __init__(self, agent: Agent, undo_path: Path) -> None:
        self._agent = agent
        self._undo_path = undo_path
        self._guard: subprocess.Popen[bytes] | None = None
        self._write_fd = -1
        self._again_at_s = 0.0
        self.heartbeat: int | None = None
        """The pipe of a guard that is on watch. Without one there may be no controller: nothing
        could undo what it does."""
        self._launch()

    def tick(self) -> bool:
        """See that there is one; whether the one that was on watch is gone, and its pipe."""
        guard, gone = self._guard, False
        if guard is not None and self.heartbeat is not None and guard.poll() is not None:
            _LOG.warning("guard ended with %s, starting another", guard.returncode)
            self._let_go()
            gone = True
        if self._guard is None and time.monotonic() >= self._again_at_s:
            self._launch()
        if self._guard is not None and self.heartbeat is None:
            self._await(self._guard)
        return gone

    def stop(self) -> None:
        """End it: it runs the list once more, and finds nothing on it."""
        guard = self._guard
        if guard is None:
            return
        self._let_go()
        if guard.stdout is not None:
            guard.stdout.close()
        end_of(guard)

    def _launch(self) -> None:
        agent = self._agent
        try:
            self._guard, self._write_fd = launch_guard(
                self._undo_path, GUARD_TIMEOUT_MS, agent.adapters_dir, agent.mps_dir
            )
        except OSError as error:
            self._failed(error)

    def _await(self, guard: "subprocess.Popen[bytes]") -> None:
        try:
            await_guard(guard)
            self.heartbeat = self._write_fd
        except RuntimeError as error:
            self._let_go()
            self._failed(error)

    def _let_go(self) -> None:
        os.close(self._write_fd)
        self._guard, self.heartbeat = None, None

    def _failed(self, error: Exception) -> None:
        self._again_at_s = time.monotonic() + LAST_S
        _LOG.error("could not start the guard: %s", error)
