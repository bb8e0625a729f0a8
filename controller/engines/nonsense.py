"""What an engine's figures can't be: a broken adapter may show anything."""

from collections.abc import Callable
from operator import attrgetter, itemgetter, lt
from typing import Final

from controller.engines.page import EngineNow, figures

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
_growing: Final[Callable[[EngineNow], tuple[int, ...]]] = attrgetter(*_ONLY_GROW)


def nonsense(now: EngineNow, before: EngineNow | None, most_running: float) -> str:
    """What is impossible about `now`, in words; nothing if it may be true.

    `before` is what the same engine showed last, `most_running` what it was started for.
    """
    if max(figures(now)) > MOST:
        name, value = max(zip(EngineNow.__slots__, figures(now), strict=True), key=itemgetter(1))
        return f"{name} is {value!r:.40}"
    if now.kv_used > now.kv_total > 0:
        return f"kv_used is {now.kv_used} of a kv_total of {now.kv_total}"
    if now.running > most_running:
        return f"running is {now.running}, and max_running never above {most_running:g}"
    if before is not None and any(map(lt, _growing(now), _growing(before))):
        for name, new, old in zip(_ONLY_GROW, _growing(now), _growing(before), strict=True):
            if new < old:
                return f"{name} went back from {old} to {new}"
    return ""
