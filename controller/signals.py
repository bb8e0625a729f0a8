"""What the controller knows of one engine at one tick, over the last window."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from operator import attrgetter
from typing import Final

from bpf.layout import Counters
from controller.engines.page import EngineNow, Step
from controller.pressure import Pressure
from controller.progress import Stall
from controller.unsent import Unsent

NO_PRESSURE: Final = Pressure()
NOTHING_UNSENT: Final = Unsent()
NO_COUNTERS: Final = Counters()


LOST_PER_S: Final = 3.0
"""More segments than this sent again in a second are the network's fault (seed B13), if they are
also at least `LOST_SHARE` of the chunks: a thousand streams may lose one now and then."""

LOST_SHARE: Final = 0.01

_length_ns: Final[Callable[[Step], int]] = attrgetter("step_ns")


@dataclass(frozen=True, slots=True)
class Sample:
    """The kernel's view of one engine at one moment; all but `now_ns` only grow.

    `throttled_ns` is time lost to the engine's own CPU quota, `neighbours_ns` CPU time that
    watched neighbours used.
    """

    now_ns: int
    counters: Counters
    throttled_ns: int = 0
    neighbours_ns: int = 0
    pressure: Pressure = NO_PRESSURE


@dataclass(frozen=True, slots=True)
class Signals:
    """Sums over `window_ns`, and the engine's own state at its end.

    `engine` is None where the engine shows no page. `longest_step_ns` is the longest step that
    ended in the window, `longest_computed_ns` that of those that took as long as their batch does,
    and not many times longer. `memory_ns` is time that tasks stood still for want of memory.
    `stall` is a standstill under way or ended in the window, if it was longer than a gap may be.
    `unsent` is about streams that can't send. `totals` are the counters at the window's end.
    `doubted_ns` is for how long the engine's figures have been in doubt; `engine` is then None.
    """

    now_ns: int
    window_ns: int
    kernel: Counters
    throttled_ns: int = 0
    neighbours_ns: int = 0
    engine: EngineNow | None = None
    longest_step_ns: int = 0
    longest_computed_ns: int = 0
    arrival_tokens_per_s: float = 0.0
    injected: float = 0.0
    memory_ns: int = 0
    limit_hits: int = 0
    major_faults: int = 0
    stall: Stall | None = None
    unsent: Unsent = NOTHING_UNSENT
    totals: Counters = NO_COUNTERS
    doubted_ns: int = 0

    @property
    def neighbour_pressure(self) -> float:
        """Share of the time the engine's tasks wanted a CPU that others kept it from them, 0…1."""
        wanted_ns = self.kernel.run_ns + self.kernel.wait_ns
        return self.kernel.wait_other_ns / wanted_ns if wanted_ns else 0.0

    @property
    def queue_age_ns(self) -> int:
        """How long the longest waiting request has waited; 0 when none waits."""
        if self.engine is None or not self.engine.oldest_arrival_ns:
            return 0
        return max(0, self.now_ns - self.engine.oldest_arrival_ns)

    @property
    def stopped_ns(self) -> int:
        """How long the standstill has lasted, or did; 0 without one."""
        return self.stall.until_ns - self.stall.since_ns if self.stall is not None else 0

    @property
    def lost(self) -> bool:
        """Whether a segment was lost for certain.

        A loss probe is sent on suspicion, to a client that was only late to acknowledge too: probes
        count beside other segments sent again, not alone.
        """
        return self.kernel.retransmits > self.kernel.loss_probes

    @property
    def losing(self) -> bool:
        """Whether so many segments are sent again that their streams' users notice."""
        again = self.kernel.retransmits
        often = again > 1 and again * 1e9 > LOST_PER_S * self.window_ns
        return self.lost and often and again >= LOST_SHARE * self.kernel.chunks

    @property
    def at_risk(self) -> bool:
        """Whether users wait or may soon: a threshold was crossed, or nothing gets through.

        Thresholds are of gaps, TTFT and single waits for a CPU. A standstill, a stream that can't
        send and segments sent again delay chunks that no gap is counted for yet, or ever.
        """
        kernel = self.kernel
        crossed = kernel.gaps_over or kernel.ttft_over or kernel.waits_over
        return bool(crossed or self.stall is not None or self.unsent.stuck or self.losing)

    @property
    def idle(self) -> bool:
        """No traffic: nothing came, nothing went, nothing is under way."""
        busy = self.engine is not None and (self.engine.running or self.engine.waiting)
        return not (busy or self.kernel.requests or self.kernel.chunks)


def between(
    first: Sample,
    last: Sample,
    engine: EngineNow | None = None,
    steps: Collection[Step] = (),
    arrival_tokens_per_s: float = 0.0,
    injected: float = 0.0,
    stall: Stall | None = None,
    unsent: Unsent = NOTHING_UNSENT,
    disturbed: Collection[int] = (),
    doubted_ns: int = 0,
) -> Signals:
    """The signals of the window from `first` to `last`; `disturbed` are indexes of `steps`."""
    longest_ns = computed_ns = max(map(_length_ns, steps), default=0)
    if disturbed:
        computed_ns = max(
            (step.step_ns for step in steps if step.index not in disturbed), default=0
        )
    return Signals(
        now_ns=last.now_ns,
        window_ns=last.now_ns - first.now_ns,
        kernel=last.counters.since(first.counters),
        throttled_ns=last.throttled_ns - first.throttled_ns,
        neighbours_ns=last.neighbours_ns - first.neighbours_ns,
        engine=engine,
        longest_step_ns=longest_ns,
        longest_computed_ns=computed_ns,
        arrival_tokens_per_s=arrival_tokens_per_s,
        injected=injected,
        memory_ns=last.pressure.memory_ns - first.pressure.memory_ns,
        limit_hits=last.pressure.limit_hits - first.pressure.limit_hits,
        major_faults=last.pressure.major_faults - first.pressure.major_faults,
        stall=stall,
        unsent=unsent,
        totals=last.counters,
        doubted_ns=doubted_ns,
    )
