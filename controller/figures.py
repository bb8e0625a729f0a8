"""Whether what an engine shows of itself can be built on: it may stand still, or be nonsense.

Nothing is decided on doubtful figures. What is held meanwhile was decided on good ones, so it stays
for a while; but nobody knows whether it is still right, so in the end it is given back.
"""

from dataclasses import dataclass
from typing import Final, Protocol

from controller.engines.page import EngineNow
from controller.engines.told import Notice

STALE_NS: Final = 3_000_000_000
"""A page has to show an acknowledged `set` at once; one that does not within this stands still."""

REFLECTED_NS: Final = 100_000_000
"""An answer that comes so soon after the page was written may be of what the page shows."""

STUCK_NS: Final = 30_000_000_000
"""No step with so much time is one: an engine that shows work and no step for so long hangs."""

CALM_NS: Final = 5_000_000_000
"""Figures have to be good for so long before they are built on again."""

ANEW_NS: Final = 10_000_000_000
"""How often the page is opened anew while it is in doubt: another may be in its place."""


class Shows(Protocol):
    """What is asked of an engine's link: `writes` are `set` calls that it has acknowledged."""

    writes: int

    @property
    def now(self) -> EngineNow | None:
        """The last figures that may be true."""

    @property
    def nonsense(self) -> str:
        """Why the very last may not."""

    @property
    def can_set(self) -> bool:
        """Whether the engine is connected and its knobs are known."""


@dataclass(frozen=True, slots=True)
class Doubt:
    """Since when the figures are in doubt, and why."""

    since_ns: int
    why: str


class Figures:
    """One engine's figures from tick to tick."""

    def __init__(self) -> None:
        self.doubt: Doubt | None = None
        self._notices: list[Notice] = []
        self._wrong_ns = 0
        self._anew_ns = 0
        self._updated_ns: int | None = None
        self._moved_ns = 0
        self._writes = 0
        self._owed_ns: int | None = None
        self._steps: int | None = None
        self._stepped_ns = 0
        self._unread_ns: int | None = None

    def take(self, now_ns: int, link: Shows) -> EngineNow | None:
        """What the engine shows, None while it shows nothing that can be built on."""
        self._note(now_ns, link)
        kind, why = self._wrong(now_ns, link)
        if why:
            self._wrong_ns = now_ns
            if self.doubt is None:
                self.doubt = Doubt(now_ns, why)
                self._anew_ns = now_ns
                self._notices.append(Notice(kind, why))
        elif self.doubt is not None and now_ns - self._wrong_ns >= CALM_NS:
            for_s = (now_ns - self.doubt.since_ns) / 1e9
            self._notices.append(Notice("stats_back", f"good again, after {for_s:.0f} s"))
            self.doubt = None
        return link.now if self.doubt is None else None

    def wants_anew(self, now_ns: int) -> bool:
        """Whether it is time to open the engine's page anew."""
        if self.doubt is None or now_ns - self._anew_ns < ANEW_NS:
            return False
        self._anew_ns = now_ns
        return True

    def doubted_ns(self, now_ns: int) -> int:
        """For how long the figures have been in doubt."""
        return now_ns - self.doubt.since_ns if self.doubt is not None else 0

    def resume(self, now_ns: int) -> None:
        """Nobody looked for a while: nothing is late yet."""
        self._moved_ns = self._stepped_ns = self._wrong_ns = now_ns
        self._owed_ns = self._unread_ns = None

    def take_notices(self) -> list[Notice]:
        """What there is to tell since the last call."""
        notices, self._notices = self._notices, []
        return notices

    def _note(self, now_ns: int, link: Shows) -> None:
        now = link.now
        if now is not None and now.updated_ns != self._updated_ns:
            self._updated_ns, self._moved_ns, self._owed_ns = now.updated_ns, now_ns, None
        if link.writes != self._writes:
            self._writes = link.writes
            if self._owed_ns is None and now_ns - self._moved_ns >= REFLECTED_NS:
                self._owed_ns = now_ns
        # an engine that counts no steps is never late with one
        idle = now is not None and not (now.steps and (now.running or now.waiting))
        if now is not None and (idle or now.steps != self._steps):
            self._steps, self._stepped_ns = now.steps, now_ns
        if now is not None or not link.can_set:
            self._unread_ns = None
        elif self._unread_ns is None:
            self._unread_ns = now_ns

    def _wrong(self, now_ns: int, link: Shows) -> tuple[str, str]:
        """The event and its words; empty if nothing is wrong."""
        if link.nonsense:
            return "stats_nonsense", link.nonsense
        if self._unread_ns is not None and now_ns - self._unread_ns >= STALE_NS:
            return "stats_stale", "the engine's page could not be read since it was opened"
        if self._owed_ns is not None and now_ns - self._owed_ns >= STALE_NS:
            for_s = (now_ns - self._moved_ns) / 1e9
            return "stats_stale", f"written last {for_s:.1f} s ago, though knobs were set since"
        now = link.now
        if now is not None and now_ns - self._stepped_ns >= STUCK_NS:
            for_s = (now_ns - self._stepped_ns) / 1e9
            return (
                "stats_stale",
                f"no step for {for_s:.0f} s, with {now.running} running and {now.waiting} waiting",
            )
        return "", ""
