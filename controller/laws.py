"""The control laws: what each knob should be. Pure, one formula each."""

import math
from typing import Final

from controller.step_model import StepModel

MARGIN: Final = 0.85
"""Share of the gap SLO that a step may take; the rest is for the way from the engine to the user
(design section 6.2 trims it between 0.7 and 0.95)."""

CHANCE: Final = 2.0
"""Standard deviations of a Poisson number that run at once beyond the mean."""

KV_WATERMARK: Final = 0.95
"""Share of the KV cache that the running cap plans for."""


def noise_margin(margin: float, error: float) -> float:
    """The share of the gap SLO to plan for, so that nearly all steps and not half keep `margin`.

    m / (1 + 2·e), e the model's mean relative error: of normal noise the mean of |x| is 0.8 σ, so
    2·e are 1.6 σ, which 19 of 20 steps stay below.
    """
    return margin / (1 + 2 * error)


def prefill_budget(
    model: StepModel, gap_slo_ms: float, margin: float, decode_seqs: int, kv_tokens: int
) -> float:
    """Prompt tokens that fit into a step beside `decode_seqs` sequences.

    B = (m·SLO − a − c·n − d·kv) / b, design section 6.2. May be below zero: then not even the
    sequences that run fit.
    """
    if model.prefill_ms <= 0:
        return math.inf
    left_ms = margin * gap_slo_ms - model.predict_ms(0, decode_seqs, kv_tokens)
    return left_ms / model.prefill_ms


def rate_floor(
    model: StepModel, arrival_tokens_per_s: float, decode_seqs: int, kv_tokens: int
) -> float:
    """The smallest prefill budget that keeps up with the prompts that arrive.

    A step with budget B takes t(B) = r + b·B, r = a + c·n + d·kv, and prefills B/t(B) a ms. That is
    at least the arrival rate λ if B ≥ λ·r / (1 − λ·b). Infinity when λ·b ≥ 1: no budget keeps up,
    and squeezing it would only buy queueing (design section 6.3).
    """
    per_ms = arrival_tokens_per_s / 1e3
    share = per_ms * model.prefill_ms
    if share >= 1:
        return math.inf
    return per_ms * model.predict_ms(0, decode_seqs, kv_tokens) / (1 - share)


def jitter_budget(model: StepModel, jitter_ms: float) -> float:
    """Prompt tokens a step may take so that chunk gaps deviate by at most `jitter_ms`.

    Prompts make a step up to b·B longer than one without. A quantity within a range R has a
    standard deviation of at most R/2 (Popoviciu 1935), so B = 2·J/b. Seed A12. Infinity for no
    target (0) and for tokens that cost nothing.
    """
    if jitter_ms <= 0 or model.prefill_ms <= 0:
        return math.inf
    return 2 * jitter_ms / model.prefill_ms


def prefill_rate(
    model: StepModel, prefill_tokens: float, decode_seqs: int, kv_tokens: int
) -> float:
    """Prompt tokens a second in steps with `prefill_tokens` of them: 1000·B / t(B); 0 for none."""
    step_ms = model.predict_ms(prefill_tokens, decode_seqs, kv_tokens)
    if prefill_tokens <= 0 or step_ms <= 0 or math.isinf(prefill_tokens):
        return 0.0
    return 1e3 * prefill_tokens / step_ms


def capacity_rps(
    model: StepModel,
    step_ms: float,
    most_running: float,
    mean_prompt: float,
    mean_answer: float,
) -> float:
    """Requests a second that the engine serves for ever in steps of `step_ms` at most.

    Of n sequences that run, each gets a token a step and ends after g of them; the prompts of those
    that take their places are n·p/g tokens a step. So t = a + n·(c + d·(p + g/2) + b·p/g), the
    largest n has t = `step_ms`, and n/(g·t) end a ms. Little's law with the step model of design
    section 6.2; 0 where not even an empty step is that short.
    """
    if mean_answer <= 0 or step_ms <= model.base_ms:
        return 0.0
    kv_tokens = mean_prompt + mean_answer / 2
    per_seq_ms = (
        model.decode_ms + model.kv_ms * kv_tokens + model.prefill_ms * mean_prompt / mean_answer
    )
    fits = (step_ms - model.base_ms) / per_seq_ms if per_seq_ms > 0 else math.inf
    running = min(fits, most_running)
    if math.isinf(running):
        return math.inf
    return 1e3 * running / (mean_answer * (model.base_ms + per_seq_ms * running))


def served_rps(finished_per_s: float, running: float, most_running: float) -> float:
    """Requests a second with `most_running` at once, from those that finish while `running` are.

    Little's law (Little 1961, "A proof for the queuing formula: L = λW"): each is served for
    W = running / finished_per_s, so n at once leave at n / W. Exact where `running` is
    `most_running`; with fewer an upper bound, since a request takes longer in a larger batch.
    Infinity while nothing runs.
    """
    return finished_per_s * most_running / running if running > 0 else math.inf


def queued_cap(
    capacity_rps: float, arrival_rps: float, ttft_slo_ms: float, max_deferral_ms: float
) -> float:
    """How many requests may wait: as many as will be served before they were put off too long.

    On time are those of the next `ttft_slo_ms` at capacity; those that are late are served by what
    capacity has over the arrivals, and must be within `max_deferral_ms`. Under a lasting overload
    nothing is over: then what can't be on time is refused at the door (design section 6.3), while
    another engine may still serve it in time.
    """
    on_time = capacity_rps * ttft_slo_ms / 1e3
    spare = max(0.0, capacity_rps - arrival_rps) * max_deferral_ms / 1e3
    return on_time + spare


def running_cap(
    model: StepModel,
    gap_slo_ms: float,
    margin: float,
    kv_per_seq: float,
    kv_total: int,
    prompt_per_answer: float = 0.0,
) -> float:
    """The most sequences that run within the gap SLO, and that the KV cache holds.

    n = (m·SLO − a) / (c + d·kv₁) with kv₁ cached tokens a sequence is the most whose decode step
    alone meets the SLO. With q prompt tokens for each token of an answer, n₀ run for ever:
    n₀ = (m·SLO − a) / (c + d·kv₁ + b·q), for n/g end in a step and the prompts that take their
    places are n·p/g = n·q tokens (Little's law, as in `capacity_rps`). With many more the prompts
    starve until too many have ended, and load and step length go to and fro; as many run at once as
    come by chance, n₀ + 2·√n₀ (arrivals at random: of a mean n₀, 39 times in 40 no more). q is 0
    where it is not known. The cache holds w·KV / kv₁, w the watermark. Design section 6.5.
    """
    decode_ms = model.predict_ms(0, 1, kv_per_seq) - model.base_ms
    left_ms = margin * gap_slo_ms - model.base_ms
    by_time = left_ms / decode_ms if decode_ms > 0 else math.inf
    if prompt_per_answer > 0 and left_ms < math.inf:
        lasting_ms = decode_ms + model.prefill_ms * prompt_per_answer
        lasting = max(0.0, left_ms) / lasting_ms if lasting_ms > 0 else math.inf
        by_time = min(by_time, lasting + CHANCE * math.sqrt(lasting))
    by_kv = KV_WATERMARK * kv_total / kv_per_seq if kv_total and kv_per_seq > 0 else math.inf
    return max(1.0, min(by_time, by_kv))
