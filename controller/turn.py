"""Whose turn it is: with many engines a tick is about some of them, and none is longer for it."""

from collections.abc import Sequence
from typing import Final, TypeVar

Each = TypeVar("Each")

A_TICK: Final = 2
"""Deciding on two takes less than the half millisecond that a tick may take for it."""


class Turn:
    """Hands out what there is, so many at a time, one after another and all equally often."""

    def __init__(self) -> None:
        self._next = 0

    @staticmethod
    def ticks(count: int) -> int:
        """How many ticks it takes until all have had their turn."""
        return max(1, -(-count // A_TICK))

    def take(self, every: Sequence[Each]) -> Sequence[Each]:
        """The next of them."""
        if self._next >= len(every):
            self._next = 0
        begin, self._next = self._next, self._next + A_TICK
        return every[begin : self._next]
