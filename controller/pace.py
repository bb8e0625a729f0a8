"""How soon the loop looks again: seed A1's two periods, and two longer ones while all is well.

A tick costs tenths of a millisecond of CPU: sixty a second are more than a per cent of a core. What
users feel does not wait for a tick: a late gap, first token or turn on the CPU raises an edge in
the kernel, and that wakes the loop at once.
"""

from collections.abc import Collection
from typing import Final

from bpf.layout import Counters
from controller.backpressure import Backpressure
from controller.policy_model import Controller
from controller.watch import EngineWatch

CALM_TICKS: Final = 2
"""While streams flow, nothing is late, nobody waits and nothing is held."""

IDLE_TICKS: Final = 3
"""While there is no stream at all."""

LONGEST_MS: Final = 55.0
"""No period is stretched beyond this: half of what the loads are sampled at for the stages, and of
when a standstill is looked into."""

CALM_PRESSURE: Final = 0.35
"""Half of what the fast tick begins at by default."""


def period_ms(control: Controller, watches: Collection[EngineWatch], *, holding: bool) -> float:
    """Until the next tick; `holding` is whether anything else than an engine's own is held."""
    if any(watch.pressure.value > control.backpressure_threshold for watch in watches):
        return control.fast_tick_interval_ms
    ms = control.scheduler_tick_interval_ms
    if holding or not all(is_calm(watch) for watch in watches):
        return ms
    ticks = IDLE_TICKS if all(is_idle(watch) for watch in watches) else CALM_TICKS
    return max(ms, min(ticks * ms, LONGEST_MS))


def is_calm(watch: EngineWatch) -> bool:
    """Whether nothing of the engine is late, waits, stands still, or is held."""
    signals = watch.signals
    if signals is None or signals.at_risk or watch.waits:
        return False
    if signals.engine is not None and signals.engine.waiting:
        return False
    return _but_for_cpu(watch.pressure) <= CALM_PRESSURE and not watch.holds


def is_idle(watch: EngineWatch) -> bool:
    """Whether the engine has no stream, and had none in the window."""
    signals = watch.signals
    return signals is not None and signals.idle and not _under_way(signals.totals)


def _but_for_cpu(pressure: Backpressure) -> float:
    """Who only wakes to write a chunk waits as long as it runs; waits that matter are edges."""
    return max(pressure.accept, pressure.queue, pressure.send, pressure.kv, pressure.injected)


def _under_way(counted: Counters) -> int:
    return counted.requests - counted.ends_complete - counted.ends_early
