"""What sets a simulated engine's knobs: nothing, a fixed point, AIMD, or the real controller."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Protocol, cast

from bpf.layout import Counters
from controller.actions import Proposal, ReleaseKnobs, SetKnobs
from controller.batching import BUDGET
from controller.cpu_limits import CpuView
from controller.engines.contract import Hello, Knob
from controller.engines.link import EngineLink
from controller.engines.page import EngineNow, Step
from controller.policy_model import Controller, Engine
from controller.recording import Inputs, decide_batch_of
from controller.watch import EngineWatch


@dataclass(frozen=True, slots=True)
class Seen:
    """What is known at one tick; `steps` and `gaps_ns` are those since the tick before."""

    now_ns: int
    counters: Counters
    engine: EngineNow
    steps: Sequence[Step]
    gaps_ns: Sequence[int]


class Control(Protocol):
    """Decides at each tick; keeps what it has to remember itself."""

    def tick(self, seen: Seen) -> Mapping[str, float] | None:
        """The whole operating point from now on (what is not named is at its start), or None."""

    def period_ns(self) -> int:
        """How long until the next tick, but for an edge."""


@dataclass(slots=True)
class Fixed:
    """One operating point, from the first tick on. An empty one is the engine's defaults."""

    point: Mapping[str, float] = field(default_factory=dict)
    set: bool = False

    def tick(self, seen: Seen) -> Mapping[str, float] | None:
        """The point, once."""
        if self.set:
            return None
        self.set = True
        return self.point

    def period_ns(self) -> int:
        """Nothing is to be done any more."""
        return 10_000_000_000


@dataclass(slots=True)
class Aimd:
    """Additive increase, multiplicative decrease of the token budget on the measured P99 gap.

    Chiu and Jain 1989. Every `every_ns`: over the SLO, the budget is multiplied by `cut`; else it
    grows by `growth_tokens`, up to its start.
    """

    gap_slo_ns: int
    knob: Knob
    cut: float = 0.7
    growth_tokens: int = 16
    every_ns: int = 500_000_000
    least: int = 64
    value: float = 0.0
    gaps_ns: list[int] = field(default_factory=list)
    next_ns: int = 0

    def tick(self, seen: Seen) -> Mapping[str, float] | None:
        """The budget, if it changes."""
        self.gaps_ns += seen.gaps_ns
        if seen.now_ns < self.next_ns or not self.gaps_ns:
            return None
        self.next_ns = seen.now_ns + self.every_ns
        ordered = sorted(self.gaps_ns)
        self.gaps_ns.clear()
        before = self.value or self.knob.start
        over = ordered[ceil(0.99 * len(ordered)) - 1] > self.gap_slo_ns
        wanted = before * self.cut if over else before + self.growth_tokens
        self.value = float(min(self.knob.start, max(self.least, int(wanted))))
        return {BUDGET: self.value} if self.value != before else None

    def period_ns(self) -> int:
        """As often as it decides."""
        return self.every_ns


@dataclass(slots=True)
class _VirtualLink:
    """What the watch asks of an engine's link, without a socket."""

    hello: Hello
    now: EngineNow = field(default_factory=EngineNow)
    fresh: Sequence[Step] = ()
    can_set: bool = True
    client: None = None
    nonsense: str = ""
    writes: int = 0
    change_ns: int = 0

    def read_page(self) -> Sequence[Step]:
        """The steps since the last look."""
        return self.fresh


class Ours:
    """The real controller's decisions on the real controller's signals."""

    def __init__(
        self,
        policy: Engine,
        controller: Controller,
        knobs: Mapping[str, Knob],
        graph_sizes: tuple[int, ...] = (),
        heard: Callable[[Inputs, Proposal | None], None] = lambda *_: None,
    ) -> None:
        """`policy` has SLO and floors, `controller` periods and thresholds.

        `heard` is told of every tick: what was decided on, and what came of it.
        """
        hello = Hello("simulated", "1", "simulated", 1, knobs, graph_sizes, None, 10_000)
        self._controller = controller
        self._heard = heard
        self._link = _VirtualLink(hello)
        self.watch = EngineWatch(policy, 1, None, controller.lease_ms)
        self.watch.link = cast(EngineLink, self._link)

    def tick(self, seen: Seen) -> Mapping[str, float] | None:
        """As `Loop` does it, the batching part."""
        watch, link = self.watch, self._link
        link.now, link.fresh = seen.engine, seen.steps
        pressure = self._controller.neighbour_pressure
        signals = watch.take(seen.now_ns, seen.counters, 0, 0.0, pressure)
        inputs = watch.inputs("control", signals, pressure, CpuView(None, 0, 1))
        watch.core, proposal = decide_batch_of(inputs)
        watch.look_ahead()
        self._heard(inputs, proposal)
        if proposal is None:
            return None
        watch.restart_window()
        (action,) = proposal.actions
        assert isinstance(action, SetKnobs | ReleaseKnobs)
        return action.values if isinstance(action, SetKnobs) else {}

    def period_ns(self) -> int:
        """As `controller/pace.py` has it while something is held or late."""
        control = self._controller
        pressed = self.watch.pressure.value > control.backpressure_threshold
        ms = control.fast_tick_interval_ms if pressed else control.scheduler_tick_interval_ms
        return int(ms * 1e6)
