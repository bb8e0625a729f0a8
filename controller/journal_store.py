"""The journal's file: opened, brought to today's schema, and moved aside when it is damaged."""

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Final

APPLICATION_ID: Final = 0x53495453
"""SQLite's mark of whose file it is: `SITS` in ASCII."""

MIGRATIONS: Final[Sequence[Sequence[str]]] = (
    (
        """create table decisions (
            id integer primary key,
            wall_ns integer not null,
            mono_ns integer not null,
            boot_id text not null,
            engine text not null,
            mode text not null,
            cause text not null,
            action text not null,
            signals text not null,
            reason text not null,
            ack text not null,
            ack_us integer,
            outcome text
        )""",
        "create index decisions_of_engine on decisions (engine, id)",
        "create index decisions_pending on decisions (id) where ack = 'pending'",
        """create table events (
            id integer primary key,
            wall_ns integer not null,
            mono_ns integer not null,
            boot_id text not null,
            kind text not null,
            subject text not null,
            detail text not null
        )""",
    ),
    (
        "alter table decisions add column inputs text",
        "alter table decisions add column score real",
        "create index decisions_worst on decisions (score) where score is not null",
        """create table samples (
            id integer primary key,
            wall_ns integer not null,
            mono_ns integer not null,
            boot_id text not null,
            engine text not null,
            inputs text not null
        )""",
    ),
    (
        """create table changes (
            id integer primary key,
            wall_ns integer not null,
            mono_ns integer not null,
            boot_id text not null,
            stage text not null,
            detail text not null
        )""",
        "create index changes_open on changes (id) where stage <> 'over'",
    ),
)
"""Statements that take the schema from version n to n + 1. Only ever added to."""

OPEN_WAIT_S: Final = 1.0
WRITE_WAIT_MS: Final = 100
WAL_KEPT_BYTES: Final = 4 << 20
"""What the write-ahead log shrinks back to after a reader has held it up."""


class JournalError(RuntimeError):
    """A journal that can't be used as it is."""


def open_writable(path: Path) -> tuple[sqlite3.Connection, Path | None]:
    """The journal at `path`, made if need be, and where a damaged one was moved to, if it was.

    `JournalError` if it is of a newer version or not a journal, and then the file is as it was;
    `sqlite3.Error` or `OSError` if it can't be opened now (no room, read-only).
    """
    try:
        return _open(path), None
    except sqlite3.DatabaseError as error:
        if not is_damage(error):
            raise
    moved = _move_aside(path)
    return _open(path), moved


def open_readonly(path: Path) -> sqlite3.Connection:
    """The journal at `path` for reading while another process writes; `JournalError` if it can't.

    SQLite may have to make the two files beside it that readers share with the writer.
    """
    try:
        db = _connect_readonly(path)
        try:
            version = _check_ours(db, path)
            if version < len(MIGRATIONS):
                raise JournalError(
                    f"could not read journal '{path}': its schema is version {version}, this"
                    f" program reads {len(MIGRATIONS)}; starting the agent once will migrate it"
                )
        except BaseException:
            db.close()
            raise
    except sqlite3.Error as error:
        why = "no such file" if not path.exists() else error
        raise JournalError(f"could not read journal '{path}': {why}") from None
    return db


def migrate(
    db: sqlite3.Connection, path: Path, migrations: Sequence[Sequence[str]] = MIGRATIONS
) -> None:
    """Bring `db` to the last version, in one transaction; `path` is for the error's text."""
    db.execute("begin immediate")
    try:
        version = _check_ours(db, path, len(migrations))
        for statements in migrations[version:]:
            for statement in statements:
                db.execute(statement)
        db.execute(f"pragma application_id = {APPLICATION_ID}")
        db.execute(f"pragma user_version = {len(migrations)}")
        db.execute("commit")
    except BaseException:
        if db.in_transaction:
            db.execute("rollback")
        raise


def is_damage(error: sqlite3.Error) -> bool:
    """Whether `error` says that the file itself is damaged or no database at all."""
    code = getattr(error, "sqlite_errorcode", None)
    return code is not None and code & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def _open(path: Path) -> sqlite3.Connection:
    if path.exists() and path.stat().st_size > 0:
        _check_untouched(path)
    else:
        # Readers are root and the group: the journal names processes and their command lines.
        path.touch(mode=0o640)
    db = sqlite3.connect(path, timeout=OPEN_WAIT_S, isolation_level=None, check_same_thread=False)
    try:
        db.execute("pragma journal_mode = wal")
        db.execute("pragma synchronous = normal")
        db.execute(f"pragma journal_size_limit = {WAL_KEPT_BYTES}")
        migrate(db, path)
        db.execute(f"pragma busy_timeout = {WRITE_WAIT_MS}")
    except BaseException:
        db.close()
        raise
    return db


def _check_untouched(path: Path) -> None:
    """Look for what forbids opening for writing, through a connection that can't write."""
    db = _connect_readonly(path)
    try:
        _check_ours(db, path)
        ((verdict,),) = db.execute("pragma quick_check(1)").fetchall()
        if verdict != "ok":
            damage = sqlite3.DatabaseError(verdict)
            damage.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
            raise damage
    finally:
        db.close()


def _connect_readonly(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(
        path.absolute().as_uri() + "?mode=ro",
        uri=True,
        timeout=OPEN_WAIT_S,
        isolation_level=None,
        check_same_thread=False,
    )


def _check_ours(db: sqlite3.Connection, path: Path, known: int = len(MIGRATIONS)) -> int:
    """The schema's version; `JournalError` if it is newer than `known` or another program's."""
    ((owner,),) = db.execute("pragma application_id").fetchall()
    ((version,),) = db.execute("pragma user_version").fetchall()
    ((tables,),) = db.execute("select count(*) from sqlite_master").fetchall()
    if tables and owner != APPLICATION_ID:
        raise JournalError(f"could not open journal '{path}': it is another program's database")
    if version > known:
        raise JournalError(
            f"could not open journal '{path}': its schema is version {version}, newer than"
            f" {known}, the newest this program knows"
        )
    return int(version)


def _move_aside(path: Path) -> Path:
    """Rename the journal and its companions to the first free `.corrupt-<n>`."""
    n = 1
    while (moved := path.with_name(f"{path.name}.corrupt-{n}")).exists():
        n += 1
    path.rename(moved)
    for suffix in ("-wal", "-shm"):
        companion = path.with_name(path.name + suffix)
        if companion.exists():
            companion.rename(moved.with_name(moved.name + suffix))
    return moved
