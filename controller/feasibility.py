"""Whether memory allows a change, asked before anything is raised (seed B3: within 12 ms).

From figures that are there already: the stats page's KV cache and the last look at the cgroups. So
it reads nothing, and takes microseconds.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from controller.actions import Proposal, ReleaseLimit, SetQuota
from controller.engines.contract import Knob
from controller.engines.page import EngineNow
from controller.laws import KV_WATERMARK
from controller.memory_sentinel import MemoryView, SentinelMemory, danger_of

_BUDGET: Final = "max_batched_tokens"
_RUNNING: Final = "max_running"


def _nothing() -> str:
    return ""


@dataclass(frozen=True, slots=True)
class Room:
    """What memory allows: how far two knobs may be raised, and how many may run at all.

    The `…_why` say it in words, empty where nothing is in the way; those of the knobs are called
    only for what is clipped, as figures in words cost as much as the figures. `restore` is the
    running cap that is put back at once, None for none.
    """

    running: float = math.inf
    running_why: Callable[[], str] = _nothing
    tokens: float = math.inf
    tokens_why: Callable[[], str] = _nothing
    cap: float = math.inf
    cap_why: str = ""
    restore: float | None = None


EVERYTHING: Final = Room()
"""Where nothing is known to be in the way."""


def room_of(view: MemoryView, memory: SentinelMemory, engine: EngineNow | None) -> Room:
    """What there is room for now; without figures of the engine all there is to know is danger.

    So many more requests fit as what is left of the KV cache and of the cgroups' memory holds, each
    taking as much as those that run. A step can't compute more prompt tokens than the KV cache has
    room for.
    """
    cap = math.inf if memory.cap is None else memory.cap
    danger = danger_of(view)
    if danger is not None:
        short = f"memory runs short: {danger.why}"
        return Room(
            -math.inf,
            lambda: short,
            -math.inf,
            lambda: short,
            cap,
            memory.cap_why,
            memory.restore,
        )
    if engine is None:
        return Room(cap=cap, cap_why=memory.cap_why, restore=memory.restore)
    by_memory = engine.running + max(0.0, view.more_requests())
    by_kv = each = tokens = math.inf
    if engine.kv_total:
        tokens = float(max(0, engine.kv_total - engine.kv_used))
        if engine.running and engine.kv_used:
            each = engine.kv_used / engine.running
            left = KV_WATERMARK * engine.kv_total - engine.kv_used
            by_kv = engine.running + max(0.0, left / each)

    def running_why() -> str:
        if by_kv < by_memory:
            return f"the KV cache has room for {by_kv:.0f} requests of {each:.0f} tokens"
        each_mib = (view.per_request or 0) / (1 << 20)
        return f"memory has room for {by_memory:.0f} requests of {each_mib:.1f} MiB"

    running = min(by_memory, by_kv)
    return Room(
        float(math.floor(running)) if math.isfinite(running) else running,
        running_why,
        tokens,
        lambda: f"the KV cache has room for {tokens:.0f} tokens",
        cap,
        memory.cap_why,
        memory.restore,
    )


def raises_quota(proposal: Proposal) -> bool:
    """Whether anybody would get more CPU than a quota leaves him now."""
    return any(
        (isinstance(action, SetQuota) and action.old is not None and action.cores > action.old)
        or (isinstance(action, ReleaseLimit) and action.knob == "cpu_quota")
        for action in proposal.actions
    )


def within(
    room: Room, point: Mapping[str, float], before: Mapping[str, float], knobs: Mapping[str, Knob]
) -> tuple[dict[str, float], str]:
    """`point` as far as there is room, and why it was clipped, empty if it was not.

    Only raises are clipped, to no less than what is in force; but for the cap, which may cut.
    """
    fits, whys = dict(point), []
    for name, most, why in (
        (_RUNNING, room.running, room.running_why),
        (_BUDGET, room.tokens, room.tokens_why),
    ):
        knob = knobs.get(name)
        if knob is None or name not in fits:
            continue
        old = before.get(name, knob.start)
        if fits[name] > old and fits[name] > most and room.restore is None:
            fits[name] = max(old, most, knob.minimum)
            whys.append(f"{name} is not raised to {point[name]:g}: {why()}")
    running = knobs.get(_RUNNING)
    if running is not None and fits.get(_RUNNING, running.start) > room.cap:
        fits[_RUNNING] = max(room.cap, running.minimum)
        whys.append(f"{_RUNNING} is kept at {fits[_RUNNING]:g}: {room.cap_why}")
    return fits, "; ".join(whys)
