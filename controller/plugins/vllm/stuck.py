"""Whether vLLM has stopped admitting requests for good.

A known fault (vllm-project/vllm#53130): once those that run and those that it passed over reach the
cap, nobody is admitted again, with the KV cache free. A lower cap makes that likelier, so whoever
lowered it has to watch.
"""

from dataclasses import dataclass
from typing import Final

AFTER_NS: Final = 5_000_000_000
"""How long nobody may be admitted although there seems to be room: many times the longest step."""

FREE_SHARE: Final = 0.5
"""Of the KV cache: with less of it free, a long prompt may be waiting for memory."""


@dataclass(frozen=True, slots=True)
class Sight:
    """What a step showed: `waiting` requests that could run, `running` under a `cap`."""

    waiting: int
    running: int
    cap: int
    free_share: float
    prefilling: bool

    @property
    def has_room(self) -> bool:
        """Whether one of those that wait should have been admitted."""
        room = self.running < self.cap and self.free_share > FREE_SHARE and not self.prefilling
        return room and self.waiting > 0


class StuckWatch:
    """Looks at steps that admitted nobody."""

    def __init__(self) -> None:
        self._since_ns: int | None = None

    def admitted(self) -> None:
        """Somebody was."""
        self._since_ns = None

    def look(self, now_ns: int, sight: Sight) -> bool:
        """Whether it is stuck."""
        if not sight.has_room:
            self._since_ns = None
        elif self._since_ns is None:
            self._since_ns = now_ns
        return self._since_ns is not None and now_ns - self._since_ns >= AFTER_NS
