"""What is held for an engine and its policy does not allow: found when a policy changes."""

from collections.abc import Mapping

from controller.admission import DEADLINE, DEFERRAL
from controller.batching import BUDGET, RUNNING
from controller.policy_model import Engine


def forbidden_knobs(engine: Engine, point: Mapping[str, float]) -> tuple[str, ...]:
    """The knobs of an operating point that are below a floor, or relegate more than is allowed."""
    floors = {BUDGET: engine.knobs.min_batched_tokens, RUNNING: engine.knobs.min_running}
    longest_ms = engine.relegation.max_deferral_ms
    return tuple(
        name
        for name, value in point.items()
        if value < floors.get(name, value)
        or (name == DEADLINE and not longest_ms)
        or (name == DEFERRAL and value > longest_ms)
    )


def forbids_weight(engine: Engine, weight: int | None) -> bool:
    """Whether a CPU weight we hold (None: none) is above what the engine may be given."""
    return weight is not None and weight > engine.limits.cpu_weight_max
