"""From a counter that is read now and then to a series at equal intervals."""

from typing import Final

BUCKET_NS: Final = 1_000_000_000
LONGEST_PAUSE: Final = 60
"""After a pause of more intervals than this the series starts anew."""


class Buckets:
    """Rates over one second each, of a count that only grows."""

    __slots__ = ("_length_ns", "_since_ns", "_total")

    def __init__(self, first_ns: int = BUCKET_NS) -> None:
        """The first interval ends after `first_ns`, at least `BUCKET_NS`."""
        self._length_ns = first_ns
        self._since_ns: int | None = None
        self._total = 0

    def take(self, now_ns: int, total: int) -> tuple[float, ...]:
        """The rates a second of the intervals that have ended by `now_ns`, most often none.

        An interval ends at the first reading a second or more after the one before ended, and its
        rate is over the time it really took. A pause of several seconds is as many intervals of
        the same rate. A count that fell was started anew with its engine, and tells nothing.
        """
        if self._since_ns is None or now_ns < self._since_ns or total < self._total:
            self._since_ns, self._total = now_ns, total
            return ()
        elapsed_ns = now_ns - self._since_ns
        if elapsed_ns < self._length_ns:
            return ()
        self._length_ns = BUCKET_NS
        rate = (total - self._total) / (elapsed_ns / 1e9)
        self._since_ns, self._total = now_ns, total
        intervals = elapsed_ns // BUCKET_NS
        return (rate,) * intervals if intervals <= LONGEST_PAUSE else ()
