"""The stats page: what an engine shows of itself in shared memory, read without a round trip.

A file of `PAGE_BYTES`, little endian, mapped by the engine for writing. The agent reads it by
system calls: in a mapping of its own, an engine that cuts the file short would end the agent with
SIGBUS. A sequence lock guards it: the writer makes `sequence` odd, writes, makes it even; a reader
whose two looks at `sequence` differ, or are odd, reads again. `docs/engine-protocol.md`
gives the same table for other implementers; a writer on a weakly ordered CPU needs a release
fence around its two writes of `sequence`.
"""

import mmap
import os
import struct
import sys
from array import array
from collections.abc import Callable
from dataclasses import dataclass, fields
from operator import attrgetter
from pathlib import Path
from typing import Final

MAGIC: Final = b"SITSPAGE"
PAGE_VERSION: Final = 1
STEP_SLOTS: Final = 64
"""Steps kept: at 5 ms a step a reader that looks every 17 ms misses none."""

_HEADER: Final = struct.Struct("<8sIIQ")
_NOW: Final = struct.Struct("<22Q")
_STEP: Final = struct.Struct("<6Q")
NOW_AT: Final = 64
_STEPS_AT: Final = 256
_ALLOCATOR: Final = struct.Struct("<3Q")
_ALLOCATOR_AT: Final = 3328
PAGE_BYTES: Final = 4096
NOW_END: Final = NOW_AT + _NOW.size
SLOTS_AT: Final = tuple(_STEPS_AT + slot * _STEP.size for slot in range(STEP_SLOTS))
"""Where a step's fields are, by its index modulo `STEP_SLOTS`."""

SWAPPED: Final = sys.byteorder != "little"
_SEQUENCE_AT: Final = 16
_SEQUENCE: Final = struct.Struct("<Q")
SEQUENCE_WORD: Final = _SEQUENCE_AT // 8
pack_step: Final = _STEP.pack_into


@dataclass(frozen=True, slots=True)
class EngineNow:
    """What the engine is doing, as of `updated_ns` (CLOCK_MONOTONIC).

    `waiting_tokens` are prompt tokens not yet prefilled, of waiting and running requests;
    `oldest_arrival_ns` is the arrival time (CLOCK_MONOTONIC) of the longest waiting request, 0 when
    none waits. `kv_used` and `kv_total` are tokens. The `*_total` fields only grow. `epoch` is the
    last one in force, 0 without a lease; `max_running` and `max_batched_tokens` are the values in
    force now. The fields after `lease_expiries_total` are of relegation and shedding, 0 where the
    engine does neither: `deferred` requests wait behind others now, the longest for
    `longest_deferral_ms` since it arrived; `on_time_tokens` are prompt tokens of waiting requests
    that are not deferred.
    """

    updated_ns: int = 0
    steps: int = 0
    waiting: int = 0
    running: int = 0
    waiting_tokens: int = 0
    oldest_arrival_ns: int = 0
    kv_used: int = 0
    kv_total: int = 0
    requests_total: int = 0
    finished_total: int = 0
    prompt_tokens_total: int = 0
    generated_tokens_total: int = 0
    preemptions_total: int = 0
    epoch: int = 0
    max_running: int = 0
    max_batched_tokens: int = 0
    lease_expiries_total: int = 0
    deferred: int = 0
    deferred_total: int = 0
    longest_deferral_ms: int = 0
    shed_total: int = 0
    on_time_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Allocator:
    """What the engine's allocator has of its GPU's memory, in bytes.

    `free` bytes of `total` could be allocated, `largest` of them in one piece.
    """

    total: int
    free: int
    largest: int


@dataclass(frozen=True, slots=True)
class Step:
    """One step of an engine: what it computed and how long that took.

    `decode_seqs` sequences got one token each, `prefill_tokens` prompt tokens were computed,
    attention read `kv_tokens` cached tokens in all. `end_ns` is CLOCK_MONOTONIC.
    """

    index: int
    end_ns: int
    step_ns: int
    prefill_tokens: int
    decode_seqs: int
    kv_tokens: int


figures: Final[Callable[[EngineNow], tuple[int, ...]]] = attrgetter(
    *(field.name for field in fields(EngineNow))
)
"""Its fields as a tuple, in their order."""

_step_figures: Final[Callable[[Step], tuple[int, ...]]] = attrgetter(
    *(field.name for field in fields(Step))
)


class PageError(ValueError):
    """The file is not a stats page of a version this code reads."""


class PageWriter:
    """The engine's end. One writer a page; every method is O(1) and makes no system call.

    Who can't spend a call writes the page as `publish` does, with `memory`, its `words`, and
    `sequence`, the even number that it has. Not where bytes are `SWAPPED`.
    """

    def __init__(self, path: Path) -> None:
        """Make the page at `path`, replacing an older page.

        `PageError` if something else is there, `OSError` if it can't be made.
        """
        if path.exists():
            with path.open("rb") as old:
                if old.read(len(MAGIC)) != MAGIC:
                    raise PageError(f"could not make stats page {path}: another file is there")
        fresh = path.with_name(path.name + ".new")
        fresh.write_bytes(bytes(PAGE_BYTES))
        fresh.chmod(0o640)
        with fresh.open("r+b") as file:
            self.memory = mmap.mmap(file.fileno(), PAGE_BYTES)
        _HEADER.pack_into(self.memory, 0, MAGIC, PAGE_VERSION, PAGE_BYTES, 0)
        # a number stored through this is a sixth of the price of one that is packed
        self.words = memoryview(self.memory).cast("Q")
        self.sequence = 0
        self.path = path
        fresh.replace(path)

    def write(self, now: EngineNow, step: Step | None = None) -> None:
        """Publish `now`, and `step` if one has just ended."""
        self.publish(array("Q", figures(now)), () if step is None else _step_figures(step))

    def publish(self, now: "array[int]", step: tuple[int, ...] = ()) -> None:
        """As `write`, for who can't spend the microseconds that the objects cost.

        `now` are the fields of `EngineNow` in their order, of type code Q; `step` those of `Step`.
        """
        if SWAPPED:
            self._publish_swapped(now, step)
            return
        sequence, words = self.sequence, self.words
        words[SEQUENCE_WORD] = sequence + 1
        self.memory[NOW_AT:NOW_END] = now
        if step:
            pack_step(self.memory, SLOTS_AT[step[0] % STEP_SLOTS], *step)
        words[SEQUENCE_WORD] = self.sequence = sequence + 2

    def _publish_swapped(self, now: "array[int]", step: tuple[int, ...]) -> None:
        """The same where numbers are big endian."""
        now = array("Q", now)
        now.byteswap()
        _SEQUENCE.pack_into(self.memory, _SEQUENCE_AT, self.sequence + 1)
        self.memory[NOW_AT:NOW_END] = now
        if step:
            pack_step(self.memory, SLOTS_AT[step[0] % STEP_SLOTS], *step)
        self.sequence += 2
        _SEQUENCE.pack_into(self.memory, _SEQUENCE_AT, self.sequence)

    def show_allocator(self, allocator: Allocator) -> None:
        """Show how the allocator stands; to be called as seldom as it costs to find out."""
        figures = (allocator.total, allocator.free, allocator.largest)
        _SEQUENCE.pack_into(self.memory, _SEQUENCE_AT, self.sequence + 1)
        _ALLOCATOR.pack_into(self.memory, _ALLOCATOR_AT, *figures)
        self.sequence += 2
        _SEQUENCE.pack_into(self.memory, _SEQUENCE_AT, self.sequence)

    def close(self) -> None:
        """Unmap the page and remove its file."""
        self.words.release()
        self.memory.close()
        self.path.unlink(missing_ok=True)


class PageReader:
    """The agent's end."""

    def __init__(self, path: Path) -> None:
        """Open the page at `path`; `OSError` if it can't be, `PageError` if it is no page."""
        with path.open("rb", buffering=0) as file:
            page = file.read(PAGE_BYTES + 1)
            if len(page) != PAGE_BYTES:
                raise PageError(f"could not read stats page {path}: not {PAGE_BYTES} bytes long")
            magic, version, size, _ = _HEADER.unpack_from(page, 0)
            if magic != MAGIC or version != PAGE_VERSION or size != PAGE_BYTES:
                raise PageError(
                    f"could not read stats page {path}: expected {MAGIC.decode()} version"
                    f" {PAGE_VERSION}, found {magic!r} version {version}"
                )
            self._fd = os.dup(file.fileno())

    def read(self, after_step: int = 0, tries: int = 8) -> tuple[EngineNow, list[Step]] | None:
        """What the engine does now and its steps with an index above `after_step`, oldest first.

        None when the writer was in the way `tries` times running (or died while writing), or the
        file is no page any more. A slot that holds another step than it should is left out.
        """
        for _ in range(tries):
            before = self._bytes(_SEQUENCE.size, _SEQUENCE_AT)
            page = self._bytes(PAGE_BYTES, 0)
            if len(before) < _SEQUENCE.size or len(page) < PAGE_BYTES:
                return None
            if before[0] & 1 or before != self._bytes(_SEQUENCE.size, _SEQUENCE_AT):
                continue
            now = EngineNow(*_NOW.unpack_from(page, NOW_AT))
            first = max(after_step + 1, now.steps - STEP_SLOTS + 1, 1)
            steps = (
                Step(*_STEP.unpack_from(page, _STEPS_AT + (i % STEP_SLOTS) * _STEP.size))
                for i in range(first, now.steps + 1)
            )
            return now, [step for i, step in enumerate(steps, first) if step.index == i]
        return None

    def allocator(self) -> Allocator | None:
        """How the engine's allocator stands; None where it does not say, or says what can't be."""
        before = self._bytes(_SEQUENCE.size, _SEQUENCE_AT)
        figures = self._bytes(_ALLOCATOR.size, _ALLOCATOR_AT)
        whole = len(before) == _SEQUENCE.size and len(figures) == _ALLOCATOR.size
        if not whole or before[0] & 1 or before != self._bytes(_SEQUENCE.size, _SEQUENCE_AT):
            return None
        found = Allocator(*_ALLOCATOR.unpack(figures))
        possible = found.total > 0 and found.largest <= found.free <= found.total
        return found if possible else None

    def close(self) -> None:
        """Close the page."""
        os.close(self._fd)

    def _bytes(self, size: int, at: int) -> bytes:
        try:
            return os.pread(self._fd, size, at)
        except OSError:
            return b""
