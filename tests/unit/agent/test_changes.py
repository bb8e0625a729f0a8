"""Changes by hand between who asks, the journal and the controller."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from agent.agent_view import ApiError, JsonObject
from agent.changes import Changes
from agent.main_thread import MainThread
from agent.recorder import Recorder
from controller.journal import Journal, OpenChange

PATIENCE_S = 10
DETAIL = {"values": {"max_running": 8}, "places": {}}


class Desk:
    """`Changes` with a main thread of its own; the test is the controller."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "journal.db"
        self.recorder = Recorder(Journal(self.path))
        self.told: list[Mapping[str, Any]] = []
        self.runs = True
        self.main = MainThread(lambda: None)
        left = self.recorder.journal.open_changes()
        self.changes = Changes(self.recorder, self.main, self._send, lambda: None, left)
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._turn)
        self._thread.start()

    def _send(self, message: Mapping[str, Any]) -> bool:
        if self.runs:
            self.told.append(message)
        return self.runs

    def _turn(self) -> None:
        while not self._ends.is_set():
            self.main.run()
            self.changes.tick()
            time.sleep(0.001)

    def told_next(self, kind: str) -> Mapping[str, Any]:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            for message in self.told:
                if message["type"] == kind:
                    self.told.remove(message)
                    return message
            assert time.monotonic() < deadline, f"no {kind}"
            time.sleep(0.001)

    def says(self, kind: str, change_id: int, **fields: Any) -> None:
        message = {"type": kind, "id": change_id, **fields}
        self.main.call(lambda: self.changes.said(message))

    def has_reached(self, change_id: int, stage: str, wait: bool = True) -> None:
        self.says("change", change_id, stage=stage, wait=wait, detail=DETAIL)

    def close(self) -> None:
        self._ends.set()
        self._thread.join()
        self.recorder.close()


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    made = Desk(tmp_path)
    yield made
    made.close()


class Asked:
    """Something asked in another thread, as the API's threads do; its answer or error."""

    def __init__(self, what: Callable[[], JsonObject]) -> None:
        self.answer: JsonObject | None = None
        self.error: ApiError | None = None
        self._thread = threading.Thread(target=self._run, args=(what,))
        self._thread.start()

    def _run(self, what: Callable[[], JsonObject]) -> None:
        try:
            self.answer = what()
        except ApiError as error:
            self.error = error

    def wait(self) -> "Asked":
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()
        return self


def ask(desk: Desk) -> Asked:
    return Asked(lambda: desk.changes.ask(["b", "a", "a"], {"max_running": 8}, 60, "why"))


def test_what_is_asked_goes_to_the_controller_and_its_answer_back(desk: Desk) -> None:
    asked = ask(desk)
    message = dict(desk.told_next("by_hand"))
    change_id = message.pop("id")
    assert message == {
        "type": "by_hand",
        "engines": ["a", "b"],
        "values": {"max_running": 8},
        "lease_ms": 60_000,
        "reason": "why",
    }
    until_ns = time.monotonic_ns() + 50_000_000_000
    desk.says("by_hand", change_id, state="applied", until_ns=until_ns)
    answer = asked.wait().answer
    assert answer is not None
    assert answer["state"] == "applied"
    assert 0 < answer["left_s"] <= 50


def test_what_the_controller_refuses_is_a_conflict(desk: Desk) -> None:
    asked = ask(desk)
    change_id = desk.told_next("by_hand")["id"]
    desk.says("by_hand", change_id, state="refused", why="a is not there")
    error = asked.wait().error
    assert error is not None
    assert (error.status, error.message) == (409, "nothing was changed: a is not there")


def test_without_a_controller_nothing_can_be_changed(desk: Desk) -> None:
    desk.runs = False
    error = ask(desk).wait().error
    assert error is not None
    assert error.status == 503


def test_who_waits_is_told_when_the_controller_dies(desk: Desk) -> None:
    asked = ask(desk)
    desk.told_next("by_hand")
    desk.main.call(desk.changes.controller_died)
    error = asked.wait().error
    assert error is not None
    assert error.status == 503


def test_a_stage_is_on_disk_before_the_controller_is_told_so(desk: Desk) -> None:
    desk.has_reached(7, "preparing")
    answer = desk.told_next("recorded")
    assert answer == {"type": "recorded", "id": 7, "stage": "preparing", "error": ""}
    other = Journal(desk.path)
    assert other.open_changes() == [OpenChange(7, "preparing", DETAIL)]
    other.close()


def test_the_next_controller_is_told_what_is_not_over(desk: Desk) -> None:
    for change_id, stage in ((7, "preparing"), (8, "preparing"), (8, "committing")):
        desk.has_reached(change_id, stage)
        desk.told_next("recorded")
    desk.has_reached(7, "over", wait=False)
    left = desk.main.call(desk.changes.unfinished)
    assert left["changes"] == [{"id": 8, "stage": "committing", "detail": DETAIL}]


def test_the_next_agent_takes_up_what_a_dead_one_left(desk: Desk, tmp_path: Path) -> None:
    desk.has_reached(7, "committing")
    desk.told_next("recorded")
    again = Desk(tmp_path)
    left = again.main.call(again.changes.unfinished)
    assert [each["id"] for each in left["changes"]] == [7]
    again.close()


def test_after_an_agent_that_stopped_there_is_nothing_to_take_up(
    desk: Desk, tmp_path: Path
) -> None:
    desk.has_reached(7, "committing")
    desk.told_next("recorded")
    desk.main.call(lambda: desk.changes.close("the agent stops"))
    desk.close()
    journal = Journal(tmp_path / "journal.db")
    assert journal.open_changes() == []
    journal.close()


def test_a_stage_that_can_not_be_written_is_said(desk: Desk) -> None:
    desk.recorder.journal.close()
    desk.has_reached(7, "preparing")
    assert desk.told_next("recorded")["error"] != ""
    assert desk.main.call(desk.changes.unfinished)["changes"] == []
