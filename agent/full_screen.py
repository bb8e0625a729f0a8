"""A full screen that is written only where it changes: nothing flickers, and ssh carries little."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from rich.console import Console, RenderableType
from rich.segment import Segment, Segments

Show = Callable[[RenderableType], None]

_CLEAR: Final = "\x1b[2J"
_BEGIN, _END = "\x1b[?2026h", "\x1b[?2026l"
"""Around what belongs together: terminals that know synchronized output draw it at once."""


@contextmanager
def full_screen(console: Console) -> Iterator[Show]:
    """A function that shows a picture in the size of the terminal; it is then as it was before."""
    console.set_alt_screen(True)
    console.show_cursor(False)
    painter = _Painter(console)
    try:
        yield painter.show
    finally:
        console.show_cursor(True)
        console.set_alt_screen(False)


class _Painter:
    """Knows what every line of the screen shows."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._size = (0, 0)
        self._lines: list[str] = []

    def show(self, picture: RenderableType) -> None:
        """Write the lines of `picture` that differ from what is there."""
        width, height = size = self._console.size
        options = self._console.options.update(width=width, height=height)
        lines = [self._written(line) for line in self._console.render_lines(picture, options)]
        before = self._lines if size == self._size else [None] * height
        changed = "".join(
            f"\x1b[{row};1H{line}"
            for row, (line, shown) in enumerate(zip(lines, before, strict=True), start=1)
            if line != shown
        )
        if changed:
            clear = "" if size == self._size else _CLEAR
            self._console.file.write(f"{_BEGIN}{clear}{changed}{_END}")
            self._console.file.flush()
        self._lines, self._size = lines, size

    def _written(self, line: list[Segment]) -> str:
        """A line as it goes to the terminal; it is padded to the full width."""
        with self._console.capture() as captured:
            self._console.print(Segments(line), end="", soft_wrap=True)
        return captured.get()
