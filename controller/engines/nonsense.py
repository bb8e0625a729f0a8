"""What an engine's figures can't be: a broken adapter may show anything."""

from typing import Final

from controller.engines.page import EngineNow

MOST: Final = 2**53
"""No figure is larger: not the nanoseconds of a hundred days, and not what an engine counted."""

_ONLY_GROW: Final = (
    "steps",
    "requests_total",
    "finished_total",
    "prompt_tokens_total",
    "generated_tokens_total",
    "preemptions_total",
    "lease_expiries_total",
    "deferred_total",
    "shed_total",
)


def nonsense(now: EngineNow, before: EngineNow | None, most_running: float) -> str:
    """What is impossible about `now`, in words; nothing if it may be true.

    `before` is what the same engine showed last, `most_running` what it was started for.
    """
    for name in EngineNow.__slots__:
        if getattr(now, name) > MOST:
            return f"{name} is {getattr(now, name)!r:.40}"
    if now.kv_used > now.kv_total > 0:
        return f"kv_used is {now.kv_used} of a kv_total of {now.kv_total}"
    if now.running > most_running:
        return f"running is {now.running}, and max_running never above {most_running:g}"
    for name in _ONLY_GROW if before is not None else ():
        old, new = getattr(before, name), getattr(now, name)
        if new < old:
            return f"{name} went back from {old} to {new}"
    return ""
