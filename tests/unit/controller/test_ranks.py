import socket
from pathlib import Path

import pytest

from controller.ranks import is_pattern, sockets_at


def bound(path: Path) -> socket.socket:
    made = socket.socket(socket.AF_UNIX)
    made.bind(str(path))
    return made


def test_the_sockets_of_ranks_are_found_in_their_order_and_nothing_else(tmp_path: Path) -> None:
    names = ["admin-10.sock", "admin.sock", "admin-1.sock", "admin-2.sock"]
    made = [bound(tmp_path / name) for name in (*names, "other.sock")]
    (tmp_path / "admin-3.sock").write_text("a file")
    (tmp_path / "admin-4.sock").mkdir()
    (tmp_path / "admin-5.sock").symlink_to("nowhere")
    found = [path.name for path in sockets_at(tmp_path / "admin*.sock")]
    assert found == ["admin.sock", "admin-1.sock", "admin-2.sock", "admin-10.sock"]
    for each in made:
        each.close()


def test_where_there_is_no_directory_there_are_no_sockets(tmp_path: Path) -> None:
    assert sockets_at(tmp_path / "none" / "*.sock") == []


@pytest.mark.parametrize(
    ("path", "expected"), [("/run/*.sock", True), ("/run/*/a.sock", False), ("/run/a", False)]
)
def test_a_pattern_is_in_the_name_and_not_in_the_directory(path: str, expected: bool) -> None:
    assert is_pattern(Path(path)) is expected
    assert not is_pattern(None)
