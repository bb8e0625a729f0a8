"""The policy file, replaced whole."""

import os
from pathlib import Path

import pytest

from agent.policy_file import replace_policy


def names(directory: Path) -> set[str]:
    return {each.name for each in directory.iterdir()}


def test_the_file_says_the_new_and_the_previous_one_the_old(tmp_path: Path) -> None:
    file = tmp_path / "policy.toml"
    file.write_text("old")
    previous = replace_policy(file, "new ä")
    assert previous == tmp_path / "policy.toml.previous"
    assert (file.read_text(), previous.read_text()) == ("new ä", "old")
    replace_policy(file, "newer")
    assert (file.read_text(), previous.read_text()) == ("newer", "new ä")
    assert names(tmp_path) == {"policy.toml", "policy.toml.previous"}


def test_the_same_content_is_not_written(tmp_path: Path) -> None:
    file = tmp_path / "policy.toml"
    file.write_text("old")
    before = file.stat().st_ino
    assert replace_policy(file, "old") is None
    assert file.stat().st_ino == before
    assert names(tmp_path) == {"policy.toml"}


def test_a_file_that_is_not_there_is_made_for_its_owner_alone(tmp_path: Path) -> None:
    file = tmp_path / "policy.toml"
    assert replace_policy(file, "new") is None
    assert file.read_text() == "new"
    assert file.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o644])
def test_both_have_the_mode_of_the_file_before(tmp_path: Path, mode: int) -> None:
    file = tmp_path / "policy.toml"
    file.write_text("old")
    file.chmod(mode)
    previous = replace_policy(file, "new")
    assert previous is not None
    assert {path.stat().st_mode & 0o777 for path in (file, previous)} == {mode}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
def test_both_have_the_owner_of_the_file_before(tmp_path: Path) -> None:
    file = tmp_path / "policy.toml"
    file.write_text("old")
    os.chown(file, 12, 34)
    previous = replace_policy(file, "new")
    assert previous is not None
    assert {(p.stat().st_uid, p.stat().st_gid) for p in (file, previous)} == {(12, 34)}


def test_a_symbolic_link_stays_one(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    real, link = tmp_path / "real" / "policy.toml", tmp_path / "policy.toml"
    real.write_text("old")
    link.symlink_to(real)
    assert replace_policy(link, "new") == tmp_path / "real" / "policy.toml.previous"
    assert link.is_symlink()
    assert real.read_text() == "new"


def test_where_it_can_t_be_written_everything_stays_as_it_was(tmp_path: Path) -> None:
    file = tmp_path / "policy.toml"
    file.write_text("old")
    (tmp_path / "policy.toml.previous").mkdir()
    with pytest.raises(OSError, match="directory"):
        replace_policy(file, "new")
    assert file.read_text() == "old"
    assert names(tmp_path) == {"policy.toml", "policy.toml.previous"}
