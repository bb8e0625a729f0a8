"""How long the loop's own stages take, in the same buckets as the kernel's histograms."""

from collections.abc import Mapping
from typing import Any

from bpf.histogram import SLOTS, Histogram, slot_of


class Timing:
    """Counts durations; O(1) and without allocation a call."""

    def __init__(self) -> None:
        self._slots = [0] * SLOTS
        self._sum_ns = 0

    def add(self, duration_ns: int) -> None:
        """Count one duration."""
        duration_ns = max(0, duration_ns)
        self._slots[slot_of(duration_ns)] += 1
        self._sum_ns += duration_ns

    def as_message(self) -> dict[str, Any]:
        """The non-empty slots and the sum, for the wire."""
        filled = {str(slot): count for slot, count in enumerate(self._slots) if count}
        return {"slots": filled, "sum_ns": self._sum_ns}


def histogram_of(message: Mapping[str, Any]) -> Histogram:
    """The histogram in a message of `Timing.as_message`."""
    slots = [0] * SLOTS
    for slot, count in message["slots"].items():
        slots[int(slot)] = count
    return Histogram(tuple(slots), message["sum_ns"])
