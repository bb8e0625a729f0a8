"""Pictures on an emulated terminal: what is shown, and how little is written for it."""

import io
from collections.abc import Iterator

import pyte
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from rich.text import Text

from agent.full_screen import Show, full_screen

WIDTH, HEIGHT = 20, 5
LINES = st.lists(st.text("ab é█ ", max_size=WIDTH), max_size=HEIGHT)


class Emulated:
    """A terminal, what it shows, and how many characters were written for that."""

    def __init__(self) -> None:
        self.file = io.StringIO()
        self.console = Console(
            file=self.file, width=WIDTH, height=HEIGHT, force_terminal=True, color_system="256"
        )
        self._screen = pyte.Screen(WIDTH, HEIGHT)
        self._stream = pyte.Stream(self._screen)

    def shows(self) -> list[str]:
        self._stream.feed(self.file.getvalue())
        self.file.seek(0)
        self.file.truncate()
        return [line.rstrip() for line in self._screen.display]

    def resize(self, width: int, height: int) -> None:
        self.console.size = (width, height)
        self._screen.resize(height, width)


@pytest.fixture
def terminal() -> Emulated:
    return Emulated()


@pytest.fixture
def show(terminal: Emulated) -> Iterator[Show]:
    with full_screen(terminal.console) as shown:
        yield shown


def picture(*lines: str, style: str = "") -> Text:
    return Text("\n".join(lines), style)


@given(st.lists(LINES, min_size=1, max_size=5))
def test_what_is_seen_is_the_last_picture_whatever_was_there_before(
    pictures: list[list[str]],
) -> None:
    terminal = Emulated()
    with full_screen(terminal.console) as show:
        for lines in pictures:
            show(picture(*lines))
            expected = [line.rstrip() for line in lines] + [""] * (HEIGHT - len(lines))
            assert terminal.shows() == expected[:HEIGHT]


def test_only_lines_that_change_are_written(terminal: Emulated, show: Show) -> None:
    show(picture("first", "second", "third"))
    terminal.shows()
    show(picture("first", "other", "third"))
    written = terminal.file.getvalue()
    assert "other" in written
    assert "first" not in written
    assert "third" not in written


def test_a_picture_that_is_there_already_writes_nothing(terminal: Emulated, show: Show) -> None:
    show(picture("same"))
    terminal.shows()
    show(picture("same"))
    assert terminal.file.getvalue() == ""


def test_another_style_is_another_line(terminal: Emulated, show: Show) -> None:
    show(picture("same"))
    terminal.shows()
    show(picture("same", style="red"))
    assert "same" in terminal.file.getvalue()


def test_at_another_size_everything_is_written_anew(terminal: Emulated, show: Show) -> None:
    show(picture("same", "too"))
    terminal.shows()
    terminal.resize(30, 3)
    show(picture("same", "too"))
    assert terminal.shows() == ["same", "too", ""]
