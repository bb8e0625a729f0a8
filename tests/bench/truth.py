"""What is true of a stream, known before it is sent; and what the kernel said, held against it."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from bpf.layout import Counters, EndReason, Event


@dataclass(frozen=True, slots=True)
class Truth:
    """One stream. `events` are those in its data chunks, `status` 0 is no answer at all."""

    kind: str
    reason: EndReason
    chunks: int = 0
    body_bytes: int = 0
    events: int = 0
    role_frames: int = 0
    status: int = 200
    is_events: bool = False


FIELDS: Final = ("reason", "chunks", "body_bytes", "events", "role_frames", "status")


def seen_of(end: Event) -> dict[str, int]:
    """The fields of `Truth` as the kernel saw them."""
    stream = end.stream
    found = {name: int(getattr(stream, name)) for name in FIELDS if name != "reason"}
    return found | {"reason": int(end.reason or 0)}


@dataclass(frozen=True, slots=True)
class Mismatch:
    """A stream the kernel saw otherwise than it was: by field, what is true and what was seen."""

    stream: int
    kind: str
    fields: dict[str, tuple[int, int | None]]

    def __str__(self) -> str:
        text = ", ".join(
            f"{name} {true} seen as {seen}" for name, (true, seen) in self.fields.items()
        )
        return f"stream {self.stream} ({self.kind}): {text}"


def compare(truths: Mapping[int, Truth], ends: Mapping[int, Event]) -> list[Mismatch]:
    """Every stream that was seen otherwise or whose end was not seen, by the streams' numbers."""
    found = []
    for number, truth in truths.items():
        end = ends.get(number)
        seen: Mapping[str, int | None] = seen_of(end) if end else dict.fromkeys(FIELDS)
        fields = {
            name: (int(getattr(truth, name)), seen[name])
            for name in FIELDS
            if int(getattr(truth, name)) != seen[name]
        }
        if fields:
            found.append(Mismatch(number, truth.kind, fields))
    return found


def totals(truths: Iterable[Truth]) -> dict[str, int]:
    """What the target's counters are to say of all of them together."""
    sums: Counter[str] = Counter()
    for truth in truths:
        complete = truth.reason is EndReason.COMPLETE
        unstarted = not truth.chunks and (truth.is_events or not truth.status)
        sums.update(
            requests=1,
            responses=int(truth.status > 0),
            errors=int(truth.status >= 400),
            first_chunks=int(truth.is_events and truth.chunks > 0),
            chunks=truth.chunks,
            gaps=max(0, truth.chunks - 1) if truth.is_events else 0,
            body_bytes=truth.body_bytes,
            events=truth.events,
            role_frames=truth.role_frames,
            ends_complete=int(complete),
            ends_early=int(not complete),
            ends_unstarted=int(unstarted),
        )
    return dict(sums)


def compare_totals(expected: Mapping[str, int], counters: Counters) -> dict[str, tuple[int, int]]:
    """Counters that are not what they are to be: by name, what is true and what was counted."""
    return {
        name: (value, getattr(counters, name))
        for name, value in expected.items()
        if getattr(counters, name) != value
    }


def summary(truths: Mapping[int, Truth], mismatches: Iterable[Mismatch]) -> dict[str, Any]:
    """Counts for the JSON file: streams wrong in each field, and by kind."""
    wrong, kinds = Counter[str](), Counter[str]()
    for mismatch in mismatches:
        wrong.update(mismatch.fields.keys())
        kinds[mismatch.kind] += 1
    counts = Counter(truth.kind for truth in truths.values())
    return {
        "count": len(truths),
        "chunk_mismatch": wrong["chunks"],
        "byte_mismatch": wrong["body_bytes"],
        "event_mismatch": wrong["events"],
        "role_mismatch": wrong["role_frames"],
        "reason_mismatch": wrong["reason"],
        "status_mismatch": wrong["status"],
        "by_kind": {
            kind: {"count": counts[kind], "mismatch": kinds[kind]} for kind in sorted(counts)
        },
    }
