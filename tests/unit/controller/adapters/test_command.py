from pathlib import Path

import pytest
from click.testing import CliRunner

from controller.adapters.command import main
from controller.adapters.kinds import KINDS
from controller.policy_model import Adapter

HERE = ["--admin-socket", "/run/a.sock", "--undo-file", "/run/a.undo.json"]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["haproxy"], "--admin-socket and --undo-file are needed"),
        ([*HERE], "KIND, --admin-socket"),
        (["nginx", *HERE], "'nginx' is not one of"),
        (["haproxy", "--address", "/run/h.sock", *HERE], "--backend: an adapter of kind haproxy"),
        (
            ["haproxy", "--address", "h.sock", "--backend", "b", *HERE],
            "--address: must be an absolute path",
        ),
        (
            ["haproxy", "--address", "/h", "--backend", "b", "--model", "m", *HERE],
            "--model: an adapter of kind haproxy has no such setting",
        ),
    ],
)
def test_a_command_that_lacks_something_says_what(arguments: list[str], problem: str) -> None:
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 2
    assert problem in result.output


def test_undo_in_a_directory_without_files_has_nothing_to_do(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["--undo", str(tmp_path)])
    assert (result.exit_code, result.output) == (0, "")


def test_undo_of_a_file_that_makes_no_sense_fails_and_says_so(tmp_path: Path) -> None:
    (tmp_path / "chat.undo.json").write_text("{}")
    result = CliRunner().invoke(main, ["--undo", str(tmp_path)])
    assert result.exit_code == 1
    assert "adapter of chat: could not write the start values back" in result.output


def test_every_setting_of_every_kind_is_a_key_of_the_policy() -> None:
    for kind in KINDS.values():
        assert {*kind.needs, *kind.takes} <= {*Adapter.__slots__} - {"kind"}
