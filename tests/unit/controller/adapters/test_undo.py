import json
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from controller.adapters.undo import Undo, UndoError, UndoFile, restore
from tests.unit.controller.adapters.file_engine import START, engine_at


def undo_of(path: Path, running: float, wanted: float | None = None) -> Undo:
    return Undo(
        kind="file",
        settings={},
        instance="first",
        kept={"path": str(path)},
        start=START,
        values={**START, "max_running": running},
        wanted=None if wanted is None else {**START, "max_running": wanted},
    )


def test_what_was_saved_is_loaded(tmp_path: Path) -> None:
    file = UndoFile(tmp_path / "undo")
    assert file.load() is None
    undo = undo_of(tmp_path, 3, 2)
    file.save(undo)
    assert file.load() == undo
    assert file.path.stat().st_mode & 0o777 == 0o600
    file.clear()
    assert file.load() is None
    file.close()


def test_one_process_has_the_file(tmp_path: Path) -> None:
    first = UndoFile(tmp_path / "undo")
    with pytest.raises(UndoError, match="an adapter that runs holds it"):
        UndoFile(tmp_path / "undo")
    first.close()
    UndoFile(tmp_path / "undo").close()


def test_the_lock_goes_with_its_holder(tmp_path: Path) -> None:
    code = (
        "import os, pathlib, signal, sys; from controller.adapters.undo import UndoFile;"
        "held = UndoFile(pathlib.Path(sys.argv[1])); os.kill(os.getpid(), signal.SIGKILL)"
    )
    ended = subprocess.run([sys.executable, "-c", code, str(tmp_path / "undo")], check=False)
    assert ended.returncode < 0
    UndoFile(tmp_path / "undo").close()


WHOLE = asdict(undo_of(Path("/engine"), 3))
NONSENSE = st.one_of(
    st.text(max_size=60),
    st.lists(st.integers()).map(json.dumps),
    st.builds(
        lambda key, value: json.dumps({**WHOLE, key: value}),
        st.sampled_from(list(WHOLE)),
        st.sampled_from([3, [], True, {"max_running": "3"}, {"max_running": {}}]),
    ).filter(lambda text: json.loads(text)["kept"] == WHOLE["kept"]),
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(NONSENSE.filter(lambda text: '"settings": {"max_running": "3"}' not in text))
def test_a_file_of_nonsense_is_told_of_and_put_aside(tmp_path: Path, text: str) -> None:
    file = UndoFile(tmp_path / "undo")
    try:
        file.path.write_bytes(text.encode(errors="replace"))
        with pytest.raises(UndoError, match="could not read undo file"):
            file.load()
        assert file.load() is None
        assert Path(f"{file.path}.corrupt").exists()
    finally:
        file.close()


@pytest.mark.parametrize(
    ("found", "values", "wanted", "then"),
    [
        (3, 3, None, 8),
        (8, 3, None, 8),
        (5, 3, None, 5),
        (5, 3, 6, 8),
        (6, 3, 6, 8),
        (2, 3, 6, 2),
        (7, 3, 6, 8),
    ],
)
def test_what_is_ours_is_put_back_and_what_is_not_is_left(
    tmp_path: Path, found: int, values: int, wanted: int | None, then: int
) -> None:
    engine = engine_at(tmp_path / "engine")
    engine.set("first", max_running=found, max_queued=100)
    said = restore(undo_of(engine.path, values, wanted), engine)
    assert engine.values() == {"max_running": then, "max_queued": 100}
    assert ("left at" in said) == (then != 8)


def test_an_engine_that_restarted_is_left_as_it_is(tmp_path: Path) -> None:
    engine = engine_at(tmp_path / "engine")
    engine.set("second", max_running=3, max_queued=100)
    assert "restarted" in restore(undo_of(engine.path, 3), engine)
    assert not engine.writes


def test_a_knob_that_was_given_up_is_left(tmp_path: Path) -> None:
    engine = engine_at(tmp_path / "engine")
    engine.set("first", max_running=3, max_queued=7)
    undo = undo_of(engine.path, 3)
    restore(replace(undo, start={"max_queued": 100}, values={**START, "max_queued": 7}), engine)
    assert engine.values() == {"max_running": 3, "max_queued": 100}


def test_a_file_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    with pytest.raises(UndoError, match="could not use undo file"):
        UndoFile(tmp_path / "none" / "undo")
    file = UndoFile(tmp_path / "undo")
    Path(f"{file.path}.new").mkdir()
    with pytest.raises(UndoError, match="could not write undo file"):
        file.save(undo_of(tmp_path, 3))
    file.close()
