from pathlib import Path

import pytest

from controller.limits.kept_open import KeptOpen


def opened() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_a_file_is_opened_once_and_read_anew_each_time(tmp_path: Path) -> None:
    files, before = KeptOpen(), opened()
    for said in ("one", "two"):
        (tmp_path / "f").write_text(said)
        assert files.read(tmp_path / "f") == files.text(tmp_path / "f") == said
        assert opened() == before + 1
    assert files.reads == 4
    files.close()
    assert opened() == before


def test_a_file_that_is_not_there_is_an_error_or_nothing(tmp_path: Path) -> None:
    files = KeptOpen()
    with pytest.raises(FileNotFoundError):
        files.read(tmp_path / "f")
    assert files.text(tmp_path / "f") == ""


def test_one_that_was_not_there_is_looked_for_again_after_a_close(tmp_path: Path) -> None:
    files = KeptOpen()
    assert files.text(tmp_path / "f") == ""
    (tmp_path / "f").write_text("late")
    assert files.text(tmp_path / "f") == ""
    files.close()
    assert files.text(tmp_path / "f") == "late"
    files.close()


def test_one_that_can_be_opened_and_not_be_read_is_nothing_as_long_as_that_is_so(
    tmp_path: Path,
) -> None:
    files = KeptOpen()
    # a directory is such a one
    assert (files.text(tmp_path), files.text(tmp_path)) == ("", "")
    assert files.reads == 2
    files.close()
