"""The lines of those who may read the metrics."""

from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.passwords import MAX_USERS_BYTES, UsersError, read_users, user_line
from agent.sitsctl import main

LINE = user_line("scraper", "a")


@settings(max_examples=10, deadline=None)
@given(password=st.text(st.characters(exclude_categories=["Cs"]), min_size=1))
def test_a_line_holds_its_password_and_no_other(
    tmp_path_factory: pytest.TempPathFactory, password: str
) -> None:
    path = tmp_path_factory.mktemp("users") / "users"
    path.write_text(user_line("a", password))
    kept = read_users(path)["a"]
    assert kept.holds(password)
    assert not kept.holds(password + "x")


def test_the_same_password_twice_is_two_lines() -> None:
    assert user_line("a", "same") != user_line("a", "same")


@pytest.mark.parametrize("name", ["", "a b", "a:b", "a\nb", "é", "x" * 65])
def test_a_name_that_could_break_the_file_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="a user's name"):
        user_line(name, "x")


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("\n# nobody\n", "nobody is in it"),
        (f"{LINE}\n{LINE}\n", "line 2: the same user again"),
        ("a:b\n", "line 1: not NAME"),
        (LINE.replace(":14:", ":13:"), "line 1: not NAME"),
        (LINE.replace(":14:8:", ":14:99:"), "line 1: not NAME"),
        (LINE.replace(":14:8:1:", ":16:64:4:"), "line 1: not NAME"),
        (LINE.replace(":14:8:1:", ":99:8:1:"), "line 1: not NAME"),
        ("#" * (MAX_USERS_BYTES + 1), "over 65536 bytes"),
    ],
    # the salt is another one each time, and every process must collect the same names
    ids=["nobody", "twice", "not hashed", "too weak", "wide", "costly", "too costly", "too big"],
)
def test_a_file_that_does_not_hold_is_refused_with_its_line(
    tmp_path: Path, content: str, why: str
) -> None:
    path = tmp_path / "users"
    path.write_text(content)
    with pytest.raises(UsersError, match=why):
        read_users(path)


@given(content=st.binary(max_size=300))
def test_any_bytes_are_users_or_refused(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    path = tmp_path_factory.getbasetemp() / "any-users"
    path.write_bytes(content)
    with pytest.raises(UsersError):
        read_users(path)


def test_a_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsersError, match="is a directory"):
        read_users(tmp_path)


def test_the_command_makes_a_line_of_a_password_from_a_pipe(tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["metrics-user", "scraper"], input="pass word\n")
    assert done.exit_code == 0, done.output
    path = tmp_path / "users"
    path.write_text(done.output)
    assert read_users(path)["scraper"].holds("pass word")
    assert "pass word" not in done.output


@pytest.mark.parametrize(
    ("name", "given_", "why"),
    [("a b", "x\n", "a user's name"), ("a", "\n", "1 to 512 bytes"), ("a", "x" * 600, "1 to 512")],
)
def test_the_command_refuses_what_makes_no_line(name: str, given_: str, why: str) -> None:
    done = CliRunner().invoke(main, ["metrics-user", name], input=given_)
    assert done.exit_code == 2
    assert why in done.output
