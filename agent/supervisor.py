"""Starts, watches and ends the controller and the guard.

The controller is a process of its own because a scrape holds Python's interpreter lock for longer
than a tick. The guard undoes every limit if both of us die. If only the controller dies, its
limits are undone here at once, its leases run out in the engines, and it is started again.
"""

import logging
import subprocess
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from agent.backoff import Backoff
from agent.ending import end_of
from agent.guarding import Guarding
from controller.limits.undo import describe, run_undo
from controller.policy import policy_to_json
from controller.policy_model import Mode, Policy
from controller.start import Handles, Started, hand_over, start_controller
from controller.wire import Channel, Message

BACKOFF: Final = Backoff(first_s=0.5, factor=2)
QUEUES_S: Final = 1.0
"""So often the controller is told what the queues are, though they have not changed."""

_LOG: Final = logging.getLogger("sits.supervisor")


class Supervisor:
    """Owns the two processes."""

    def __init__(
        self,
        policy: Policy,
        undo_path: Path,
        on_death: Callable[[], None],
        known: Callable[[], Iterable[Mapping[str, Any]]],
        first: Started | None = None,
    ) -> None:
        """A guard is started at once, a controller in the first `tick` with `handles`.

        `on_death` is called when a controller died. `known` gives the messages that tell a new one
        what an earlier one learnt and left. `first` is a controller that waits for its handles.
        """
        self.handles: Handles | None = None
        self._on_death = on_death
        self._known = known
        self._policy = policy
        self._first = first
        self._undo_path = undo_path
        self._guarding = Guarding(policy.agent, undo_path)
        self._controller: subprocess.Popen[bytes] | None = None
        self._channel: Channel | None = None
        self._backoff = BACKOFF
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
        if self._guarding.tick():
            # the controller holds the dead guard's pipe: it is started again with the new one
            self._close_channel()
            self.controller_died()
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
        code = end_of(self._controller)
        self._controller = None
        self._undo("the controller died")
        self._on_death()
        self._backoff = self._backoff.ended(time.monotonic())
        why = f"signal {-code}" if code < 0 else f"exit status {code}"
        _LOG.warning("controller ended with %s; limits undone, starting again", why)

    def stop(self) -> None:
        """End both: the controller gives everything back, then the guard finds nothing to do."""
        if self._first is not None:
            self._controller, channel = self._first
            self._channel, self._first = Channel(channel), None
        self._close_channel()
        if self._controller is not None:
            end_of(self._controller)
            self._controller = None
        self._undo("the agent stops")
        self._guarding.stop()

    def _start(self) -> None:
        heartbeat = self._guarding.heartbeat
        if heartbeat is None or self.handles is None:
            return
        try:
            first, self._first = self._first, None
            process, channel = first or start_controller()
            try:
                hand_over(channel, self.handles, heartbeat)
            except OSError:
                channel.close()
                end_of(process)
                raise
        except OSError as error:
            self._backoff = self._backoff.ended(time.monotonic())
            _LOG.warning("controller could not be started: %s, trying again", error)
            return
        self._controller, self._channel = process, Channel(channel)
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

    def _close_channel(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    def _undo(self, why: str) -> None:
        for line in describe(run_undo(self._undo_path)):
            _LOG.warning("%s: %s", why, line)
