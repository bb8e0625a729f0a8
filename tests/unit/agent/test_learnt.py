import json
import logging
from pathlib import Path
from typing import Any, Final

import pytest

from agent.learnt import LearntFile
from controller.warm import MOST_KEPT

ROW: Final = [0.0, 0.0, 0.0, 0.0]
LEARNT: Final[dict[str, Any]] = {
    "theta": [8.0, 6.0, 0.4, 0.5],
    "covariance": [ROW, ROW, ROW, ROW],
    "error": 0.05,
    "margins": {"7": 0.8},
}


def known(path: Path) -> dict[str, Any]:
    engines: dict[str, Any] = dict(LearntFile(path).message()["engines"])
    return engines


def test_what_was_learnt_is_there_after_a_restart(tmp_path: Path) -> None:
    LearntFile(tmp_path / "learnt.json").take("abc", LEARNT)
    assert known(tmp_path / "learnt.json") == {"abc": LEARNT}


def test_without_a_file_nothing_is_known(tmp_path: Path) -> None:
    assert known(tmp_path / "learnt.json") == {}


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", '{"version": 2, "engines": {}}', '{"version": 1}', "[" * 100_000],
)
def test_a_file_that_is_broken_is_as_none_and_is_said(
    tmp_path: Path, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "learnt.json"
    path.write_text(text)
    with caplog.at_level(logging.WARNING):
        assert known(path) == {}
    assert str(path) in caplog.text
    LearntFile(path).take("abc", LEARNT)
    assert known(path) == {"abc": LEARNT}


def test_an_entry_that_is_broken_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "learnt.json"
    engines = {"abc": LEARNT, "bad": {**LEARNT, "theta": [1, 2]}}
    path.write_text(json.dumps({"version": 1, "engines": engines}))
    assert known(path) == {"abc": LEARNT}


def test_no_more_than_the_newest_are_kept(tmp_path: Path) -> None:
    file = LearntFile(tmp_path / "learnt.json")
    for number in range(MOST_KEPT + 3):
        file.take(str(number), LEARNT)
    file.take("3", LEARNT)
    assert list(known(tmp_path / "learnt.json")) == [*map(str, range(4, MOST_KEPT + 3)), "3"]


def test_a_directory_that_is_gone_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = LearntFile(tmp_path / "gone" / "learnt.json")
    file.take("a", LEARNT)
    file.take("b", LEARNT)
    assert caplog.text.count("could not write") == 1
    assert set(file.message()["engines"]) == {"a", "b"}
