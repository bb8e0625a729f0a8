"""Whether one series follows another, after how long, and how sure that is. Pure functions."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

Series = Sequence[float | None]
"""One value a sample; None where it was not measured."""

MAX_LAG: Final = 10
"""In samples."""

MIN_PAIRS: Final = 30
MIN_CHANGES: Final = 5
SIGNIFICANT: Final = 2.84
"""|rho| must be this many times 1/√n to be more than chance: two-sided 5% over 11 lags tried."""


HELD_FOR: Final = 3
"""A value not measured is taken to be the last one for up to this many samples."""


@dataclass(frozen=True, slots=True)
class Link:
    """How one figure follows another: the largest correlation over lags of 0 to `MAX_LAG`.

    `rho` is Pearson's, None when there is nothing to tell (`detail` says why). `samples` are the
    pairs it rests on, `effective` how many independent ones those are worth, since neighbouring
    samples are alike (n·(1 - a·b)/(1 + a·b) with the two lag-1 autocorrelations; Bartlett 1935).
    """

    cause: str
    effect: str
    rho: float | None = None
    lag_ms: float | None = None
    samples: int = 0
    effective: float = 0.0
    detail: str = ""


def correlate(cause: str, effect: str, x: Series, y: Series, sample_ms: float) -> Link:
    """The lag at which `y` follows `x` most closely; both have one sample every `sample_ms`."""
    nothing = Link(cause, effect)
    for name, series in ((cause, x), (effect, y)):
        known = [v for v in series if v is not None]
        if len(known) < MIN_PAIRS:
            return replace(nothing, detail=f"too few samples of {name}", samples=len(known))
        if sum(a != b for a, b in pairwise(known)) < MIN_CHANGES:
            return replace(nothing, detail=f"not enough variation in {name}", samples=len(known))
    x, y = held(x), held(y)
    best: tuple[float, int, list[tuple[float, float]]] | None = None
    for lag in range(MAX_LAG + 1):
        pairs = [
            (a, b) for a, b in zip(x, y[lag:], strict=False) if a is not None and b is not None
        ]
        rho = _pearson(pairs) if len(pairs) >= MIN_PAIRS else None
        if rho is not None and (best is None or abs(rho) > abs(best[0])):
            best = (rho, lag, pairs)
    if best is None:
        return replace(nothing, detail="too few samples of both at once")
    rho, lag, pairs = best
    effective = _effective(pairs)
    chance = abs(rho) * effective**0.5 < SIGNIFICANT
    return Link(
        cause,
        effect,
        rho=rho,
        lag_ms=lag * sample_ms,
        samples=len(pairs),
        effective=effective,
        detail="may be chance" if chance else "",
    )


def held(series: Series) -> Series:
    """The series with short gaps filled; what is filled blurs a lag by as much."""
    made: list[float | None] = []
    last: float | None = None
    age = 0
    for value in series:
        age = 0 if value is not None else age + 1
        last = value if value is not None else last
        made.append(last if age <= HELD_FOR else None)
    return made


def _pearson(pairs: Sequence[tuple[float, float]]) -> float | None:
    """Pearson's correlation; None where one of the two does not vary."""
    n = len(pairs)
    if n < 2:
        return None
    mean_x = sum(a for a, _ in pairs) / n
    mean_y = sum(b for _, b in pairs) / n
    xx = sum((a - mean_x) ** 2 for a, _ in pairs)
    yy = sum((b - mean_y) ** 2 for _, b in pairs)
    if not xx * yy:
        return None
    xy = sum((a - mean_x) * (b - mean_y) for a, b in pairs)
    return max(-1.0, min(1.0, float(xy / (xx * yy) ** 0.5)))


def _effective(pairs: Sequence[tuple[float, float]]) -> float:
    a = _pearson([(p[0], q[0]) for p, q in pairwise(pairs)]) or 0.0
    b = _pearson([(p[1], q[1]) for p, q in pairwise(pairs)]) or 0.0
    both = min(0.99, max(0.0, a * b))
    return len(pairs) * (1 - both) / (1 + both)
