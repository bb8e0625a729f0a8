"""Starts, watches and ends the controller and the guard.

The controller is a process of its own because a scrape holds Python's interpreter lock for longer
than a tick. The guard undoes every limit if both of us die. If only the controller dies, its
limits are undone here at once, its leases run out in the engines, and it is started again.
"""

import logging
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from agent.backoff import LAST_S, Backoff
from controller.limits.guard import start_guard
from controller.limits.undo import describe, run_undo
from controller.policy import policy_to_json
from controller.policy_model import Mode, Policy
from controller.wire import Channel, Message

GUARD_TIMEOUT_MS: Final = 700
"""Silence after which limits are undone: seven missed heartbeats, and well under a second."""

BACKOFF: Final = Backoff(first_s=0.5, factor=2)
STOP_TIMEOUT_S: Final = 3.0
QUEUES_S: Final = 1.0
"""So often the controller is told what the queues are, though they have not changed."""

_PACKAGES: Final = Path(__file__).parents[1]
_LOG: Final = logging.getLogger("sits.supervisor")


@dataclass(frozen=True, slots=True)
class Handles:
    """What the controller inherits; `edges` is None where the kernel measures nothing."""

    counters: int
    health: int
    edges: int | None
    cpus: int


class Supervisor:
    """Owns the two processes."""

    def __init__(
        self,
        policy: Policy,
        handles: Handles,
        undo_path: Path,
        on_death: Callable[[], None],
        known: Callable[[], Iterable[Mapping[str, Any]]],
    ) -> None:
        """Nothing is started before `tick`; `on_death` is called when a controller died.

        `known` gives the messages that tell a new one what an earlier one learnt and left.
        """
        self._on_death = on_death
        self._known = known
        self._policy = policy
        self._handles = handles
        self._undo_path = undo_path
        self._guard: subprocess.Popen[bytes] | None = None
        self._heartbeat: int | None = None
        self._controller: subprocess.Popen[bytes] | None = None
        self._channel: Channel | None = None
        self._backoff = BACKOFF
        self._guard_at_s = 0.0
        self._targets: Mapping[str, Any] | None = None
        self._queues: Mapping[str, Any] | None = None
        self._queues_at_s = 0.0
        self._mode: Mode = policy.mode
        self.restarts = -1

    def fileno(self) -> int | None:
        """Readable when the controller has said something or is gone; None while none runs."""
        return self._channel.fileno() if self._channel is not None else None

    @property
    def pid(self) -> int | None:
        """The controller's process id while it runs."""
        return self._controller.pid if self._controller is not None else None

    @property
    def started_s(self) -> float:
        """When the last controller was started, on the monotonic clock."""
        return self._backoff.started_s or 0.0

    @property
    def mode(self) -> Mode:
        """The mode the controller is told."""
        return self._mode

    def set_targets(self, message: Mapping[str, Any]) -> None:
        """Tell the controller its targets, if they changed."""
        if message != self._targets:
            self._targets = message
            if self._channel is not None:
                self._channel.send(message)

    def set_policy(self, policy: Policy, afresh: Collection[str] = ()) -> None:
        """Tell the controller, and the next ones, their policy; see `Loop`."""
        self._policy = policy
        if self._channel is not None:
            text = policy_to_json(policy)
            self._channel.send({"type": "policy", "policy": text, "afresh": sorted(afresh)})

    def set_mode(self, mode: Mode, reason: str) -> None:
        """Tell the controller its mode."""
        self._mode = mode
        if self._channel is not None:
            self._channel.send({"type": "mode", "mode": mode, "reason": reason})

    def tell_queues(self, message: Mapping[str, Any], now_s: float) -> None:
        """Tell the controller of the queues, if they changed or it is time to.

        It can do without: nothing is sent before it has read what came before.
        """
        channel = self._channel
        if channel is None or channel.wants_write:
            return
        if message != self._queues or now_s >= self._queues_at_s:
            self._queues, self._queues_at_s = message, now_s + QUEUES_S
            channel.send(message)

    def send(self, message: Mapping[str, Any]) -> bool:
        """Send what must not be lost; False where there is no controller."""
        if self._channel is None:
            return False
        self._channel.send(message)
        return True

    def tick(self) -> None:
        """Start what does not run and is due; find out what died."""
        self._check_guard()
        if self._controller is not None and self._controller.poll() is not None:
            self.controller_died()
        if self._controller is None and time.monotonic() >= self._backoff.due_s:
            self._start()

    def receive(self) -> list[Message]:
        """What the controller says; none once it died."""
        if self._channel is None:
            return []
        try:
            self._channel.flush()
            return self._channel.receive()
        except EOFError:
            self.controller_died()
            return []

    def controller_died(self) -> None:
        """Undo its limits now and plan its restart."""
        if self._controller is None:
            return
        self._close_channel()
        try:
            code = self._controller.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._controller.kill()
            code = self._controller.wait()
        self._controller = None
        self._undo("the controller died")
        self._on_death()
        self._backoff = self._backoff.ended(time.monotonic())
        why = f"signal {-code}" if code < 0 else f"exit status {code}"
        _LOG.warning("controller ended with %s; limits undone, starting again", why)

    def stop(self) -> None:
        """End both: the controller gives everything back, then the guard finds nothing to do."""
        self._close_channel()
        if self._controller is not None:
            try:
                self._controller.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._controller.kill()
                self._controller.wait()
            self._controller = None
        self._undo("the agent stops")
        if self._heartbeat is not None:
            os.close(self._heartbeat)
            self._heartbeat = None
        if self._guard is not None:
            try:
                self._guard.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._guard.kill()
                self._guard.wait()
            self._guard = None

    def _start(self) -> None:
        if self._heartbeat is None:
            return
        ours, theirs = socket.socketpair()
        handles = self._handles
        inherited = {
            "channel": theirs.fileno(),
            "counters": handles.counters,
            "health": handles.health,
            "edges": handles.edges,
            "heartbeat": self._heartbeat,
        }
        fds = [fd for fd in inherited.values() if fd is not None]
        options = [f"--{name}={fd}" for name, fd in inherited.items() if fd is not None]
        command = [sys.executable, "-m", "controller.process", *options, f"--cpus={handles.cpus}"]
        try:
            with theirs:
                self._controller = subprocess.Popen(
                    command, cwd=_PACKAGES, stdin=subprocess.DEVNULL, pass_fds=fds
                )
        except OSError as error:
            ours.close()
            self._backoff = self._backoff.ended(time.monotonic())
            _LOG.warning("controller could not be started: %s, trying again", error)
            return
        self._channel = Channel(ours)
        self._channel.send(
            {
                "type": "config",
                "policy": policy_to_json(self._policy),
                "mode": self._mode,
                "undo_path": str(self._undo_path),
            }
        )
        for message in self._known():
            self._channel.send(message)
        if self._targets is not None:
            self._channel.send(self._targets)
        self._backoff = self._backoff.started(time.monotonic())
        self.restarts += 1

    def _check_guard(self) -> None:
        if self._guard is not None and self._guard.poll() is None:
            return
        if self._guard is not None:
            _LOG.warning("guard ended with %s, starting another", self._guard.returncode)
            assert self._heartbeat is not None
            os.close(self._heartbeat)
            self._heartbeat = None
            self._guard = None
            # the controller holds the dead guard's pipe: it is started again with the new one
            self._close_channel()
            self.controller_died()
        if time.monotonic() < self._guard_at_s:
            return
        try:
            self._guard, self._heartbeat = start_guard(
                self._undo_path,
                GUARD_TIMEOUT_MS,
                self._policy.agent.adapters_dir,
                self._policy.agent.mps_dir,
            )
        except (RuntimeError, OSError) as error:
            # without a guard there is no controller: nothing could undo what it does
            self._guard = None
            self._guard_at_s = time.monotonic() + LAST_S
            _LOG.error("could not start the guard: %s", error)

    def _close_channel(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    def _undo(self, why: str) -> None:
        for line in describe(run_undo(self._undo_path)):
            _LOG.warning("%s: %s", why, line)
