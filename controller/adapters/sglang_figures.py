"""What SGLang tells of its load, as figures of the contract: means of steps from sums. Pure.

`GET /v1/loads` has, of each data-parallel rank, sums over all decode steps and all prompts computed
(SGLang 0.5.23, srt/managers/load_snapshot.py and scheduler.py). Between two looks they give a mean
step, which is what the step model needs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from controller.engines.page import Step

MOST_STEPS: Final = 32
"""Steps of one look: half of what a page holds."""

_STEPS, _SEQUENCES, _US, _TOKENS = 0, 1, 2, 5
"""Places in `decode_moments`: steps, Σ sequences, Σ µs, Σ tokens; between them are Σ of squares."""


@dataclass(frozen=True, slots=True)
class Load:
    """One look at every rank, summed; the counts only grow while the server runs."""

    running: int
    waiting: int
    waiting_tokens: int
    kv_used: int
    kv_total: int
    prompt_tokens: int
    prompts_us: int
    decode_steps: int
    decode_seqs: int
    decode_us: int
    generated: int


def load(ranks: Sequence[Mapping[str, Any]]) -> Load:
    """From the `loads` of an answer; what a version does not tell counts as 0."""

    def total(name: str) -> int:
        return sum(int(rank.get(name) or 0) for rank in ranks)

    moments = [each for rank in ranks if (each := rank.get("decode_moments"))]

    def moment(place: int) -> int:
        return sum(int(each[place]) for each in moments)

    return Load(
        running=total("num_running_reqs"),
        waiting=total("num_waiting_reqs"),
        waiting_tokens=total("num_waiting_uncached_tokens"),
        kv_used=total("num_used_tokens"),
        kv_total=total("max_total_num_tokens"),
        prompt_tokens=total("total_prefill_uncached_tokens"),
        prompts_us=total("total_prefill_busy_us"),
        decode_steps=moment(_STEPS),
        decode_seqs=moment(_SEQUENCES),
        decode_us=moment(_US),
        generated=moment(_TOKENS),
    )


def mean_steps(
    before: Load, now: Load, after_step: int, now_ns: int, ranks: int
) -> tuple[Step, ...]:
    """The last steps between two looks, each the mean of all; numbered from two above `after_step`.

    The number left out says that the step before is not known, so that nobody takes the time
    between two looks for one between two steps. The prompts computed meanwhile are one step: their
    number is not told, so the fixed cost of a step counts once for all of them.
    """
    steps = []
    index = after_step + 2
    tokens, spent_us = now.prompt_tokens - before.prompt_tokens, now.prompts_us - before.prompts_us
    if tokens > 0 and spent_us > 0:
        steps.append(Step(index, now_ns, spent_us * 1000, tokens, 0, 0))
        index += 1
    ran = now.decode_steps - before.decode_steps
    if ran > 0:
        sequences = round((now.decode_seqs - before.decode_seqs) / ran)
        step_ns = (now.decode_us - before.decode_us) * 1000 // ran
        index += max(0, ran - MOST_STEPS + 1)
        steps += [
            Step(index + i, now_ns, step_ns, 0, sequences, now.kv_used // ranks)
            for i in range(min(ran, MOST_STEPS - 1))
        ]
    return tuple(steps)
