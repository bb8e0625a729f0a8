"""What the controller knows of one engine at one tick, over the last window."""

from collections.abc import Sequence
from dataclasses import dataclass

from bpf.layout import Counters
from controller.engines.page import EngineNow, Step


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


@dataclass(frozen=True, slots=True)
class Signals:
    """Sums over `window_ns`, and the engine's own state at its end.

    `engine` is None where the engine shows no page. `longest_step_ns` is the longest step that
    ended in the window, `kv_per_seq` cached tokens for each running sequence.
    """

    now_ns: int
    window_ns: int
    kernel: Counters
    throttled_ns: int = 0
    neighbours_ns: int = 0
    engine: EngineNow | None = None
    longest_step_ns: int = 0
    arrival_tokens_per_s: float = 0.0
    injected: float = 0.0

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
    def at_risk(self) -> bool:
        """Whether a threshold was crossed: a gap, a TTFT, or a wait that is most of a gap."""
        return bool(self.kernel.gaps_over or self.kernel.ttft_over or self.kernel.waits_over)

    @property
    def idle(self) -> bool:
        """No traffic: nothing came, nothing went, nothing is under way."""
        busy = self.engine is not None and (self.engine.running or self.engine.waiting)
        return not (busy or self.kernel.requests or self.kernel.chunks)


def between(
    first: Sample,
    last: Sample,
    engine: EngineNow | None = None,
    steps: Sequence[Step] = (),
    arrival_tokens_per_s: float = 0.0,
    injected: float = 0.0,
) -> Signals:
    """The signals of the window from `first` to `last`."""
    return Signals(
        now_ns=last.now_ns,
        window_ns=last.now_ns - first.now_ns,
        kernel=last.counters.since(first.counters),
        throttled_ns=last.throttled_ns - first.throttled_ns,
        neighbours_ns=last.neighbours_ns - first.neighbours_ns,
        engine=engine,
        longest_step_ns=max((step.step_ns for step in steps), default=0),
        arrival_tokens_per_s=arrival_tokens_per_s,
        injected=injected,
    )
