"""What the controller says, and where it goes: state, journal, spans, changes by hand."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from agent.changes import Changes
from agent.learnt import LearntFile
from agent.log_lines import log_decision
from agent.recorder import Recorder
from agent.sampler import Sampler
from agent.state import State
from agent.tracing import Tracing

Tell = Callable[[str, str, Mapping[str, Any], int], None]
"""Journals an event: its kind, its subject, the details, and when (CLOCK_MONOTONIC, ns)."""


@dataclass(frozen=True, slots=True)
class Messages:
    """Where the controller's messages go; `tracing` is None while no spans are sent."""

    state: State
    sampler: Sampler
    recorder: Recorder
    changes: Changes
    learnt: LearntFile
    tracing: Tracing | None
    await_outcome: Callable[[Mapping[str, Any]], None]
    event: Tell

    def take(self, message: Mapping[str, Any]) -> None:
        """Take in one message."""
        match message["type"]:
            case "status":
                self._status(message)
            case "decision":
                self.state.count_decision(message["engine"], message["cause"])
                if message["mode"] == "control":
                    knobs = (c["knob"] for c in message["action"] if c["kind"] == "knob")
                    self.state.count_knobs(message["engine"], knobs)
                self.recorder.decision(message)
                log_decision(message)
                self.await_outcome(message)
                if self.tracing is not None:
                    self.tracing.decision(message)
            case "ack":
                self.recorder.ack(message)
                if self.tracing is not None:
                    self.tracing.ack(message)
            case "change" | "by_hand" | "handed_back":
                self.changes.said(message)
            case "learnt":
                self.learnt.take(message["key"], message["learnt"])
            case "inputs":
                self.recorder.inputs(message)
            case "event":
                if message["kind"] == "lease_lost":
                    # a rank's key is its engine's name and its socket's
                    self.state.count_lease_lost(message["subject"].partition("/")[0])
                self.event(
                    message["kind"], message["subject"], message["detail"], message["mono_ns"]
                )

    def _status(self, message: Mapping[str, Any]) -> None:
        self.state.set_status(message)
        for name, engine in message["engines"].items():
            self.sampler.take_loads(name, engine["loads"])
        problems = [
            f"{name}: {engine['admin']['detail']}"
            for name, engine in message["engines"].items()
            if engine["admin"]["state"] not in {"none", "connected"}
        ]
        problems += [
            f"{name}: its figures are in doubt: {engine['doubt']}"
            for name, engine in message["engines"].items()
            if engine["doubt"]
        ]
        problems += [
            f"{each['key']}: '{each['socket']}' was removed: what is connected stays so,"
            " but nobody can connect anew"
            for engine in message["engines"].values()
            for each in engine["admin_sockets"]
            if each["removed"]
        ]
        self.state.set_problems("engines", problems)
