"""How fast memory is taken, and how much a request takes: what the readings of some time say.

Readings scatter (caches are filled and dropped, a batch ends), so both are fitted robustly.
"""

from collections import deque
from collections.abc import Sequence
from itertools import combinations
from statistics import median
from typing import Final

from controller.memory_sentinel import Bound

GROWTH_NS: Final = 3_000_000_000
"""Growth is fitted over this long; a ramp is seen after a third of it."""

SUDDEN_NS: Final = 500_000_000
MOST_POINTS: Final = 16
"""Points that a fit takes, evenly: 120 pairs."""

EVENTS_NS: Final = 5_000_000_000
PRESSURE_NS: Final = 2_000_000_000

REQUESTS_NS: Final = 60_000_000_000
REQUESTS_EVERY_NS: Final = 500_000_000
LEAST_SPREAD: Final = 2.0
"""Requests by which low and high counts must differ to say what one takes."""

LEAST_THIRD: Final = 3
"""Points whose median one wild one does not move, such as the first, when an engine warms up."""

Point = tuple[float, float]


def slope(points: Sequence[Point]) -> float:
    """The median of the slopes between all pairs of points (Theil 1950, Sen 1968); 0 for too few.

    Up to 29% of the points may be anything without moving it far.
    """
    slopes = [(y2 - y1) / (x2 - x1) for (x1, y1), (x2, y2) in combinations(points, 2) if x1 != x2]
    return median(slopes) if slopes else 0.0


def per_unit(points: Sequence[Point]) -> float | None:
    """How much y grows with x: a line through the medians of its low and high thirds (Tukey 1970).

    Cheap for many points. None when x hardly differs, or for too few.
    """
    ordered = sorted(points)
    third = len(ordered) // 3
    if third < LEAST_THIRD:
        return None
    low, high = ordered[:third], ordered[-third:]
    apart = median(x for x, _ in high) - median(x for x, _ in low)
    if apart < LEAST_SPREAD:
        return None
    return (median(y for _, y in high) - median(y for _, y in low)) / apart


class Growth:
    """What is left of one limit, over the last seconds."""

    def __init__(self) -> None:
        self._readings: deque[tuple[int, int]] = deque()

    def take(self, now_ns: int, path: str, limit: int, used: int) -> Bound:
        """Add a reading, in bytes; returns the limit as it stands and as it goes."""
        readings = self._readings
        readings.append((now_ns, used))
        while readings[0][0] < now_ns - GROWTH_NS:
            readings.popleft()
        stride = -(-len(readings) // MOST_POINTS)
        points = [(at / 1e9, float(had)) for at, had in list(readings)[::-stride]]
        lately = next(each for each in readings if each[0] >= now_ns - SUDDEN_NS)
        apart_s = (now_ns - lately[0]) / 1e9
        sudden = (used - lately[1]) / apart_s if apart_s > 0 else 0.0
        return Bound(path, limit, limit - used, slope(points), sudden)


class Rise:
    """How much a counter has risen over the last while."""

    def __init__(self, window_ns: int) -> None:
        self._window_ns = window_ns
        self._readings: deque[tuple[int, int]] = deque()

    def take(self, now_ns: int, value: int) -> int:
        """Add a reading; returns by how much it rose, 0 after it began anew."""
        readings = self._readings
        if readings and value < readings[-1][1]:
            readings.clear()
        readings.append((now_ns, value))
        while len(readings) > 1 and readings[1][0] <= now_ns - self._window_ns:
            readings.popleft()
        return value - readings[0][1]

    @property
    def seconds(self) -> float:
        """Over how long."""
        return (self._readings[-1][0] - self._readings[0][0]) / 1e9 if self._readings else 0.0


class PerRequest:
    """How much memory a running request takes by its end, from the last minute.

    Requests are counted by what they have of what they will have: two that are half done are one.
    """

    def __init__(self) -> None:
        self._readings: deque[tuple[int, Point]] = deque()
        self._value: float | None = None

    def take(self, now_ns: int, had: float, used: int) -> float | None:
        """Add a reading: requests' worth that was `had`, and bytes; returns what is known, or None.

        A figure found stays while the count no longer varies, as it does under a cap.
        """
        readings = self._readings
        if readings and now_ns - readings[-1][0] < REQUESTS_EVERY_NS:
            return self._value
        readings.append((now_ns, (had, float(used))))
        while readings[0][0] < now_ns - REQUESTS_NS:
            readings.popleft()
        found = per_unit([point for _, point in readings])
        if found is not None:
            self._value = max(0.0, found)
        return self._value

    @property
    def most_had(self) -> float:
        """The most requests' worth that was had at once in the last minute; 0 for none."""
        return max((had for _, (had, _) in self._readings), default=0.0)
