"""Backpressure: how hard the engine is pressed, 0…1, as the worst of its stages."""

from dataclasses import dataclass
from typing import Final

from controller.signals import Signals

KV_GRACE_RATIO: Final = 0.15
"""The last share of the KV cache, over which its pressure rises to 1 (seed A3,
`gpu_memory_grace_ratio`)."""


@dataclass(frozen=True, slots=True)
class Backpressure:
    """One 0…1 pressure for each stage; each is visible on its own."""

    queue: float = 0.0
    kv: float = 0.0
    cpu: float = 0.0
    injected: float = 0.0

    @property
    def value(self) -> float:
        """The worst of them."""
        return max(self.queue, self.kv, self.cpu, self.injected)


def backpressure(signals: Signals, ttft_slo_ms: float) -> Backpressure:
    """The pressure of each stage.

    queue: waiting/(waiting + running), damped by the age of the queue against the TTFT target, so
    that a queue which moves is no pressure. kv: how far use is into the last `KV_GRACE_RATIO` of
    the cache. cpu: run-queue delay/(delay + run time), own tasks' included. (Design section 5.)
    """
    kernel, engine = signals.kernel, signals.engine
    wanted_ns = kernel.run_ns + kernel.wait_ns
    cpu = kernel.wait_ns / wanted_ns if wanted_ns else 0.0
    queue = kv = 0.0
    if engine is not None:
        present = engine.waiting + engine.running
        damping = min(1.0, signals.queue_age_ns / (ttft_slo_ms * 1e6))
        queue = engine.waiting / present * damping if present else 0.0
        use = engine.kv_used / engine.kv_total if engine.kv_total else 0.0
        kv = min(1.0, max(0.0, (use - (1 - KV_GRACE_RATIO)) / KV_GRACE_RATIO))
    return Backpressure(queue=queue, kv=kv, cpu=cpu, injected=signals.injected)
