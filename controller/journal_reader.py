"""Reading the journal, in the process that writes it or in another."""

import json
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from heapq import merge
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from controller.journal_rows import (
    DECISION_COLUMNS,
    EVENT_COLUMNS,
    DecisionRow,
    EventRow,
    Recorded,
    decision_row,
    event_row,
    sample_row,
    stored_text,
)
from controller.journal_store import JournalError, open_readonly

MAX_RECENT: Final = 10_000
"""The most rows one call returns."""

_MAX_ID: Final = (1 << 63) - 1

T = TypeVar("T")


class JournalReader:
    """The journal for reading, also while another process writes it. For one thread at a time."""

    def __init__(self, path: Path) -> None:
        """Open the journal at `path`; `JournalError` if it can't be read."""
        self.path = path
        self._db = open_readonly(path)

    def recent(
        self, limit: int, engine: str | None = None, before_id: int | None = None
    ) -> list[DecisionRow]:
        """Up to `limit` decisions, newest first, of one engine or all, with ids below `before_id`.

        `JournalError` if they can't be read.
        """
        return read_decisions(self._db, self.path, limit, engine, before_id)

    def recent_events(self, limit: int, before_id: int | None = None) -> list[EventRow]:
        """Up to `limit` events, newest first, with ids below `before_id`; errors as in `recent`."""
        return read_events(self._db, self.path, limit, before_id)

    def worst(self, limit: int, engine: str | None = None) -> list[DecisionRow]:
        """Up to `limit` decisions with an outcome, the worst first; errors as in `recent`."""
        return read_worst(self._db, self.path, limit, engine)

    def recorded(self, engine: str | None = None, since_ns: int = 0) -> Iterator[Recorded]:
        """What was recorded for replay from Unix time `since_ns` on, oldest first.

        Of one engine or all. Errors as in `recent`.
        """
        of_engine, values = (
            ("", []) if engine is None else ("engine = ? and", [stored_text(engine)])
        )
        where = f"where {of_engine} wall_ns >= ?"
        decisions = _iterate(
            self._db,
            self.path,
            f"select inputs, id, {DECISION_COLUMNS} from decisions {where} and inputs is not null"
            " order by id",
            (*values, since_ns),
            _recorded_decision,
        )
        samples = _iterate(
            self._db,
            self.path,
            f"select wall_ns, engine, inputs from samples {where} order by id",
            (*values, since_ns),
            sample_row,
        )
        return merge(decisions, samples, key=lambda each: each.wall_ns)

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def read_decisions(
    db: sqlite3.Connection | None,
    path: Path,
    limit: int,
    engine: str | None,
    before_id: int | None,
) -> list[DecisionRow]:
    """As `JournalReader.recent`, on an open database; `path` is for the error's text."""
    of_engine, values = ("", []) if engine is None else ("engine = ? and", [stored_text(engine)])
    return _rows(
        db,
        path,
        f"select id, {DECISION_COLUMNS} from decisions where {of_engine} id < ?"
        " order by id desc limit ?",
        (*values, _before(before_id), _bounded(limit)),
        decision_row,
    )


def read_worst(
    db: sqlite3.Connection | None, path: Path, limit: int, engine: str | None
) -> list[DecisionRow]:
    """As `JournalReader.worst`, on an open database."""
    of_engine, values = ("", []) if engine is None else ("engine = ? and", [stored_text(engine)])
    return _rows(
        db,
        path,
        f"select id, {DECISION_COLUMNS} from decisions where {of_engine} score is not null"
        " order by score desc, id desc limit ?",
        (*values, _bounded(limit)),
        decision_row,
    )


def read_events(
    db: sqlite3.Connection | None, path: Path, limit: int, before_id: int | None
) -> list[EventRow]:
    """As `JournalReader.recent_events`, on an open database."""
    return _rows(
        db,
        path,
        f"select id, {EVENT_COLUMNS} from events where id < ? order by id desc limit ?",
        (_before(before_id), _bounded(limit)),
        event_row,
    )


def _rows(
    db: sqlite3.Connection | None,
    path: Path,
    sql: str,
    values: Sequence[Any],
    decode: Callable[[Sequence[Any]], T],
) -> list[T]:
    if db is None:
        raise JournalError(f"could not read journal '{path}': it is not open")
    return list(_iterate(db, path, sql, values, decode))


def _iterate(
    db: sqlite3.Connection,
    path: Path,
    sql: str,
    values: Sequence[Any],
    decode: Callable[[Sequence[Any]], T],
) -> Iterator[T]:
    try:
        for row in db.execute(sql, values):
            yield decode(row)
    except (sqlite3.Error, ValueError, TypeError, KeyError) as error:
        raise JournalError(f"could not read journal '{path}': {error}") from None


def _recorded_decision(row: Sequence[Any]) -> Recorded:
    inputs, *rest = row
    found = decision_row(rest)
    return Recorded(found.wall_ns, found.decision.engine, json.loads(inputs), found.decision)


def _before(row_id: int | None) -> int:
    return _MAX_ID if row_id is None else max(0, min(row_id, _MAX_ID))


def _bounded(limit: int) -> int:
    return max(0, min(limit, MAX_RECENT))
