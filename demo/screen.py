"""How a run is watched: a live view on a terminal, a line every few seconds elsewhere."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, Protocol

from rich.console import Console, Group
from rich.layout import Layout
from rich.live import Live
from rich.text import Text

from agent.top import History, frame

LINE_EVERY_S: Final = 5.0

Json = dict[str, Any]


class Screen(Protocol):
    """Where the run shows how it goes."""

    def phase(self, title: str) -> None:
        """A new part of the run begins."""

    def note(self, text: str) -> None:
        """Something worth a line."""

    def tick(self, status: Json, decisions: Sequence[Json], elapsed_s: float) -> None:
        """What sitsd says now, `elapsed_s` into the part, and its newest decisions."""


@contextmanager
def screen_for(console: Console) -> Iterator[Screen]:
    """The screen that suits `console`; the terminal is as it was after it."""
    lines = Lines(console)
    if not console.is_terminal:
        yield lines
        return
    with Live(console=console, screen=True, auto_refresh=False) as live:
        view = LiveView(live)
        yield view
    for line in view.said:
        console.print(line, soft_wrap=True)


class Lines:
    """A line at the start of every part, and one every `LINE_EVERY_S` in it."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._said_s = 0.0

    def phase(self, title: str) -> None:
        """A new part of the run begins."""
        self._said_s = 0.0
        self._console.print(Text(title, "bold"), soft_wrap=True)

    def note(self, text: str) -> None:
        """Something worth a line."""
        self._console.print(Text(f"  {text}"), soft_wrap=True)

    def tick(self, status: Json, decisions: Sequence[Json], elapsed_s: float) -> None:
        """What sitsd says now; printed when it is time."""
        if elapsed_s - self._said_s >= LINE_EVERY_S:
            self._said_s = elapsed_s
            self.note(f"{elapsed_s:3.0f} s  {_line(status)}")


class LiveView:
    """The part of the run above what `sitsctl top` shows. `said` is what stays on the terminal."""

    def __init__(self, live: Live) -> None:
        self.said: list[Text] = []
        self._live = live
        self._history = History()
        self._title = ""

    def phase(self, title: str) -> None:
        """A new part of the run begins."""
        self._title = title
        self.said.append(Text(title, "bold"))
        self._live.update(Text(title, "bold reverse"), refresh=True)

    def note(self, text: str) -> None:
        """Something worth a line."""
        self.said.append(Text(f"  {text}"))
        self._live.update(Group(*self.said), refresh=True)

    def tick(self, status: Json, decisions: Sequence[Json], elapsed_s: float) -> None:
        """What sitsd says now."""
        self._history.add(status, decisions)
        layout = Layout()
        layout.split_column(
            Layout(Text(f"{self._title}  {max(0.0, elapsed_s):.0f} s", "bold reverse"), size=2),
            Layout(frame(status, self._history)),
        )
        self._live.update(layout, refresh=True)


def _line(status: Json) -> str:
    engine = status["engines"][0]
    weight = engine["cpu_weight"]
    return ", ".join(
        [
            f"{engine['totals']['first_chunks']} of {engine['totals']['requests']} requests begun",
            f"TTFT P99 {_ms(engine['ttft_ms'])}, gap P99 {_ms(engine['gap_ms'])}",
            f"cause {engine['cause']}",
            f"CPU weight {'–' if weight is None else weight['value']}",
        ]
    )


def _ms(spread: Json) -> str:
    value = spread["p99"]
    return "–" if value is None else f"{value:.0f} ms"
