"""Whether an engine that has work gets anywhere: finds it stopped while it is, not afterwards.

An engine that stands still makes no chunk, so no gap is counted until it goes on. What tells is the
time since anything came of its work, and that it used no CPU meanwhile: a long step does.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from bpf.layout import Counters
from controller.engines.page import EngineNow
from controller.pressure import Pressure

SUSPECT_NS: Final = 100_000_000
"""From when on a standstill is looked into."""

PROBE_NS: Final = 40_000_000
"""CPU use is compared over at least this long: ten ticks of a 250 Hz kernel."""

IDLE_SHARE: Final = 0.05
"""An engine with work that uses less of one CPU than this does not work on it."""

FORGOTTEN_NS: Final = 60_000_000_000
"""Requests by the kernel's count of which nothing is heard for this long are not there: their ends
were missed."""


@dataclass(frozen=True, slots=True)
class Stall:
    """From `since_ns` to `until_ns` there was work and nothing came of it.

    No CPU was used, or tasks waited for memory to be freed (`out_of_memory`): what runs beside them
    may spin for what they hold. `memory_ns` and `starved_ns` are what pressure stall information
    says of that time.
    """

    since_ns: int
    until_ns: int
    memory_ns: int = 0
    starved_ns: int = 0
    out_of_memory: bool = False


class Progress:
    """One engine's standstill under way, and the last one that ended."""

    def __init__(self) -> None:
        self.stall: Stall | None = None
        self.waits = False
        """Whether there is work, and nothing came of it since the tick before."""
        self._made: tuple[int, ...] = ()
        self._since_ns = 0
        self._before = Pressure()
        self._short = False
        self._probe: tuple[int, int] | None = None
        self._idle = False
        self._moved: tuple[int, ...] = ()
        self._moved_ns = 0
        self._lost = 0

    def take(
        self,
        now_ns: int,
        counters: Counters,
        engine: EngineNow | None,
        pressure: Pressure,
        used_ns: Callable[[], int | None],
    ) -> None:
        """Add what is known now; `used_ns`, the engine's CPU time, is asked only when it matters.

        An engine whose CPU time is not known is never called stopped.
        """
        made = self._progress(now_ns, counters, engine)
        if not made or made != self._made:
            if (self._idle or self._short) and self.stall is not None:
                self.stall = replace(self.stall, until_ns=now_ns)
            self._made, self._since_ns, self._before = made, now_ns, pressure
            self.waits = False
            self._idle, self._probe, self._short = False, None, False
            return
        self.waits = True
        if now_ns - self._since_ns < SUSPECT_NS:
            return
        self._short |= pressure.out_of_memory
        self._look(now_ns, used_ns)
        if self._idle or self._short:
            self.stall = Stall(
                self._since_ns,
                now_ns,
                pressure.memory_ns - self._before.memory_ns,
                pressure.starved_ns - self._before.starved_ns,
                self._short,
            )

    def _progress(
        self, now_ns: int, counters: Counters, engine: EngineNow | None
    ) -> tuple[int, ...]:
        """What has come of the work so far, nothing when there is no work."""
        if engine is not None and (engine.running or engine.waiting):
            # what counts no steps may be a proxy: what computes, and its CPU time, are elsewhere
            return (engine.steps,) if engine.steps else ()
        ended = counters.ends_complete + counters.ends_early
        # what waits to be sent is not the engine's work any more
        blocked = max(0, counters.blocked_begun - counters.blocked_ended)
        under_way = counters.requests - ended - blocked
        moved = (counters.requests, counters.responses, counters.chunks, counters.writes, ended)
        if moved != self._moved:
            self._moved, self._moved_ns = moved, now_ns
        elif now_ns - self._moved_ns >= FORGOTTEN_NS:
            self._lost = under_way
        self._lost = min(self._lost, under_way)
        return moved[1:] if under_way > self._lost else ()

    def _look(self, now_ns: int, used_ns: Callable[[], int | None]) -> None:
        if self._probe is not None and now_ns - self._probe[0] < PROBE_NS:
            return
        used = used_ns()
        if used is None:
            return
        if self._probe is not None:
            at_ns, before = self._probe
            self._idle = used - before <= IDLE_SHARE * (now_ns - at_ns)
        self._probe = now_ns, used
