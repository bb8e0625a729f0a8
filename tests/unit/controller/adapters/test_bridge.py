import json
import select
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from controller.adapters import bridge as bridge_module
from controller.adapters.bridge import Bridge
from controller.adapters.driver import AdapterError, EngineChangedError, Figures
from controller.adapters.undo import UndoFile, restore
from controller.engines.contract import ContractError
from controller.serving.leases import Leases
from tests.unit.controller.adapters.file_engine import START, FileEngine, bridge_to, engine_at

PATIENCE_S = 10


@pytest.fixture
def engine(tmp_path: Path) -> FileEngine:
    return engine_at(tmp_path / "engine")


@pytest.fixture
def undo(tmp_path: Path) -> Iterator[UndoFile]:
    made = UndoFile(tmp_path / "undo.json")
    yield made
    made.close()


@pytest.fixture
def bridge(engine: FileEngine, undo: UndoFile) -> Iterator[Bridge]:
    made = bridge_to(engine, undo)
    yield made
    made.close()


def asked(
    bridge: Bridge, lease_ms: int = 10_000, owner: str = "a", **values: float
) -> dict[str, Any]:
    def act(leases: Leases) -> dict[str, Any]:
        leases.set(time.monotonic_ns(), owner, leases.taken_epoch + 1, lease_ms, values)
        return {}

    return bridge.with_leases(act)


def state(bridge: Bridge) -> dict[str, Any]:
    return bridge.with_leases(lambda _: {})


def released(bridge: Bridge, owner: str = "a") -> dict[str, Any]:
    return bridge.with_leases(
        lambda leases: {"released": leases.release(time.monotonic_ns(), owner)}
    )


def work_until(bridge: Bridge, true: Callable[[], bool]) -> None:
    ends = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < ends
        select.select([bridge.wake], [], [], min(0.05, bridge.work()))


def test_a_set_is_pending_until_the_engine_has_it(bridge: Bridge, engine: FileEngine) -> None:
    answer = asked(bridge, max_running=3)
    assert (answer["state"], answer["pending"]) == ("pending", {"max_running": 3})
    assert answer["values"] == engine.values() == START
    assert select.select([bridge.wake], [], [], 0)[0]
    bridge.work()
    after = state(bridge)
    assert (after["state"], after["values"]) == ("applied", {**START, "max_running": 3})
    assert after["applied_epoch"] == answer["epoch"] == bridge.now().epoch
    assert engine.values() == {**START, "max_running": 3}
    assert bridge.now().max_running == 3


def test_the_undo_file_says_what_to_restore_before_the_engine_is_written_to(
    bridge: Bridge, engine: FileEngine, undo: UndoFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    write = engine.write

    def looking(values: Any) -> None:
        seen.append(json.loads(undo.path.read_text()))
        write(values)

    monkeypatch.setattr(engine, "write", looking)
    asked(bridge, max_running=3)
    bridge.work()
    assert [each["start"] for each in seen] == [START]
    assert [each["wanted"] for each in seen] == [{**START, "max_running": 3}]


def test_a_release_brings_the_start_values_back_and_leaves_nothing_to_undo(
    bridge: Bridge, engine: FileEngine, undo: UndoFile
) -> None:
    asked(bridge, max_running=3, max_queued=5)
    bridge.work()
    assert undo.path.exists()
    answer = released(bridge)
    assert answer["pending"] == START
    assert answer["owner"] is None
    bridge.work()
    assert engine.values() == state(bridge)["values"] == START
    assert not undo.path.exists()


def test_a_lease_that_runs_out_brings_the_start_values_back(
    bridge: Bridge, engine: FileEngine
) -> None:
    asked(bridge, lease_ms=30, max_running=3)
    bridge.work()
    assert engine.values()["max_running"] == 3
    work_until(bridge, lambda: engine.values() == START)
    assert bridge.now().lease_expiries_total == 1


def test_sets_during_a_slow_write_collapse_to_the_last(bridge: Bridge, engine: FileEngine) -> None:
    engine.slow_s = 0.2
    asked(bridge, max_running=7)
    worker = threading.Thread(target=bridge.work)
    worker.start()
    while not engine.writes:
        time.sleep(0.001)
    began = time.monotonic()
    answers = [asked(bridge, max_running=running) for running in (6, 5, 4)]
    assert time.monotonic() - began < engine.slow_s
    assert {answer["state"] for answer in answers} == {"pending"}
    worker.join()
    bridge.work()
    assert [each["max_running"] for each in engine.writes] == [7, 4]
    assert state(bridge)["applied_epoch"] == answers[-1]["epoch"]


def test_what_is_on_its_way_is_pending_even_if_what_was_is_wanted_again(
    bridge: Bridge, engine: FileEngine
) -> None:
    engine.slow_s = 0.2
    asked(bridge, max_running=7)
    worker = threading.Thread(target=bridge.work)
    worker.start()
    while not engine.writes:
        time.sleep(0.001)
    assert asked(bridge, max_running=8)["state"] == "pending"
    worker.join()
    bridge.work()
    assert state(bridge)["state"] == "applied"
    assert engine.values() == START


def test_a_change_the_engine_does_not_make_is_put_back_told_and_not_tried_again(
    bridge: Bridge, engine: FileEngine
) -> None:
    asked(bridge, max_running=6)
    bridge.work()
    engine.refuses.add(2)
    epoch = asked(bridge, max_running=2)["epoch"]
    bridge.work()
    after = state(bridge)
    assert after["values"]["max_running"] == engine.values()["max_running"] == 6
    assert "max_running 2 could not be set" in after["failed"]
    assert after["state"] == "applied"
    assert after["applied_epoch"] < epoch
    tried = len(engine.writes)
    with pytest.raises(ContractError) as caught:
        asked(bridge, max_running=2)
    assert caught.value.code == "failed"
    bridge.work()
    assert len(engine.writes) == tried
    assert asked(bridge, max_running=4)["pending"] == {"max_running": 4}
    bridge.work()
    assert engine.values()["max_running"] == 4


def test_a_change_that_could_not_be_undone_is_not_made(
    bridge: Bridge, engine: FileEngine, undo: UndoFile
) -> None:
    undo.path.with_name(f"{undo.path.name}.new").mkdir()
    asked(bridge, max_running=2)
    bridge.work()
    assert engine.values() == START
    assert "could not write undo file" in state(bridge)["failed"]


def test_a_foreign_change_under_a_lease_is_left_alone_and_the_rest_given_back(
    bridge: Bridge, engine: FileEngine, undo: UndoFile
) -> None:
    asked(bridge, max_running=3, max_queued=5)
    bridge.work()
    engine.set("first", max_running=6, max_queued=5)
    asked(bridge, max_running=2)
    bridge.work()
    assert engine.values() == {"max_running": 6, "max_queued": 100}
    after = state(bridge)
    assert after["values"] == engine.values()
    assert "max_running is 6, not 3" in after["owner"]
    assert not undo.path.exists()
    with pytest.raises(ContractError) as caught:
        asked(bridge, max_running=2)
    assert caught.value.code == "held"
    assert "max_running is 6" in str(caught.value)


def test_a_foreign_change_is_seen_without_a_write(
    bridge: Bridge, engine: FileEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bridge_module, "LOOK_NS", 1_000_000)
    monkeypatch.setattr(bridge_module, "SHARE", 0)
    asked(bridge, max_running=3)
    bridge.work()
    engine.set("first", max_running=6, max_queued=100)
    work_until(bridge, lambda: state(bridge)["owner"] != "a")


def test_knobs_are_granted_again_once_they_are_at_their_start_values(
    bridge: Bridge, engine: FileEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bridge_module, "LOOK_NS", 1_000_000)
    monkeypatch.setattr(bridge_module, "SHARE", 0)
    monkeypatch.setattr(bridge_module, "LEFT_ALONE_NS", 20_000_000)
    asked(bridge, max_running=3)
    bridge.work()
    engine.set("first", max_running=6, max_queued=100)
    work_until(bridge, lambda: state(bridge)["owner"] not in {"a", None})
    ends = time.monotonic() + 0.05
    work_until(bridge, lambda: time.monotonic() > ends)
    assert state(bridge)["owner"] is not None, "given up while the value is somebody else's"
    engine.set("first", **START)
    work_until(bridge, lambda: state(bridge)["owner"] is None)
    assert asked(bridge, max_running=3)["pending"] == {"max_running": 3}


def test_a_change_without_a_lease_makes_new_start_values(
    bridge: Bridge, engine: FileEngine
) -> None:
    bridge.work()
    engine.set("first", max_running=6, max_queued=100)
    asked(bridge, max_running=2)
    with pytest.raises(EngineChangedError, match="start values now"):
        bridge.work()
    assert engine.values()["max_running"] == 6


def test_a_restarted_engine_is_another(bridge: Bridge, engine: FileEngine) -> None:
    engine.set("second", **START)
    with pytest.raises(EngineChangedError, match="restarted"):
        bridge.work()


def test_an_engine_that_is_gone_under_a_lease_ends_the_bridge_with_its_undo_file(
    bridge: Bridge, engine: FileEngine, undo: UndoFile
) -> None:
    asked(bridge, max_running=3)
    bridge.work()
    engine.gone = True
    released(bridge)
    with pytest.raises(AdapterError):
        bridge.work()
    left = undo.load()
    assert left is not None
    engine.gone = False
    assert "max_running 3 → 8" in restore(left, engine)
    assert engine.values() == START


def test_an_engine_that_is_silent_for_a_moment_is_borne_with(
    bridge: Bridge, engine: FileEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.gone = True
    bridge.work()
    monkeypatch.setattr(bridge_module, "PATIENCE_NS", 0)
    with pytest.raises(AdapterError):
        work_until(bridge, lambda: False)


def test_stopping_brings_the_start_values_back(
    bridge: Bridge, engine: FileEngine, undo: UndoFile
) -> None:
    asked(bridge, max_running=3, max_queued=7)
    bridge.work()
    bridge.stop()
    assert engine.values() == START
    assert not undo.path.exists()


def test_stopping_leaves_what_somebody_else_set(bridge: Bridge, engine: FileEngine) -> None:
    asked(bridge, max_running=3, max_queued=7)
    bridge.work()
    engine.set("first", max_running=5, max_queued=7)
    bridge.stop()
    assert engine.values() == {"max_running": 5, "max_queued": 100}


def test_the_page_shows_what_the_engine_tells(bridge: Bridge, engine: FileEngine) -> None:
    engine.told = Figures(waiting=3, running=8, requests_total=20, finished_total=9)
    bridge.work()
    now = bridge.now()
    assert (now.waiting, now.running, now.requests_total, now.finished_total) == (3, 8, 20, 9)
    assert (now.steps, now.max_running) == (0, 8)
    assert now.updated_ns <= time.monotonic_ns()
    assert now.oldest_arrival_ns > 0
