"""What the journal holds: decisions and events, and how each becomes a row and comes back."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

Ack = Literal["pending", "applied", "refused", "lost", "shadow"]
Value = float | int | str | None

OPERATOR: Final = "operator"
"""The cause of what somebody decided by hand."""

MAX_TEXT: Final = 4096
"""Characters kept of a text."""
MAX_JSON_CHARS: Final = 256 * 1024
"""Signals, detail or outcome beyond this are replaced by a note of their size."""

DECISION_COLUMNS: Final = (
    "wall_ns, mono_ns, boot_id, engine, mode, cause, action, signals, reason, ack, ack_us, outcome"
)
EVENT_COLUMNS: Final = "wall_ns, mono_ns, boot_id, kind, subject, detail"
SAMPLE_COLUMNS: Final = "wall_ns, mono_ns, boot_id, engine, inputs"


@dataclass(frozen=True, slots=True)
class Change:
    """One value that a decision changes: a knob of an engine, or a file of a cgroup."""

    kind: str
    target: str
    knob: str
    old: Value
    new: Value

    def as_dict(self) -> dict[str, Value]:
        """The change for JSON, values as `from` and `to`."""
        return {
            "kind": self.kind,
            "target": self.target,
            "knob": self.knob,
            "from": self.old,
            "to": self.new,
        }


@dataclass(frozen=True, slots=True)
class Decision:
    """What was decided at `mono_ns`, on what signals, and what came of it.

    `ack` is `pending` until the engine or the kernel has answered, `shadow` where nothing was
    sent; `ack_us` is how long the answer took. `outcome` is None where nobody saw what came of it.
    """

    mono_ns: int
    engine: str
    mode: str
    cause: str
    action: tuple[Change, ...] = ()
    signals: Mapping[str, Any] = field(default_factory=dict)
    reason: str = ""
    ack: Ack = "pending"
    ack_us: int | None = None
    outcome: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Event:
    """A change of state at `mono_ns`.

    `kind` is one of start, stop, mode, engine_seen, engine_lost, engine_restarted, undo,
    engine_changed, foreign_write, lease_lost, lease_held, lease_given_up, set_refused, stats_stale,
    stats_nonsense, stats_back, loop_paused, change_resumed, change_over, hand_lost, journal_moved,
    injected, or a later addition; `subject` is what it is about.
    """

    mono_ns: int
    kind: str
    subject: str
    detail: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class OpenChange:
    """A change by hand that is not over: how far it was, and what is needed to take it up."""

    id: int
    stage: str
    detail: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Recorded:
    """What the controller had to decide on about `engine`, for replay.

    `decision` is what it then decided, None where this is one of the samples taken once a second.
    """

    wall_ns: int
    engine: str
    inputs: Mapping[str, Any]
    decision: Decision | None = None


@dataclass(frozen=True, slots=True)
class DecisionRow:
    """A decision as journalled. `wall_ns` is Unix time of `decision.mono_ns`."""

    id: int
    wall_ns: int
    boot_id: str
    decision: Decision

    def as_dict(self) -> dict[str, Any]:
        """The row for JSON, under the names of the table's columns."""
        item = self.decision
        return {
            "id": self.id,
            "wall_ns": self.wall_ns,
            "mono_ns": item.mono_ns,
            "boot_id": self.boot_id,
            "engine": item.engine,
            "mode": item.mode,
            "cause": item.cause,
            "action": [change.as_dict() for change in item.action],
            "signals": dict(item.signals),
            "reason": item.reason,
            "ack": item.ack,
            "ack_us": item.ack_us,
            "outcome": None if item.outcome is None else dict(item.outcome),
        }


@dataclass(frozen=True, slots=True)
class EventRow:
    """An event as journalled. `wall_ns` is Unix time of `event.mono_ns`."""

    id: int
    wall_ns: int
    boot_id: str
    event: Event

    def as_dict(self) -> dict[str, Any]:
        """The row for JSON, under the names of the table's columns."""
        return {
            "id": self.id,
            "wall_ns": self.wall_ns,
            "mono_ns": self.event.mono_ns,
            "boot_id": self.boot_id,
            "kind": self.event.kind,
            "subject": self.event.subject,
            "detail": dict(self.event.detail),
        }


def decision_values(item: Decision, wall_ns: int, boot_id: str) -> tuple[Any, ...]:
    """A decision as the values of `DECISION_COLUMNS`."""
    return (
        wall_ns,
        item.mono_ns,
        boot_id,
        stored_text(item.engine),
        stored_text(item.mode),
        stored_text(item.cause),
        _json([change.as_dict() for change in item.action]),
        stored_json(item.signals),
        stored_text(item.reason),
        item.ack,
        item.ack_us,
        None if item.outcome is None else stored_json(item.outcome),
    )


def event_values(item: Event, wall_ns: int, boot_id: str) -> tuple[Any, ...]:
    """An event as the values of `EVENT_COLUMNS`."""
    return (
        wall_ns,
        item.mono_ns,
        boot_id,
        stored_text(item.kind),
        stored_text(item.subject),
        stored_json(item.detail),
    )


def decision_row(row: Sequence[Any]) -> DecisionRow:
    """`id` and `DECISION_COLUMNS` as a row; ValueError, TypeError or KeyError if it isn't one."""
    row_id, wall_ns, mono_ns, boot_id, engine, mode, cause, action, *rest = row
    signals, reason, ack, ack_us, outcome = rest
    changes = tuple(
        Change(item["kind"], item["target"], item["knob"], item["from"], item["to"])
        for item in json.loads(action)
    )
    return DecisionRow(
        row_id,
        wall_ns,
        boot_id,
        Decision(
            mono_ns,
            engine,
            mode,
            cause,
            changes,
            json.loads(signals),
            reason,
            ack,
            ack_us,
            None if outcome is None else json.loads(outcome),
        ),
    )


def sample_row(row: Sequence[Any]) -> Recorded:
    """Wall time, engine and inputs as a sample; ValueError or TypeError if it isn't one."""
    wall_ns, engine, inputs = row
    return Recorded(wall_ns, engine, json.loads(inputs))


def event_row(row: Sequence[Any]) -> EventRow:
    """`id` and `EVENT_COLUMNS` as a row; ValueError or TypeError if it isn't one."""
    row_id, wall_ns, mono_ns, boot_id, kind, subject, detail = row
    return EventRow(row_id, wall_ns, boot_id, Event(mono_ns, kind, subject, json.loads(detail)))


def stored_text(text: str) -> str:
    """`text` as SQLite can keep it: clipped, and a lone surrogate written as an escape."""
    clipped = text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 1] + "…"
    return clipped.encode("utf-8", "backslashreplace").decode()


def stored_json(value: Mapping[str, Any]) -> str:
    """`value` as strict JSON, or a note of its size if it is too long.

    What JSON has no word for becomes null (NaN, infinities) or its text.
    """
    text = _json(value)
    if len(text) > MAX_JSON_CHARS:
        return _json({"too_large_chars": len(text)})
    return text


def _json(value: object) -> str:
    try:
        return json.dumps(value, separators=(",", ":"), allow_nan=False, default=_plain_json)
    except ValueError:
        return json.dumps(
            _finite(value), separators=(",", ":"), allow_nan=False, default=_plain_json
        )


def _plain_json(value: object) -> object:
    return dict(value) if isinstance(value, Mapping) else str(value)


def _finite(value: object) -> object:
    """`value` with every NaN and infinity in it as None."""
    match value:
        case float():
            return value if math.isfinite(value) else None
        case Mapping():
            return {name: _finite(item) for name, item in value.items()}
        case list() | tuple():
            return [_finite(item) for item in value]
    return value
