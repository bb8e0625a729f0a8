"""Writes the journal from a thread of its own: a disk that stalls must not stall the daemon."""

import queue
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final

from controller.journal import Change, Decision, Event, Journal

MAX_QUEUED: Final = 10_000
MAX_QUEUED_INPUTS: Final = 256
"""With more than this queued, inputs are dropped: they are large, and only for replay."""

MAX_KNOWN: Final = 2_000
"""Decisions to which an answer, inputs or an outcome may still come; older ones keep what they
have."""

CLOSE_S: Final = 2.0
"""How long the end waits for a disk that does not take what is queued."""


class Recorder:
    """Takes the controller's messages in any thread and writes them in order.

    `dropped` counts what found the queue full; rows the journal itself could not write are in its
    own count.
    """

    def __init__(self, journal: Journal) -> None:
        """Start the thread; `close` ends it and closes the journal."""
        self.journal = journal
        self.dropped = 0
        self._give_up_s = float("inf")
        self._rows: OrderedDict[int, int] = OrderedDict()
        self._unanswered: set[int] = set()
        self._queue: queue.Queue[Callable[[], None] | None] = queue.Queue(MAX_QUEUED)
        self._thread = threading.Thread(target=self._run, name="journal", daemon=True)
        self._thread.start()

    def decision(self, message: Mapping[str, Any]) -> None:
        """Write a `decision` message of the controller."""
        self._put(lambda: self._add(message))

    def ack(self, message: Mapping[str, Any]) -> None:
        """Write an `ack` message of the controller."""
        self._put(lambda: self._acknowledge(message))

    def outcome(self, tag: int, outcome: Mapping[str, Any]) -> None:
        """Write what came of the decision `tag`."""
        self._put(lambda: self._set(self.journal.set_outcome, tag, outcome))

    def inputs(self, message: Mapping[str, Any]) -> None:
        """Write an `inputs` message of the controller: of a decision, or with tag 0 a sample."""
        tag, inputs = message["tag"], message["inputs"]
        if self._queue.qsize() >= MAX_QUEUED_INPUTS:
            self.dropped += 1
        elif tag:
            self._put(lambda: self._set(self.journal.set_inputs, tag, inputs))
        else:
            self._put(lambda: self._add_sample(message["mono_ns"], message["engine"], inputs))

    def change(
        self, change_id: int, stage: str, detail: Mapping[str, Any], then: Callable[[str], None]
    ) -> None:
        """Write how far a change by hand is; `then` is told in another thread why it failed, if so.

        It may wait for the disk, behind all that was said before.
        """
        if not self._put(lambda: then(self.journal.put_change(change_id, stage, detail))):
            then("the journal can't keep up")

    def event(self, event: Event) -> None:
        """Write a change of state."""
        self._put(lambda: self._add_event(event))

    def forget_open(self) -> None:
        """A controller died: its decisions get no answer any more, and tags begin again."""
        self._put(self._lose_open)

    def close(self) -> None:
        """Write what is queued, as far as the disk takes it in `CLOSE_S`; close the journal."""
        self._give_up_s = time.monotonic() + CLOSE_S
        with suppress(queue.Full):
            self._queue.put(None, timeout=2 * CLOSE_S)
        self._thread.join(2 * CLOSE_S)
        if not self._thread.is_alive():
            self.journal.close()

    def _put(self, job: Callable[[], None]) -> bool:
        try:
            self._queue.put_nowait(job)
        except queue.Full:
            self.dropped += 1
            return False
        return True

    def _run(self) -> None:
        while (job := self._queue.get()) is not None:
            if time.monotonic() < self._give_up_s:
                job()
            else:
                self.dropped += 1

    def _add(self, message: Mapping[str, Any]) -> None:
        action = tuple(
            Change(c["kind"], c["target"], c["knob"], c["from"], c["to"]) for c in message["action"]
        )
        row = self.journal.add_decision(
            Decision(
                mono_ns=message["mono_ns"],
                engine=message["engine"],
                mode=message["mode"],
                cause=message["cause"],
                action=action,
                signals=message["signals"],
                reason=message["reason"],
                ack=message["ack"],
            )
        )
        self._rows[message["tag"]] = row
        if message["ack"] == "pending":
            self._unanswered.add(message["tag"])
        if len(self._rows) > MAX_KNOWN:
            tag, _ = self._rows.popitem(last=False)
            self._unanswered.discard(tag)

    def _acknowledge(self, message: Mapping[str, Any]) -> None:
        if message["tag"] not in self._unanswered:
            return
        # `applied` may follow `pending`: the time that counts is the answer's
        row = self._rows[message["tag"]]
        self.journal.set_ack(row, message["ack"], message["ack_us"] or None)
        if message["ack"] != "pending":
            self._unanswered.discard(message["tag"])

    def _set(
        self,
        write: Callable[[int, Mapping[str, Any]], None],
        tag: int,
        what: Mapping[str, Any],
    ) -> None:
        row = self._rows.get(tag)
        if row is not None:
            write(row, what)

    def _add_event(self, event: Event) -> None:
        self.journal.add_event(event)

    def _add_sample(self, mono_ns: int, engine: str, inputs: Mapping[str, Any]) -> None:
        self.journal.add_sample(mono_ns, engine, inputs)

    def _lose_open(self) -> None:
        for tag in self._unanswered:
            self.journal.set_ack(self._rows[tag], "lost")
        self._unanswered.clear()
        self._rows.clear()
