"""The journal: what is written comes back, and what can't be written is counted, not raised."""

import itertools
import json
import logging
import math
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from controller import journal as module
from controller.journal import (
    Change,
    Decision,
    Event,
    Journal,
    JournalError,
    JournalReader,
    OpenChange,
)

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
NUMBERS = st.integers(-(1 << 53), 1 << 53) | st.floats(allow_nan=False, allow_infinity=False)
JSON = st.dictionaries(
    TEXT,
    st.recursive(
        st.none() | st.booleans() | NUMBERS | TEXT,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
        max_leaves=5,
    ),
    max_size=4,
)
DECISIONS = st.builds(
    Decision,
    mono_ns=st.integers(0, 1 << 62),
    engine=TEXT,
    mode=TEXT,
    cause=TEXT,
    action=st.lists(
        st.builds(Change, TEXT, TEXT, TEXT, st.none() | NUMBERS | TEXT, st.none() | NUMBERS | TEXT),
        max_size=3,
    ).map(tuple),
    signals=JSON,
    reason=TEXT,
    ack=st.sampled_from(["pending", "applied", "refused", "lost", "shadow"]),
    ack_us=st.none() | st.integers(0, 1 << 40),
    outcome=st.none() | JSON,
)


def decision(engine: str = "chat", **fields: Any) -> Decision:
    return Decision(time.monotonic_ns(), engine, "control", "batch", **fields)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.db"


@pytest.fixture
def journal(path: Path) -> Iterator[Journal]:
    opened = Journal(path)
    yield opened
    opened.close()


@given(DECISIONS)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_a_decision_comes_back_as_it_went_in(journal: Journal, item: Decision) -> None:
    row_id = journal.add_decision(item)
    (row,) = journal.recent(1)
    assert (row.id, row.decision) == (row_id, item)


@given(st.builds(Event, st.integers(0, 1 << 62), TEXT, TEXT, JSON))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_an_event_comes_back_as_it_went_in(journal: Journal, item: Event) -> None:
    row_id = journal.add_event(item)
    (row,) = journal.recent_events(1)
    assert (row.id, row.event) == (row_id, item)


def test_a_row_is_json_under_the_names_of_its_columns(journal: Journal) -> None:
    journal.add_decision(
        decision(action=(Change("knob", "chat", "max_running", 8, 7),), reason="why")
    )
    (row,) = journal.recent(1)
    shown = json.loads(json.dumps(row.as_dict()))
    assert shown["action"] == [
        {"kind": "knob", "target": "chat", "knob": "max_running", "from": 8, "to": 7}
    ]
    assert shown["reason"] == "why"
    assert shown["boot_id"] == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    journal.add_event(Event(1, "start", "sitsd", {"pid": 5}))
    (event,) = journal.recent_events(1)
    assert json.loads(json.dumps(event.as_dict())) == {
        "id": 1,
        "wall_ns": event.wall_ns,
        "mono_ns": 1,
        "boot_id": shown["boot_id"],
        "kind": "start",
        "subject": "sitsd",
        "detail": {"pid": 5},
    }


def test_wall_time_is_that_of_the_decision_not_of_the_write(journal: Journal) -> None:
    hour_ns = 3600 * 10**9
    before = time.time_ns()
    journal.add_decision(Decision(time.monotonic_ns() - hour_ns, "e", "shadow", "c"))
    after = time.time_ns()
    (row,) = journal.recent(1)
    assert before - hour_ns - 10**9 < row.wall_ns < after - hour_ns + 10**9


def test_recent_is_newest_first_by_engine_and_in_pages(journal: Journal) -> None:
    for index in range(10):
        journal.add_decision(decision("a" if index % 2 else "b"))
    assert [row.id for row in journal.recent(3)] == [10, 9, 8]
    assert [row.id for row in journal.recent(3, before_id=8)] == [7, 6, 5]
    assert [row.id for row in journal.recent(9, engine="a")] == [10, 8, 6, 4, 2]
    assert [row.id for row in journal.recent(2, engine="b", before_id=7)] == [5, 3]
    assert journal.recent(5, engine="none") == []


def test_no_limit_or_id_that_a_user_can_ask_for_is_an_error(journal: Journal) -> None:
    journal.add_decision(decision())
    assert journal.recent(-1) == []
    assert len(journal.recent(10**30, before_id=10**30)) == 1
    assert journal.recent(5, before_id=-(10**30)) == []
    assert journal.recent(5, engine="\udc80") == []


def test_ack_and_outcome_are_filled_in_later(journal: Journal) -> None:
    first, second = journal.add_decision(decision()), journal.add_decision(decision())
    journal.set_ack(first, "applied", 830)
    journal.set_outcome(first, {"goodput_rps": 3.5})
    newer, older = journal.recent(2)
    assert (older.decision.ack, older.decision.ack_us) == ("applied", 830)
    assert older.decision.outcome == {"goodput_rps": 3.5}
    assert newer.id == second
    assert (newer.decision.ack, newer.decision.ack_us) == ("pending", None)
    assert newer.decision.outcome is None


def test_the_worst_are_those_with_the_highest_score_of_one_engine_or_all(journal: Journal) -> None:
    scores = [0.1, None, 0.5, -0.3, 0.5]
    for index, score in enumerate(scores):
        row = journal.add_decision(decision("a" if index < 4 else "b"))
        journal.set_outcome(row, {"score": score})
    journal.add_decision(decision("a"))
    assert [row.id for row in journal.worst(9)] == [5, 3, 1, 4]
    assert [row.id for row in journal.worst(2, "a")] == [3, 1]
    assert journal.worst(9, "none") == []


def test_what_was_recorded_for_replay_comes_back_in_order_of_time(
    journal: Journal, path: Path
) -> None:
    start_ns = time.monotonic_ns()
    journal.add_sample(start_ns, "a", {"n": 1})
    row = journal.add_decision(Decision(start_ns + 10**8, "a", "control", "batch", reason="two"))
    journal.set_inputs(row, {"n": 2})
    journal.add_decision(Decision(start_ns + 2 * 10**8, "a", "control", "batch"))
    journal.add_sample(start_ns + 10**9, "b", {"n": 3})
    journal.add_sample(start_ns + 2 * 10**9, "a", {"n": 4})
    with JournalReader(path) as reader:
        found = list(reader.recorded())
        assert [each.inputs["n"] for each in found] == [1, 2, 3, 4]
        assert [each.decision.reason for each in found if each.decision] == ["two"]
        assert [each.inputs["n"] for each in reader.recorded("a")] == [1, 2, 4]
        assert [each.inputs["n"] for each in reader.recorded("a", found[-1].wall_ns)] == [4]


def test_of_samples_and_inputs_a_fifth_as_many_are_kept_as_of_decisions(path: Path) -> None:
    journal = Journal(path, max_rows=500)
    for number in range(1000):
        journal.add_sample(number, "a", {"n": number})
        journal.set_inputs(journal.add_decision(decision("b")), {"n": number})
    assert len(journal.recent(1000)) >= 500
    journal.close()
    with JournalReader(path) as reader:
        samples, inputs = list(reader.recorded("a", -(1 << 62))), list(reader.recorded("b"))
    for found in (samples, inputs):
        assert 100 <= len(found) <= 100 + 256
        assert found[-1].inputs == {"n": 999}


def test_what_an_earlier_run_left_pending_is_lost_and_nothing_else(journal: Journal) -> None:
    for ack in ("pending", "applied", "shadow", "refused", "pending"):
        journal.add_decision(decision(ack=ack))
    journal.lose_pending()
    acks = [row.decision.ack for row in journal.recent(9)]
    assert acks == ["lost", "refused", "shadow", "applied", "lost"]


def test_hostile_text_is_kept_as_it_came(journal: Journal) -> None:
    hostile = "\x1b[2J\0'; drop table decisions; --\n\u202e"
    journal.add_decision(decision(hostile, reason=hostile))
    (row,) = journal.recent(1, engine=hostile)
    assert (row.decision.engine, row.decision.reason) == (hostile, hostile)


def test_bytes_that_were_no_text_are_written_as_escapes(journal: Journal) -> None:
    undecoded = os.fsdecode(b"a\xff")
    journal.add_decision(decision(undecoded, signals={"name": undecoded}))
    (row,) = journal.recent(1, engine=undecoded)
    assert row.decision.engine == r"a\udcff"
    assert row.decision.signals == {"name": undecoded}
    assert journal.dropped == 0


def test_long_text_is_clipped_and_large_json_replaced_by_its_size(journal: Journal) -> None:
    journal.add_decision(decision(reason="x" * 10_000, signals={"a": "y" * 300_000}))
    (row,) = journal.recent(1)
    assert len(row.decision.reason) == 4096
    assert row.decision.reason.endswith("x…")
    assert row.decision.signals == {"too_large_chars": 300_008}


def test_what_json_has_no_word_for_is_null_or_text(journal: Journal) -> None:
    signals = MappingProxyType(
        {"a": math.nan, "b": [math.inf, 1.5], "c": (Path("/x"),), "d": MappingProxyType({"e": 1})}
    )
    journal.add_decision(decision(signals=signals))
    journal.add_decision(decision(signals={"d": MappingProxyType({"e": 1})}))
    newer, older = journal.recent(2)
    assert older.decision.signals == {"a": None, "b": [None, 1.5], "c": ["/x"], "d": {"e": 1}}
    assert newer.decision.signals == {"d": {"e": 1}}


def test_only_about_the_last_rows_are_kept(path: Path) -> None:
    journal = Journal(path, max_rows=500)
    for _ in range(1024):
        journal.add_decision(decision())
        journal.add_event(Event(1, "mode", "x"))
    assert [row.id for row in journal.recent(10_000)] == list(range(1024, 524, -1))
    assert len(journal.recent_events(10_000)) == 500
    journal.close()


def test_a_lower_limit_is_reached_in_bounded_bites(path: Path) -> None:
    journal = Journal(path)
    for _ in range(3000):
        journal.add_event(Event(1, "mode", "x"))
    journal.close()
    journal = Journal(path, max_rows=100)
    counts = [3000]
    for _ in range(5):
        for _ in range(256):
            journal.add_event(Event(1, "mode", "x"))
        counts.append(len(journal.recent_events(10_000)))
    journal.close()
    assert all(after >= before - 1024 for before, after in itertools.pairwise(counts))
    assert counts[-1] <= 100 + 256


def test_a_closed_journal_counts_what_it_is_given(path: Path) -> None:
    journal = Journal(path)
    kept = journal.add_decision(decision())
    journal.close()
    assert journal.add_decision(decision()) == 0
    assert journal.add_event(Event(1, "stop", "x")) == 0
    journal.set_ack(kept, "applied")
    assert journal.dropped == 3
    with pytest.raises(JournalError, match="not open"):
        journal.recent(1)


def test_an_update_of_a_dropped_decision_is_not_counted_again(path: Path) -> None:
    journal = Journal(path)
    journal.close()
    dropped_id = journal.add_decision(decision())
    journal.set_ack(dropped_id, "applied")
    journal.set_outcome(dropped_id, {})
    assert journal.dropped == 1


def test_threads_may_share_a_journal(journal: Journal) -> None:
    def write() -> None:
        for _ in range(100):
            journal.set_ack(journal.add_decision(decision()), "applied")
            journal.recent(1)

    threads = [threading.Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    rows = journal.recent(1000)
    assert [row.id for row in rows] == list(range(400, 0, -1))
    assert {row.decision.ack for row in rows} == {"applied"}
    assert journal.dropped == 0


def test_a_reader_sees_each_row_as_soon_as_it_is_written(journal: Journal, path: Path) -> None:
    with JournalReader(path) as reader:
        assert reader.recent(5) == []
        journal.add_decision(decision("a"))
        journal.add_event(Event(1, "start", "sitsd"))
        assert [row.decision.engine for row in reader.recent(5)] == ["a"]
        assert [row.event.kind for row in reader.recent_events(5)] == ["start"]


def test_a_slow_reader_does_not_stop_the_writer(journal: Journal, path: Path) -> None:
    for _ in range(10):
        journal.add_decision(decision())
    with closing(sqlite3.connect(path)) as db:
        cursor = db.execute("select id from decisions")  # a read left open half way
        assert cursor.fetchone() == (1,)
        for _ in range(100):
            journal.add_decision(decision())
    assert journal.dropped == 0
    assert journal.recent(1)[0].id == 110


def test_two_processes_may_write_one_journal(journal: Journal, path: Path) -> None:
    """A write that waits too long for the other's lock may be dropped, but is then counted."""
    script = (
        "import sys, pathlib\n"
        "from controller.journal import *\n"
        "journal = Journal(pathlib.Path(sys.argv[1]))\n"
        "ids = [journal.add_event(Event(1, 'undo', 'x')) for _ in range(200)]\n"
        "print(sum(id > 0 for id in ids), journal.dropped)\n"
        "journal.close()\n"
    )
    command = [sys.executable, "-c", script, str(path)]
    ids = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        while other.poll() is None:
            ids.append(journal.add_decision(decision()))
        assert other.stdout is not None
        written, dropped = map(int, other.stdout.read().split())
    assert written > 0
    assert written + dropped == 200
    assert len(journal.recent_events(1000)) == written
    with closing(sqlite3.connect(path)) as db:
        ((decisions,),) = db.execute("select count(*) from decisions").fetchall()
    assert decisions + journal.dropped == len(ids)


def test_rows_survive_a_killed_writer(path: Path) -> None:
    script = (
        "import sys, pathlib, time\n"
        "from controller.journal import *\n"
        "journal = Journal(pathlib.Path(sys.argv[1]))\n"
        "while True:\n"
        "    print(journal.add_event(Event(1, 'start', 'x')), flush=True)\n"
    )
    command = [sys.executable, "-c", script, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        for _ in range(50):
            reported = int(writer.stdout.readline())
        writer.send_signal(signal.SIGKILL)
    journal = Journal(path)
    assert journal.moved_aside is None
    assert journal.recent_events(1)[0].id >= reported
    assert journal.add_event(Event(1, "start", "x")) > reported
    journal.close()


def test_damage_found_while_running_is_moved_aside_and_writing_goes_on(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "_REOPEN_AFTER_NS", 0)
    journal = Journal(path)
    for _ in range(200):
        journal.add_decision(decision(reason="r" * 500))
    with closing(sqlite3.connect(path)) as db:
        db.execute("pragma wal_checkpoint(truncate)")
    path.write_bytes(b"\xa5" * path.stat().st_size)
    for _ in range(50):
        journal.add_decision(decision("after"))
    journal.close()
    assert journal.dropped > 0
    assert journal.moved_aside == path.with_name("journal.db.corrupt-1")
    with JournalReader(path) as reader:
        assert reader.recent(1)[0].decision.engine == "after"
        assert reader.recent_events(1)[0].event.kind == "journal_moved"
    assert "damaged" in caplog.text


def test_a_directory_that_appears_later_ends_the_drops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "_REOPEN_AFTER_NS", 0)
    path = tmp_path / "later" / "journal.db"
    journal = Journal(path)
    with caplog.at_level(logging.WARNING):
        assert [journal.add_decision(decision()) for _ in range(20)] == [0] * 20
    assert journal.dropped == 20
    assert journal.error is not None
    assert "No such file" in journal.error
    assert len(caplog.records) <= 1
    path.parent.mkdir()
    assert journal.add_decision(decision()) == 1
    assert journal.dropped == 20
    journal.close()


NO_ROOM_SCRIPT = """
import json, logging, pathlib, subprocess, sys
from controller.journal import *

logged = []
class Handler(logging.Handler):
    def emit(self, record):
        logged.append(record.getMessage())
logging.getLogger().addHandler(Handler())

mount = pathlib.Path(sys.argv[1])
def run(*command):
    subprocess.run(command, check=True)

run("mount", "-t", "tmpfs", "-o", "size=600k", "none", mount)
journal = Journal(mount / "journal.db")
item = Decision(1, "chat", "control", "batch", reason="r" * 2000)
written = 0
for _ in range(1000):
    written += journal.add_decision(item) > 0
full = dict(written=written, dropped=journal.dropped, error=journal.error, logged=list(logged))
journal.set_ack(1, "applied")
run("mount", "-o", "remount,size=8m", mount)
full["after"] = journal.add_decision(item) > 0
full["read"] = len(journal.recent(10_000))
journal.close()
logged.clear()

run("mount", "-o", "remount,ro", mount)
journal = Journal(mount / "journal.db")
ids = [journal.add_decision(item) for _ in range(20)]
readonly = dict(ids=ids, dropped=journal.dropped, error=journal.error, logged=list(logged))
journal.close()
print(json.dumps(dict(full=full, readonly=readonly)))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small tmpfs, which needs root")
@pytest.mark.skipif(shutil.which("unshare") is None, reason="needs unshare from util-linux")
def test_a_full_and_a_read_only_disk_are_counted_and_logged_once() -> None:
    """In a mount namespace of its own, which takes the mount with it."""
    with tempfile.TemporaryDirectory() as mount:
        done = subprocess.run(
            ["unshare", "--mount", sys.executable, "-c", NO_ROOM_SCRIPT, mount],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    full, readonly = result["full"], result["readonly"]
    assert full["written"] > 0
    assert full["written"] + full["dropped"] == 1000
    assert full["dropped"] > 0
    assert "full" in full["error"]
    assert len(full["logged"]) == 1
    assert full["after"]
    assert full["read"] == full["written"] + 1
    assert readonly["ids"] == [0] * 20
    assert readonly["dropped"] == 20
    assert readonly["error"].startswith("could not open journal")
    assert len(readonly["logged"]) == 1


def test_changes_that_are_not_over_are_found_again_and_those_of_another_boot_are_not(
    path: Path,
) -> None:
    journal = Journal(path)
    detail = {"values": {"max_running": 8}}
    for change_id in (1, 2, 3):
        assert journal.put_change(change_id, "preparing", detail) == ""
    assert journal.put_change(2, "committing", detail) == ""
    assert journal.put_change(3, "over", detail) == ""
    journal.close()
    with closing(sqlite3.connect(path)) as db:
        db.execute("update changes set boot_id = 'another' where id = 1")
        db.commit()
    again = Journal(path)
    assert again.open_changes() == [OpenChange(2, "committing", detail)]
    again.close()
    assert again.put_change(4, "preparing", detail) != ""
