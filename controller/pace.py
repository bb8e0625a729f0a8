"""How soon the loop looks again: seed A1's two periods, and longer ones while all is well.

A tick costs tenths of a millisecond of CPU: sixty a second are more than a per cent of a core. What
users feel does not wait for a tick: a late gap, first token or turn on the CPU raises an edge in
the kernel, and that wakes the loop at once.
"""

from collections.abc import Collection
from typing import Final, Literal

from bpf.layout import Counters
from controller.memory_sentinel import danger_of
from controller.policy_model import Controller
from controller.watch import EngineWatch

FLOWING_MS: Final = 80.0
"""While streams flow, nothing is late, nobody waits and nothing is held. Loads are sampled every
100 ms for the stages, so it is less than that."""

IDLE_MS: Final = 125.0
"""While an engine has no stream at all."""

UNTUNED_MS: Final = 350.0
"""While all is well with an engine that has no knobs: then there is nothing to set ahead of need.
The guard has to hear of us in 700 ms."""

CALM_PRESSURE: Final = 0.35
"""Half of what the fast tick begins at by default."""

EDGE_SPACING_NS: Final = 3_000_000
"""Edges closer together than this share one tick: under contention the kernel raises many."""


def period_ms(control: Controller, watches: Collection[EngineWatch], *, holding: bool) -> float:
    """Until the next tick; `holding` is whether anything else than an engine's own is held."""
    if any(_pressing(watch) > control.backpressure_threshold for watch in watches):
        return control.fast_tick_interval_ms
    ms = control.scheduler_tick_interval_ms
    if holding or not all(is_calm(watch) for watch in watches):
        return ms
    return max(ms, min((_calm_ms(watch) for watch in watches), default=UNTUNED_MS))


def what_is_due(
    now_ns: int, tick_due_ns: int, edges_due_ns: int | None
) -> Literal["edges", "tick"] | None:
    """What comes next; `edges_due_ns` is None where there are no edges.

    Edges go before a tick that is due as well: somebody is late by now, and nobody is for the
    tick's sake. Not before one that is late itself, or many edges would leave no tick.
    """
    if (
        edges_due_ns is not None
        and now_ns >= edges_due_ns
        and now_ns - tick_due_ns < EDGE_SPACING_NS
    ):
        return "edges"
    return "tick" if now_ns >= tick_due_ns else None


def is_calm(watch: EngineWatch) -> bool:
    """Whether nothing of the engine is late, waits, stands still, is held, or still to be told."""
    signals = watch.signals
    if watch.link is not None and watch.link.is_new:
        return False
    if signals is None or signals.at_risk or watch.waits:
        return False
    if danger_of(watch.memory.view) is not None:
        return False  # it was seen after the tick's decisions
    if signals.engine is not None and signals.engine.waiting:
        return False
    return _pressing(watch) <= CALM_PRESSURE and not watch.holds


def _calm_ms(watch: EngineWatch) -> float:
    if watch.link is None:
        return UNTUNED_MS
    return IDLE_MS if is_idle(watch) else FLOWING_MS


def is_idle(watch: EngineWatch) -> bool:
    """Whether the engine has no stream, and had none in the window."""
    signals = watch.signals
    return signals is not None and signals.idle and not _under_way(signals.totals)


def _pressing(watch: EngineWatch) -> float:
    """Its backpressure; want of a CPU only where something is late.

    Who only wakes to write a chunk waits as long as it runs; waits that matter are edges.
    """
    if watch.at_risk:
        return watch.pressure.value
    pressure = watch.pressure
    return max(pressure.accept, pressure.queue, pressure.send, pressure.kv, pressure.injected)


def _under_way(counted: Counters) -> int:
    return counted.requests - counted.ends_complete - counted.ends_early
