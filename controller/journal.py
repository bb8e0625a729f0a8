"""The journal: every decision with its signals, cause, action, acknowledgement and outcome.

A SQLite file in WAL mode. Writing never raises: what can't be written is counted. Times are
CLOCK_MONOTONIC; wall time is worked out once, when a row is written. Text is kept as it came, so
whatever shows it on a terminal passes it through `plain`.
"""

import json
import logging
import sqlite3
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from controller.journal_reader import JournalReader, read_decisions, read_events, read_worst
from controller.journal_rows import (
    DECISION_COLUMNS,
    EVENT_COLUMNS,
    SAMPLE_COLUMNS,
    Ack,
    Change,
    Decision,
    DecisionRow,
    Event,
    EventRow,
    OpenChange,
    Recorded,
    decision_values,
    event_values,
    stored_json,
    stored_text,
)
from controller.journal_store import JournalError, is_damage, open_writable
from controller.plain import plain

__all__ = [
    "Ack",
    "Change",
    "Decision",
    "DecisionRow",
    "Event",
    "EventRow",
    "Journal",
    "JournalError",
    "JournalReader",
    "OpenChange",
    "Recorded",
    "plain",
]

MAX_ROWS: Final = 100_000
INPUTS_SHARE: Final = 5
"""What decisions were made on takes 2 to 3 kB each, and a sample as much: only for a fifth of the
newest decisions, and only a fifth as many samples, are kept."""

MAX_CHANGES: Final = 1000
"""Changes by hand that are kept."""

_PRUNE_EVERY: Final = 256
_PRUNE_AT_MOST: Final = 1024
_REOPEN_AFTER_NS: Final = 10_000_000_000
_MAX_ID: Final = (1 << 63) - 1
_LOG: Final = logging.getLogger("sits.journal")


class Journal:
    """The journal for writing. Any thread may call it; several processes may write one file.

    `dropped` counts rows and updates that could not be written, `error` is the last failure's
    text or None, `failing` whether that was the last time that something was to be written,
    `moved_aside` is where a damaged file was put, if one was found.
    """

    def __init__(self, path: Path, *, max_rows: int = MAX_ROWS) -> None:
        """Open the journal at `path`, keeping about the last `max_rows` of each table.

        `JournalError` if the file is of a newer version or not a journal. If it can't be opened
        for another reason, such as no room, rows are dropped until it can.
        """
        self.path = path
        self.dropped = 0
        self.error: str | None = None
        self.failing = False
        self.moved_aside: Path | None = None
        self._max_rows = max_rows
        self._boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        self._lock = threading.Lock()
        self._logged: set[str] = set()
        self._reopen_at_ns: int | None = None
        self._db: sqlite3.Connection | None = None
        self._open()

    def add_decision(self, decision: Decision) -> int:
        """Write `decision`; its id, or 0 if it was dropped."""
        values = decision_values(decision, _wall_ns(decision.mono_ns), self._boot_id)
        return self._insert("decisions", DECISION_COLUMNS, values)

    def add_event(self, event: Event) -> int:
        """Write `event`; its id, or 0 if it was dropped."""
        values = event_values(event, _wall_ns(event.mono_ns), self._boot_id)
        return self._insert("events", EVENT_COLUMNS, values)

    def set_ack(self, decision_id: int, ack: Ack, ack_us: int | None = None) -> None:
        """Say what became of a decision's action, and how many µs the answer took."""
        self._update(
            "update decisions set ack = ?, ack_us = ? where id = ?", ack, ack_us, decision_id
        )

    def set_outcome(self, decision_id: int, outcome: Mapping[str, Any]) -> None:
        """Say how things went after a decision; its `score` is what the worst are found by."""
        self._update(
            "update decisions set outcome = ?, score = ? where id = ?",
            stored_json(outcome),
            outcome.get("score"),
            decision_id,
        )

    def set_inputs(self, decision_id: int, inputs: Mapping[str, Any]) -> None:
        """Keep what a decision was made on, for replay."""
        self._update(
            "update decisions set inputs = ? where id = ?", stored_json(inputs), decision_id
        )

    def add_sample(self, mono_ns: int, engine: str, inputs: Mapping[str, Any]) -> int:
        """Keep what there was to decide on at `mono_ns`; the row's id, or 0 if it was dropped."""
        values = (
            _wall_ns(mono_ns),
            mono_ns,
            self._boot_id,
            stored_text(engine),
            stored_json(inputs),
        )
        return self._insert("samples", SAMPLE_COLUMNS, values)

    def put_change(self, change_id: int, stage: str, detail: Mapping[str, Any]) -> str:
        """Have on disk how far a change by hand is; returns why it is not, or nothing.

        Unlike other rows it waits for the disk (`synchronous = full`): what follows from it is done
        by engines, and a coordinator that dies must find out what it had decided.
        """
        now_ns = time.monotonic_ns()
        row = (change_id, _wall_ns(now_ns), now_ns, self._boot_id, stage, stored_json(detail))
        with self._lock:
            if self._execute("pragma synchronous = full", ()) is None:
                return self.error or "the journal is not open"
            done = self._execute(
                "insert or replace into changes (id, wall_ns, mono_ns, boot_id, stage, detail)"
                " values (?, ?, ?, ?, ?, ?)",
                row,
            )
            why = "" if done is not None else self.error or "the journal is not open"
            self.dropped += done is None
            self._execute("pragma synchronous = normal", ())
            self._execute(
                "delete from changes where stage = 'over' and id not in"
                " (select id from changes order by id desc limit ?)",
                (MAX_CHANGES,),
            )
            return why

    def open_changes(self) -> list[OpenChange]:
        """Changes by hand that are not over, of this boot: others ended with their engines."""
        with self._lock:
            cursor = self._execute(
                "select id, stage, detail from changes where stage <> 'over' and boot_id = ?"
                " order by id",
                (self._boot_id,),
            )
            rows = cursor.fetchall() if cursor is not None else []
        found = []
        for change_id, stage, text in rows:
            try:
                found.append(OpenChange(change_id, stage, json.loads(text)))
            except ValueError:
                self._failed(f"journal '{self.path}' has a change {change_id} that is no JSON")
        return found

    def lose_pending(self) -> None:
        """Mark as `lost` every decision still pending: an earlier run ended before its answer."""
        self._update("update decisions set ack = 'lost' where ack = 'pending' and id <= ?", _MAX_ID)

    def recent(
        self, limit: int, engine: str | None = None, before_id: int | None = None
    ) -> list[DecisionRow]:
        """As `JournalReader.recent`."""
        with self._lock:
            return read_decisions(self._db, self.path, limit, engine, before_id)

    def worst(self, limit: int, engine: str | None = None) -> list[DecisionRow]:
        """As `JournalReader.worst`."""
        with self._lock:
            return read_worst(self._db, self.path, limit, engine)

    def recent_events(self, limit: int, before_id: int | None = None) -> list[EventRow]:
        """As `JournalReader.recent_events`."""
        with self._lock:
            return read_events(self._db, self.path, limit, before_id)

    def close(self) -> None:
        """Close the file; what is written after that is dropped."""
        with self._lock:
            self._reopen_at_ns = None
            self._close()

    def _insert(self, table: str, columns: str, values: Sequence[Any]) -> int:
        with self._lock:
            row_id = self._insert_row(table, columns, values)
            self.dropped += row_id == 0
            if row_id and row_id % _PRUNE_EVERY == 0:
                self._prune(table, row_id)
            return row_id

    def _insert_row(self, table: str, columns: str, values: Sequence[Any]) -> int:
        marks = ", ".join("?" * len(values))
        cursor = self._execute(f"insert into {table} ({columns}) values ({marks})", values)
        return 0 if cursor is None else cursor.lastrowid or 0

    def _update(self, sql: str, *values: Any) -> None:
        if values[-1] == 0:
            return  # the decision itself was dropped, and counted
        with self._lock:
            if self._execute(sql, values) is None:
                self.dropped += 1

    def _prune(self, table: str, newest: int) -> None:
        """Delete the oldest rows beyond the limit, a bounded number at a time.

        Ids have no holes but at the old end, so the ids themselves count the rows.
        """
        kept = self._max_rows
        if table == "samples":
            kept //= INPUTS_SHARE
        elif table == "decisions":
            last = newest - kept // INPUTS_SHARE
            self._execute(
                "update decisions set inputs = null where id > ? and id <= ?",
                (last - _PRUNE_AT_MOST, last),
            )
        self._execute(
            f"delete from {table} where id <= min(?, (select min(id) from {table}) + ?)",
            (newest - kept, _PRUNE_AT_MOST),
        )

    def _execute(self, sql: str, values: Sequence[Any]) -> sqlite3.Cursor | None:
        """The cursor after `sql`, or None if that could not be done now."""
        if self._db is None:
            self._open_if_due()
        if self._db is None:
            return None
        try:
            done = self._db.execute(sql, values)
            self.failing = False
            return done
        except sqlite3.Error as error:
            self._failed(f"could not write journal '{self.path}': {error}")
            if is_damage(error):
                self._close()  # opening it again finds the damage and moves the file aside
            return None

    def _open_if_due(self) -> None:
        if self._reopen_at_ns is None or time.monotonic_ns() < self._reopen_at_ns:
            return
        try:
            self._open()
        except JournalError as error:
            self._failed(str(error))

    def _open(self) -> None:
        self._reopen_at_ns = time.monotonic_ns() + _REOPEN_AFTER_NS
        try:
            self._db, moved = open_writable(self.path)
        except (sqlite3.Error, OSError) as error:
            self._failed(f"could not open journal '{self.path}': {error}")
            return
        if moved is not None:
            self.moved_aside = moved
            self._failed(f"journal '{self.path}' was damaged, it is now '{moved}'")
            event = Event(
                time.monotonic_ns(), "journal_moved", str(self.path), {"moved_to": str(moved)}
            )
            values = event_values(event, _wall_ns(event.mono_ns), self._boot_id)
            self._insert_row("events", EVENT_COLUMNS, values)

    def _close(self) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None

    def _failed(self, text: str) -> None:
        self.error, self.failing = text, True
        # One line for each kind of failure: a full disk would fail sixty times a second.
        if text not in self._logged and len(self._logged) < 16:
            self._logged.add(text)
            _LOG.warning("%s", plain(text))


def _wall_ns(mono_ns: int) -> int:
    """Unix time at CLOCK_MONOTONIC `mono_ns`, by both clocks as they stand now."""
    return time.time_ns() - time.monotonic_ns() + mono_ns
