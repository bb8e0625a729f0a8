"""Figures by name that only grow, kept as what each second added: who did what in the last minute.

The kernel's culprits and thread roles count from when the programs were loaded, and forget the
least recent when there are too many. Differences between two looks tell of the time between them.
What a look added is kept as machine words, an eighth of what Python's numbers take: 0.8 MB of ten
minutes, where 32 names grow all the time.
"""

from array import array
from collections import deque
from collections.abc import Hashable, Iterator, Mapping
from itertools import chain
from operator import add
from typing import Final, Generic, NamedTuple, TypeVar

KEPT: Final = 600
"""Looks that are kept: ten minutes at one a second."""

MOST: Final = 32
"""Names kept of one look, those that grew most by their first figure."""

Key = TypeVar("Key", bound=Hashable)
Figures = tuple[int, ...]


class _Look(NamedTuple, Generic[Key]):
    """What one look added: the names in it, and their figures one after another."""

    at_ns: int
    keys: tuple[Key, ...]
    figures: "array[int]"

    def each(self) -> Iterator[tuple[Key, "array[int]"]]:
        """Every name with its figures."""
        width = len(self.figures) // max(1, len(self.keys))
        for place, key in enumerate(self.keys):
            yield key, self.figures[place * width : (place + 1) * width]


class Growth(Generic[Key]):
    """One engine's figures of one kind, by name; all have as many."""

    def __init__(self) -> None:
        self._last: Mapping[Key, Figures] | None = None
        self._added: deque[_Look[Key]] = deque(maxlen=KEPT)

    def take(self, at_ns: int, totals: Mapping[Key, Figures]) -> None:
        """Add a look. What shrank has begun again from zero; the first look adds nothing."""
        if self._last is not None:
            added = {key: _since(now, self._last.get(key)) for key, now in totals.items()}
            grew = [key for key, figures in added.items() if figures[0] > 0]
            if len(grew) > MOST:
                most = set(sorted(grew, key=lambda key: -added[key][0])[:MOST])
                grew = [key for key in grew if key in most]
            keys = tuple(grew)
            if self._added and self._added[-1].keys == keys:
                keys = self._added[-1].keys  # mostly the same: kept once
            figures = array("q", chain.from_iterable(added[key] for key in keys))
            self._added.append(_Look(at_ns, keys, figures))
        self._last = totals

    def window(self, since_ns: int) -> dict[Key, Figures]:
        """What was added after `since_ns`, the most first."""
        sums: dict[Key, Figures] = {}
        for look in reversed(self._added):
            if look.at_ns <= since_ns:
                break
            for key, figures in look.each():
                before = sums.get(key)
                sums[key] = tuple(figures if before is None else map(add, before, figures))
        return dict(sorted(sums.items(), key=lambda item: -item[1][0]))


def _since(now: Figures, before: Figures | None) -> Figures:
    if before is None or any(a < b for a, b in zip(now, before, strict=True)):
        return now
    return tuple(a - b for a, b in zip(now, before, strict=True))
