"""What this machine's engine can do alone, and the SLO and load that follow from it.

SLOs are multiples of the unloaded engine's figures, the load is a share of its capacity: so the
demonstration means the same on a fast machine and on a slow one.
"""

from collections.abc import Sequence
from typing import Final

from demo.client import Record
from demo.stats import Slo, percentile
from demo.trace import LengthScale, Request, mean_prompt_tokens

TTFT_MULTIPLE: Final = 20.0
"""A burst of the trace queues for some ten prompts even where nothing disturbs the engine."""
GAP_MULTIPLE: Final = 10.0
"""A step with a full token budget takes four to five times as long as one without a prompt."""
LOAD_SHARE: Final = 0.25
"""Share of the engine's capacity that the load asks for: bursts need the rest."""

WARM_UP_REQUESTS: Final = 3
UNLOADED_ANSWER_TOKENS: Final = 16
UNLOADED_EVERY_S: Final = 0.25


def unloaded_plan(trace: Sequence[Request], lengths: LengthScale, count: int) -> list[Request]:
    """`count` requests of the trace's mean prompt, one after the other, warm-up before them."""
    prompt = mean_prompt_tokens(map(lengths.apply, trace))
    return [
        Request(number * UNLOADED_EVERY_S, prompt, UNLOADED_ANSWER_TOKENS)
        for number in range(WARM_UP_REQUESTS + count)
    ]


def capacity_plan(trace: Sequence[Request], lengths: LengthScale, count: int) -> list[Request]:
    """`count` requests from all over the trace, all at once."""
    every = max(1, len(trace) // count)
    picked = map(lengths.apply, trace[::every][:count])
    return [Request(0.0, each.prompt_tokens, each.answer_tokens) for each in picked]


def unloaded_figures(records: Sequence[Record]) -> Slo:
    """Median TTFT and gap, in ms, of what `unloaded_plan` gave; `ValueError` if it gave none."""
    measured = records[WARM_UP_REQUESTS:]
    ttft = percentile((each.ttft_ms for each in measured if each.ttft_ms is not None), 0.5)
    gap = percentile((gap for each in measured for gap in each.gaps_ms), 0.5)
    if ttft is None or gap is None:
        raise ValueError("the unloaded engine answered nothing")
    return Slo(ttft, gap)


def slo_of(unloaded: Slo) -> Slo:
    """What the engine owes its users here, to a tenth of a ms."""
    return Slo(
        round(max(1.0, unloaded.ttft_ms * TTFT_MULTIPLE), 1),
        round(max(1.0, unloaded.gap_ms * GAP_MULTIPLE), 1),
    )


def capacity_rps(records: Sequence[Record]) -> float:
    """Requests a second of what `capacity_plan` gave."""
    took_ns = max(each.ended_ns for each in records) - min(each.sent_ns for each in records)
    return len(records) * 1e9 / took_ns
