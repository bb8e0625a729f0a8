import sqlite3
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from agent.recorder import MAX_QUEUED, MAX_QUEUED_INPUTS, Recorder
from controller.journal import DecisionRow, Event, Journal, JournalReader

DECISION: dict[str, Any] = {
    "type": "decision",
    "tag": 1,
    "mono_ns": 5,
    "engine": "chat",
    "mode": "control",
    "cause": "batch",
    "action": [
        {"kind": "knob", "target": "chat", "knob": "max_running", "from": 64, "to": 32},
    ],
    "signals": {"gaps_over": 3},
    "reason": "because",
    "ack": "pending",
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.db"


def ack(word: str, tag: int = 1, ack_us: int = 700) -> dict[str, Any]:
    return {"type": "ack", "tag": tag, "ack": word, "ack_us": ack_us, "detail": ""}


def written(recorder: Recorder, path: Path) -> list[DecisionRow]:
    """All decisions once everything queued is on the disk, oldest first."""
    recorder.close()
    with closing(JournalReader(path)) as reader:
        return reader.recent(1000)[::-1]


def test_a_decision_is_written_as_it_was_told(path: Path) -> None:
    recorder = Recorder(Journal(path))
    recorder.decision(DECISION)
    (row,) = written(recorder, path)
    shown = row.as_dict()
    for name in ("engine", "mode", "cause", "action", "signals", "reason", "ack", "mono_ns"):
        assert shown[name] == DECISION[name]


@pytest.mark.parametrize("word", ["applied", "refused", "lost"])
def test_an_answer_goes_to_its_own_decision(word: str, path: Path) -> None:
    recorder = Recorder(Journal(path))
    for tag in (1, 2, 3):
        recorder.decision(DECISION | {"tag": tag})
    recorder.ack(ack(word, tag=2))
    rows = written(recorder, path)
    assert [row.decision.ack for row in rows] == ["pending", word, "pending"]
    assert rows[1].decision.ack_us == 700


def test_applied_after_pending_keeps_the_time_of_the_answer(path: Path) -> None:
    recorder = Recorder(Journal(path))
    recorder.decision(DECISION)
    recorder.ack(ack("pending", ack_us=650))
    recorder.ack(ack("applied", ack_us=0))
    (row,) = written(recorder, path)
    assert row.decision.ack == "applied"


def test_an_answer_to_nothing_changes_nothing(path: Path) -> None:
    recorder = Recorder(Journal(path))
    recorder.decision(DECISION | {"ack": "shadow"})
    recorder.ack(ack("applied"))
    recorder.ack(ack("applied", tag=99))
    (row,) = written(recorder, path)
    assert row.decision.ack == "shadow"


def test_a_dead_controllers_decisions_are_lost_and_its_tags_mean_others(path: Path) -> None:
    recorder = Recorder(Journal(path))
    recorder.decision(DECISION)
    recorder.forget_open()
    recorder.decision(DECISION)
    recorder.ack(ack("applied"))
    assert [row.decision.ack for row in written(recorder, path)] == ["lost", "applied"]


@pytest.mark.parametrize("how", ["applied", "shadow", "pending"])
def test_an_outcome_goes_to_its_own_decision_whatever_became_of_it(how: str, path: Path) -> None:
    recorder = Recorder(Journal(path))
    recorder.decision(DECISION | {"ack": "shadow" if how == "shadow" else "pending"})
    recorder.decision(DECISION | {"tag": 2})
    if how == "applied":
        recorder.ack(ack("applied"))
    recorder.outcome(1, {"score": 0.5})
    rows = written(recorder, path)
    assert [row.decision.outcome for row in rows] == [{"score": 0.5}, None]
    assert rows[0].decision.ack == how


def test_inputs_go_to_their_decision_or_are_a_sample(path: Path) -> None:
    recorder = Recorder(Journal(path))
    recorder.decision(DECISION)
    inputs = {"type": "inputs", "mono_ns": 5, "engine": "chat"}
    recorder.inputs(inputs | {"tag": 1, "inputs": {"of": "the decision"}})
    recorder.inputs(inputs | {"tag": 0, "inputs": {"of": "a sample"}})
    recorder.inputs(inputs | {"tag": 7, "inputs": {"of": "nothing"}})
    recorder.close()
    with closing(JournalReader(path)) as reader:
        found = {each.inputs["of"]: each.decision for each in reader.recorded("chat")}
    assert found.keys() == {"the decision", "a sample"}
    assert found["a sample"] is None
    assert found["the decision"] is not None
    assert found["the decision"].reason == "because"


def test_inputs_make_way_for_all_else_when_the_disk_stalls(path: Path) -> None:
    recorder = Recorder(Journal(path))
    inputs = {"type": "inputs", "tag": 0, "mono_ns": 5, "engine": "chat", "inputs": {}}
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("begin immediate")
        for number in range(MAX_QUEUED_INPUTS + 10):
            recorder.event(Event(number, "mode", "sitsd", {}))
        before = recorder.dropped
        recorder.inputs(inputs)
        recorder.event(Event(1, "last", "sitsd", {}))
        assert recorder.dropped == before + 1
        other.execute("rollback")
    recorder.close()
    with closing(JournalReader(path)) as reader:
        assert list(reader.recorded()) == []
        assert reader.recent_events(1)[0].event.kind == "last"


def test_a_dead_controllers_decisions_get_no_outcome(path: Path) -> None:
    recorder = Recorder(Journal(path))
    recorder.decision(DECISION)
    recorder.forget_open()
    recorder.outcome(1, {"score": 0.5})
    (row,) = written(recorder, path)
    assert row.decision.outcome is None


def test_what_is_queued_is_written_before_the_end_in_order(path: Path) -> None:
    recorder = Recorder(Journal(path))
    for number in range(500):
        recorder.event(Event(number, "mode", "sitsd", {"n": number}))
    recorder.close()
    with closing(JournalReader(path)) as reader:
        rows = reader.recent_events(1000)
    assert [row.event.detail["n"] for row in reversed(rows)] == list(range(500))


def test_a_stalled_disk_holds_nobody_up_nor_the_end_and_what_it_cost_is_counted(
    path: Path,
) -> None:
    recorder = Recorder(Journal(path))
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("begin immediate")
        for number in range(MAX_QUEUED + 100):
            recorder.event(Event(number, "mode", "sitsd", {}))
        assert recorder.dropped > 0
        closer = threading.Thread(target=recorder.close, daemon=True)
        closer.start()
        closer.join(30)
        assert not closer.is_alive()
    assert recorder.dropped + recorder.journal.dropped >= MAX_QUEUED
