"""The memory part of a round of the loop: look at it, decide on it, say when it runs short."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from controller.actions import Proposal
from controller.limits.cgroup import Group
from controller.memory_sentinel import SentinelMemory
from controller.memory_watch import neighbour_memory
from controller.recording import Inputs, decide_memory_of
from controller.watch import EngineWatch

Tell = Callable[[str, str, Mapping[str, Any]], None]
"""Journals an event: its kind, its subject, and the details."""

SHORT: Final = "memory_short"
EASED: Final = "memory_eased"


def look_at_memory(
    watches: Sequence[EngineWatch], groups: Callable[[], Mapping[str, Group]], now_ns: int
) -> None:
    """Look at every engine's memory that it is time for; at neighbours' only when it runs short.

    `groups` are the cgroups of those that may be limited now. Unless it runs short, one engine is
    looked at in a tick, the one whose turn is longest ago: a look is a dozen system calls.
    """
    for watch in sorted(watches, key=lambda each: each.memory.looked_ns):
        engine = watch.signals.engine if watch.signals is not None else None
        memory, sentinel = watch.memory, watch.sentinel
        running = engine.running if engine is not None else None
        if not memory.look(now_ns, running, watch.filled):
            continue
        if watch.follows or not (memory.view.near or memory.view.pressed or sentinel.active):
            memory.see(())
            return
        others = (other.sentinel.holds for other in watches if other is not watch)
        memory.see(neighbour_memory(groups(), frozenset(name for held in others for name in held)))


def decide_memory_for(watch: EngineWatch, inputs: Inputs, tell: Tell) -> Proposal | None:
    """What is to be done to neighbours; what becomes of the engine's cap is kept in the watch."""
    before = watch.sentinel
    watch.sentinel, proposal = decide_memory_of(inputs)
    detail = _news(before, watch.sentinel)
    if detail is not None:
        kind = SHORT if watch.sentinel.why else EASED
        tell(kind, watch.key, detail)
    return proposal


def _news(before: SentinelMemory, now: SentinelMemory) -> Mapping[str, Any] | None:
    if now.why and not before.active:
        return {"why": now.why}
    if before.active and not now.active:
        return {"restored": now.restore}
    return None
