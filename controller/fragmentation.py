"""How scattered free memory is, from a map of what is allocated (seeds B6 and A13).

Only for engines whose allocator can be seen: without a map it is unknown, not zero.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from controller.engines.page import Allocator


class Block(NamedTuple):
    """An allocated block: where it begins and how long it is, in bytes."""

    start: int
    size: int


def gaps(blocks: Iterable[Block], total: int) -> list[int]:
    """The sizes of the free gaps between `blocks` in a memory of `total` bytes, in order.

    Blocks may come in any order and overlap; what lies beyond the memory is cut off. ValueError for
    a memory of no size.
    """
    if total <= 0:
        raise ValueError(f"could not look for gaps: the memory has {total} bytes")
    found, end = [], 0
    for start, size in sorted(blocks):
        if start > end and end < total:
            found.append(min(start, total) - end)
        end = max(end, start + size)
    if end < total:
        found.append(total - end)
    return found


def gap_score(sizes: Sequence[int], total: int) -> float:
    """Σ gap² / total², 0…1 (seed B6).

    The text calls a high score fragmented. It is the other way round: one gap of half the memory
    scores 0.25, the same half in ten gaps 0.025. It says how much of the memory is free in large
    pieces; `scatter` says how scattered it is.
    """
    return sum(size * size for size in sizes) / (total * total)


def scatter(sizes: Sequence[int]) -> float:
    """(free − largest gap) / free, 0…1; 0 with nothing free.

    Seed A13 has (total − largest contiguous free block) / total, by which a memory that is full
    but whole is as bad as one in shreds; this is its share of what is free.
    """
    free = sum(sizes)
    return (free - max(sizes)) / free if free else 0.0


def of_allocator(allocator: Allocator | None) -> float | None:
    """Seed A13 for what an engine's allocator shows; None where that is not known."""
    return unavailable([allocator.largest], allocator.total) if allocator is not None else None


def unavailable(sizes: Sequence[int], total: int) -> float:
    """(total − largest gap) / total, 0…1: seed A13 as written, the share one block can't have."""
    return (total - max(sizes, default=0)) / total
