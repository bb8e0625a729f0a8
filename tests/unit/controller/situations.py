"""Windows of an engine's recent past, as the tests of decisions make them."""

from typing import Any, Final

from bpf.layout import Counters
from controller.engines.page import EngineNow
from controller.progress import Stall
from controller.signals import Signals
from controller.unsent import Unsent

MS: Final = 1_000_000
SECOND: Final = 1_000_000_000


def window(
    now_ns: int = 100 * SECOND,
    engine: EngineNow | None = None,
    throttled_ns: int = 0,
    longest_step_ns: int = 0,
    longest_computed_ns: int | None = None,
    arrival_tokens_per_s: float = 0.0,
    injected: float = 0.0,
    memory_ns: int = 0,
    stall: Stall | None = None,
    unsent: Unsent | None = None,
    **counters: Any,
) -> Signals:
    """Half a second; `counters` are the kernel's figures for it."""
    return Signals(
        now_ns=now_ns,
        window_ns=500 * MS,
        kernel=Counters(**counters),
        throttled_ns=throttled_ns,
        engine=engine,
        longest_step_ns=longest_step_ns,
        longest_computed_ns=longest_step_ns if longest_computed_ns is None else longest_computed_ns,
        arrival_tokens_per_s=arrival_tokens_per_s,
        injected=injected,
        memory_ns=memory_ns,
        stall=stall,
        unsent=unsent or Unsent(),
    )


def stolen(now_ns: int = 100 * SECOND, share: float = 0.5) -> Signals:
    """A window in which others held the CPU for `share` of the time the engine wanted it."""
    other = int(500 * MS * share)
    return window(
        now_ns,
        run_ns=500 * MS - other,
        wait_ns=other,
        wait_other_ns=other,
        waits_over=4,
        gaps_over=2,
        chunks=20,
    )
