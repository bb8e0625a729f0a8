"""Reading the journal, in the process that writes it or in another."""

import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from controller.journal_rows import (
    DECISION_COLUMNS,
    EVENT_COLUMNS,
    DecisionRow,
    EventRow,
    decision_row,
    event_row,
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
    try:
        return [decode(row) for row in db.execute(sql, values)]
    except (sqlite3.Error, ValueError, TypeError, KeyError) as error:
        raise JournalError(f"could not read journal '{path}': {error}") from None


def _before(row_id: int | None) -> int:
    return _MAX_ID if row_id is None else max(0, min(row_id, _MAX_ID))


def _bounded(limit: int) -> int:
    return max(0, min(limit, MAX_RECENT))
