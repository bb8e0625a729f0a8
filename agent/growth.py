"""Figures by name that only grow, kept as what each second added: who did what in the last minute.

The kernel's culprits and thread roles count from when the programs were loaded, and forget the
least recent when there are too many. Differences between two looks tell of the time between them.
"""

from collections import deque
from collections.abc import Hashable, Mapping
from typing import Final, Generic, TypeVar

KEPT: Final = 600
"""Looks that are kept: ten minutes at one a second."""

MOST: Final = 32
"""Names kept of one look, those that grew most by their first figure."""

Key = TypeVar("Key", bound=Hashable)
Figures = tuple[int, ...]


class Growth(Generic[Key]):
    """One engine's figures of one kind, by name."""

    def __init__(self) -> None:
        self._last: Mapping[Key, Figures] | None = None
        self._added: deque[tuple[int, dict[Key, Figures]]] = deque(maxlen=KEPT)

    def take(self, at_ns: int, totals: Mapping[Key, Figures]) -> None:
        """Add a look. What shrank has begun again from zero; the first look adds nothing."""
        if self._last is not None:
            added = {key: _since(now, self._last.get(key)) for key, now in totals.items()}
            grew = [key for key, figures in added.items() if figures[0] > 0]
            grew.sort(key=lambda key: -added[key][0])
            self._added.append((at_ns, {key: added[key] for key in grew[:MOST]}))
        self._last = totals

    def window(self, since_ns: int) -> dict[Key, Figures]:
        """What was added after `since_ns`, the most first."""
        sums: dict[Key, Figures] = {}
        for at_ns, added in reversed(self._added):
            if at_ns <= since_ns:
                break
            for key, figures in added.items():
                before = sums.get(key)
                sums[key] = (
                    figures
                    if before is None
                    else tuple(a + b for a, b in zip(before, figures, strict=True))
                )
        return dict(sorted(sums.items(), key=lambda item: -item[1][0]))


def _since(now: Figures, before: Figures | None) -> Figures:
    if before is None or any(a < b for a, b in zip(now, before, strict=True)):
        return now
    return tuple(a - b for a, b in zip(now, before, strict=True))
