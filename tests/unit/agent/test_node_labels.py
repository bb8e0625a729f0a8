from pathlib import Path
from typing import Any

import pytest

from agent.node_labels import FRAGMENTATION, NodeLabels, labels_of


def status(*shares: float | None) -> dict[str, Any]:
    return {
        "engines": {
            str(number): {"memory": {"gpu_fragmentation": share}}
            for number, share in enumerate(shares)
        }
    }


def test_the_label_is_of_the_engine_where_it_is_worst() -> None:
    assert labels_of(status(0.1, 0.374, None)) == {FRAGMENTATION: "37"}


@pytest.mark.parametrize("said", [None, status(), status(None), {"engines": {"a": {}}}])
def test_what_is_not_known_has_no_label(said: dict[str, Any] | None) -> None:
    assert labels_of(said) == {}


def test_the_file_is_replaced_whole_and_gone_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "sits"
    labels = NodeLabels(path)
    labels.show({FRAGMENTATION: "37"})
    first = path.stat().st_ino
    assert path.read_text() == f"{FRAGMENTATION}=37\n"
    labels.show({FRAGMENTATION: "37"})
    assert path.stat().st_ino == first
    labels.show({})
    assert path.read_text() == ""
    assert path.stat().st_ino != first
    labels.close()
    assert list(tmp_path.iterdir()) == []


def test_another_path_takes_the_old_file_away(tmp_path: Path) -> None:
    labels = NodeLabels(tmp_path / "a")
    labels.show({FRAGMENTATION: "1"})
    labels.move(tmp_path / "b")
    labels.show({FRAGMENTATION: "1"})
    assert [each.name for each in tmp_path.iterdir()] == ["b"]


def test_a_directory_that_is_not_there_is_a_problem_and_no_more(tmp_path: Path) -> None:
    labels = NodeLabels(tmp_path / "none" / "sits")
    labels.show({FRAGMENTATION: "1"})
    assert "could not write labels" in labels.problem


def test_without_a_path_nothing_is_written() -> None:
    labels = NodeLabels(None)
    labels.show({FRAGMENTATION: "1"})
    labels.close()
    assert labels.problem == ""
