"""How a run is watched: a live view on a terminal, a line every few seconds elsewhere."""

from typing import Any, Final

from rich.console import Console

LINE_EVERY_S: Final = 5.0


class Lines:
    """A line at the start of every part, and one every `LINE_EVERY_S` in it."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._said_s = 0.0

    def phase(self, title: str) -> None:
        """A new part of the run begins."""
        self._said_s = 0.0
        self._console.print(f"[bold]{title}[/bold]")

    def note(self, text: str) -> None:
        """Something worth a line."""
        self._console.print(f"  {text}", highlight=False, soft_wrap=True)

    def tick(self, status: dict[str, Any], elapsed_s: float) -> None:
        """What sitsd says now; printed when it is time."""
        if elapsed_s - self._said_s >= LINE_EVERY_S:
            self._said_s = elapsed_s
            self.note(f"{elapsed_s:3.0f} s  {_line(status)}")


def _line(status: dict[str, Any]) -> str:
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


def _ms(spread: dict[str, Any]) -> str:
    value = spread["p99"]
    return "–" if value is None else f"{value:.0f} ms"
