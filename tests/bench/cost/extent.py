"""How long the bench measures."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Extent:
    """`rounds` alternate; the rest are the lengths of one run of a part.

    `short_rounds` are of loads of a second or a few, which a shared machine disturbs most: more of
    them and shorter, for a median that a disturbance does not move.
    """

    rounds: int = 5
    short_rounds: int = 15
    turns: int = 60_000
    """Of the ping-pong: there and back."""
    chunks: int = 10_000
    window_s: float = 12.0
    reactions: int = 6
    many_engines_rounds: int = 3
    is_quick: bool = False


FULL: Final = Extent()
QUICK: Final = Extent(
    short_rounds=5,
    turns=30_000,
    chunks=8_000,
    window_s=3.0,
    reactions=2,
    many_engines_rounds=1,
    is_quick=True,
)
"""As many rounds, each shorter."""
