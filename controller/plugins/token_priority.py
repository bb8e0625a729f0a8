"""Priority by how much a token's delay is felt, as written in seed row A4, and with ageing.

Not what the queue is ordered by (`controller.plugins.relegation` is): kept to be compared with it
and for what has no deadline.
"""

from typing import Final

DECODE_DECAY: Final = 0.8
"""Seed row A4's factor for each token that a generated one is before the end."""


def prefill_sensitivity(position: int) -> float:
    """How much the delay of prompt token `position` (from 0) is felt: 1 / (position + 1)."""
    return 1 / (position + 1)


def decode_sensitivity(position: int, length: int) -> float:
    """The same of generated token `position` of `length`: 0.8^(length − position)."""
    return float(DECODE_DECAY ** max(0, length - position))


def written_priority(
    sensitivity: float, waited_ms: float, alpha: float = 1.0, beta: float = 1.0
) -> float:
    """Seed row A4 as it stands: α · sensitivity + β / waited_ms.

    It falls as a request waits. All requests that wait for their first token are of one
    sensitivity, so the last to come is the first served, and with more load than the engine can
    serve the first to come is never served.
    """
    return alpha * sensitivity + beta / max(waited_ms, 1e-3)


def aged_priority(
    sensitivity: float,
    waited_ms: float,
    bound_ms: float,
    alpha: float = 1.0,
    beta: float = 1.0,
) -> float:
    """The same with the wait's term turned round: α · sensitivity + β · waited_ms / bound_ms.

    It grows as a request waits, without end, so nobody starves: one that has waited for
    `bound_ms` · α / β longer goes before any other, whatever the sensitivities, which are 0 to 1.
    """
    return alpha * sensitivity + beta * max(0.0, waited_ms) / bound_ms
