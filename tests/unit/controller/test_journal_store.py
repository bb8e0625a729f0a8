"""The journal's file: versions, migration, other people's files and damage."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from controller.journal import Event, Journal, JournalError, JournalReader
from controller.journal_store import APPLICATION_ID, MIGRATIONS, migrate, open_readonly


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.db"


def make_journal(path: Path, events: int = 3) -> None:
    journal = Journal(path)
    for _ in range(events):
        journal.add_event(Event(1, "start", "x", {"note": "y" * 400}))
    journal.close()


def pragma(path: Path, name: str) -> object:
    with closing(sqlite3.connect(path)) as db:
        ((value,),) = db.execute(f"pragma {name}").fetchall()
        return value


def test_a_new_journal_is_ours_versioned_in_wal_mode_and_not_for_everyone(path: Path) -> None:
    make_journal(path)
    assert pragma(path, "application_id") == APPLICATION_ID
    assert pragma(path, "user_version") == len(MIGRATIONS)
    assert pragma(path, "journal_mode") == "wal"
    assert path.stat().st_mode & 0o007 == 0


def test_a_journal_is_continued(path: Path) -> None:
    make_journal(path)
    make_journal(path)
    with JournalReader(path) as reader:
        assert [row.id for row in reader.recent_events(9)] == [6, 5, 4, 3, 2, 1]


@pytest.mark.parametrize("opener", [Journal, JournalReader])
def test_a_newer_schema_is_refused_and_the_file_left_as_it_was(
    path: Path, opener: type[Journal] | type[JournalReader]
) -> None:
    make_journal(path)
    with closing(sqlite3.connect(path)) as db:
        db.execute("pragma user_version = 99")
    before = path.read_bytes()
    with pytest.raises(JournalError, match=r"journal\.db': its schema is version 99, newer than 3"):
        opener(path)
    assert path.read_bytes() == before


def test_another_programs_database_is_refused_and_left_as_it_was(path: Path) -> None:
    with closing(sqlite3.connect(path)) as db:
        db.execute("create table photos (id)")
    before = path.read_bytes()
    with pytest.raises(JournalError, match="another program's database"):
        Journal(path)
    assert path.read_bytes() == before


def test_a_journal_of_the_first_version_is_brought_to_today_s_without_loss(path: Path) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        migrate(db, path, MIGRATIONS[:1])
        db.execute(
            "insert into decisions (wall_ns, mono_ns, boot_id, engine, mode, cause, action,"
            " signals, reason, ack) values (5, 4, 'b', 'chat', 'control', 'batch', '[]',"
            " '{\"gaps_over\":3}', 'why', 'applied')"
        )
    with pytest.raises(JournalError, match="starting the agent once will migrate it"):
        JournalReader(path)
    journal = Journal(path)
    journal.set_outcome(1, {"score": 0.25})
    (row,) = journal.worst(5)
    journal.close()
    assert (row.wall_ns, row.decision.engine, row.decision.reason) == (5, "chat", "why")
    assert row.decision.signals == {"gaps_over": 3}
    assert row.decision.outcome == {"score": 0.25}
    assert pragma(path, "user_version") == len(MIGRATIONS)


def test_a_later_migration_keeps_the_rows(path: Path) -> None:
    make_journal(path)
    later = (*MIGRATIONS, ("alter table events add column zone text not null default 'none'",))
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        migrate(db, path, later)
        assert db.execute("select zone, count(*) from events").fetchall() == [("none", 3)]
    assert pragma(path, "user_version") == len(MIGRATIONS) + 1


def test_a_migration_that_fails_changes_nothing(path: Path) -> None:
    make_journal(path)
    broken = (*MIGRATIONS, ("create table extra (id)", "not sql"))
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        with pytest.raises(sqlite3.OperationalError):
            migrate(db, path, broken)
        assert db.execute("select * from sqlite_master where name = 'extra'").fetchall() == []
    make_journal(path)


def test_an_older_schema_is_for_the_writer_to_migrate(path: Path) -> None:
    make_journal(path)
    with closing(sqlite3.connect(path)) as db:
        db.execute("pragma user_version = 0")
    with pytest.raises(JournalError, match="starting the agent once will migrate it"):
        open_readonly(path)


@pytest.mark.parametrize("damage", [b"not a database, but long enough to be looked at", b"\0" * 99])
def test_a_file_that_is_no_database_is_kept_aside(path: Path, damage: bytes) -> None:
    path.write_bytes(damage)
    make_journal(path)
    assert path.with_name("journal.db.corrupt-1").read_bytes() == damage
    with JournalReader(path) as reader:
        assert len(reader.recent_events(9)) == 4


def test_a_damaged_page_is_found_at_the_start(path: Path) -> None:
    make_journal(path, events=100)
    content = bytearray(path.read_bytes())
    content[-8192:-4096] = b"\xa5" * 4096
    path.write_bytes(content)
    journal = Journal(path)
    aside = path.with_name("journal.db.corrupt-1")
    assert journal.moved_aside == aside
    assert aside.read_bytes() == content
    (row,) = journal.recent_events(9)
    journal.close()
    assert (row.event.kind, row.event.subject) == ("journal_moved", str(path))
    assert row.event.detail == {"moved_to": str(aside)}


def test_damaged_files_do_not_replace_each_other_and_take_their_log_along(path: Path) -> None:
    wal = path.with_name("journal.db-wal")
    for n in (1, 2, 3):
        path.write_bytes(b"damage %d, long enough to be looked at by SQLite" % n)
        wal.write_bytes(b"log %d" % n)
        make_journal(path)
        aside = path.with_name(f"journal.db.corrupt-{n}")
        assert aside.read_bytes().startswith(b"damage %d" % n)
        assert aside.with_name(aside.name + "-wal").read_bytes() == b"log %d" % n
    assert path.with_name("journal.db.corrupt-1").read_bytes().startswith(b"damage 1")


def test_a_reader_of_nothing_says_so(path: Path) -> None:
    with pytest.raises(JournalError, match=r"journal\.db': no such file"):
        JournalReader(path)
    assert not path.exists()


def test_a_path_with_a_question_mark_is_only_a_path(tmp_path: Path) -> None:
    path = tmp_path / "a?mode=memory#x %41.db"
    make_journal(path)
    with JournalReader(path) as reader:
        assert len(reader.recent_events(9)) == 3
    assert path.exists()
