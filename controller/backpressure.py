"""Backpressure: how hard the engine is pressed, 0…1, as the worst of its stages."""

from dataclasses import dataclass
from typing import Final

from bpf.layout import Counters
from controller.signals import Signals

KV_GRACE_RATIO: Final = 0.15
"""The last share of the KV cache, over which its pressure rises to 1 (seed A3,
`gpu_memory_grace_ratio`)."""


@dataclass(frozen=True, slots=True)
class Queues:
    """What the agent last saw in the engine's sockets.

    `accept_fill` is how full its accept queue is, 0…1. `unsent` connections had bytes that were
    written and had not left; `blocked` streams had at that moment by the kernel programs' count.
    """

    accept_fill: float = 0.0
    unsent: int = 0
    blocked: int = 0


def send_pressure(counters: Counters, queues: Queues) -> float:
    """The share of the streams under way that have unsent bytes, 0…1.

    unsent + (begun - ended - blocked) of requests - ends: the agent's last look, which is exact and
    knows of streams older than the programs, and what the programs counted since, which is at hand.
    `counters` are totals.
    """
    now = max(0, queues.unsent + counters.blocked_begun - counters.blocked_ended - queues.blocked)
    under_way = counters.requests - counters.ends_complete - counters.ends_early
    return now / max(now, under_way) if now else 0.0


@dataclass(frozen=True, slots=True)
class Backpressure:
    """One 0…1 pressure for each stage; each is visible on its own."""

    accept: float = 0.0
    queue: float = 0.0
    send: float = 0.0
    kv: float = 0.0
    cpu: float = 0.0
    injected: float = 0.0

    @property
    def value(self) -> float:
        """The worst of them."""
        return max(self.accept, self.queue, self.send, self.kv, self.cpu, self.injected)


def backpressure(
    signals: Signals, ttft_slo_ms: float, accept: float = 0.0, send: float = 0.0
) -> Backpressure:
    """The pressure of each stage.

    accept: how full the accept queue is. send: `send_pressure`. queue: waiting/(waiting + running),
    damped by the age of the queue against the TTFT target, so that a queue which moves is no
    pressure. kv: how far use is into the last `KV_GRACE_RATIO` of the cache. cpu: run-queue
    delay/(delay + run time), own tasks' included. (Design section 5.)
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
    return Backpressure(accept, queue, send, kv, cpu, signals.injected)
