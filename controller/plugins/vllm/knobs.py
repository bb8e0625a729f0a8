"""The knobs that a vLLM scheduler has, found by its attributes, and how they are turned."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from controller.engines.contract import KNOBS, Knob
from controller.plugins.relegation import MAX_DEADLINE_MS, MAX_DEFERRAL_MS, MAX_TOKENS_PER_S
from controller.plugins.vllm.turns import can_take_turns

ACTIVE: Final = "max_num_active_reqs"
"""Where vLLM tells admission from slots (since 0.31), the limit of the first."""

SLOTS: Final = "max_num_running_reqs"
BUDGET: Final = "max_num_scheduled_tokens"
THRESHOLD: Final = "long_prefill_token_threshold"


@dataclass(frozen=True, slots=True)
class Traits:
    """What this vLLM can do.

    `splits` admission from slots; a sequence gets `tokens_per_sequence` in a step of its own (more
    than one where it speculates); `chunks` prompts, so that their tokens can be limited.
    `least_chunk` is the shortest piece of a prompt that it may compute.
    """

    splits: bool
    tokens_per_sequence: int
    chunks: bool
    least_chunk: int
    relegates: bool


def traits_of(scheduler: Any) -> Traits:
    """Look at a scheduler that vLLM has just made."""
    config = scheduler.scheduler_config
    chunks = bool(getattr(config, "enable_chunked_prefill", False))
    # one item of a picture is computed whole then, or never if the budget is below it
    whole_items = bool(getattr(config, "disable_chunked_mm_input", False))
    aligned = bool(getattr(scheduler, "need_mamba_block_aligned_split", False))
    return Traits(
        splits=hasattr(scheduler, ACTIVE),
        tokens_per_sequence=1 + int(getattr(scheduler, "num_spec_tokens", 0) or 0),
        chunks=chunks and not whole_items and hasattr(config, THRESHOLD),
        least_chunk=int(scheduler.cache_config.block_size) if aligned else 1,
        relegates=is_first_come_first_served(scheduler) and can_take_turns(scheduler.waiting),
    )


def is_first_come_first_served(scheduler: Any) -> bool:
    """Whether its queue is in order of arrival, and not by priorities that users give."""
    policy = getattr(scheduler, "policy", None)
    return str(getattr(policy, "value", policy)) == "fcfs"


def offered(scheduler: Any, traits: Traits) -> dict[str, Knob]:
    """The knobs by their names in the contract; `start` is what vLLM was started with."""
    slots = int(getattr(scheduler, SLOTS))
    ranges = [("max_running", 1, slots, int(getattr(scheduler, ACTIVE, slots)))]
    if traits.chunks:
        budget = int(getattr(scheduler, BUDGET))
        least = min(budget, max(traits.least_chunk, traits.tokens_per_sequence))
        threshold = int(getattr(scheduler.scheduler_config, THRESHOLD)) or budget
        ranges += [
            ("max_batched_tokens", least, budget, budget),
            ("long_prefill_tokens", least, budget, max(least, min(threshold, budget))),
        ]
    if traits.relegates:
        ranges += [
            ("ttft_deadline_ms", 0, MAX_DEADLINE_MS, 0),
            ("prefill_tokens_per_s", 0, MAX_TOKENS_PER_S, 0),
            ("max_deferral_ms", 0, MAX_DEADLINE_MS, MAX_DEFERRAL_MS),
        ]
    return {
        name: Knob(name, least, most, start, KNOBS[name]) for name, least, most, start in ranges
    }


class Limits:
    """The sizes in force in a scheduler."""

    def __init__(self, scheduler: Any, traits: Traits, knobs: Mapping[str, Knob]) -> None:
        self._scheduler = scheduler
        self._traits = traits
        self._start_threshold = getattr(scheduler.scheduler_config, THRESHOLD, 0)
        self._start_budget = int(getattr(scheduler, BUDGET))
        self._start = {name: knob.start for name, knob in knobs.items()}
        self.running = int(self._start["max_running"])
        self.budget = self._start_budget

    def take(self, values: Mapping[str, float]) -> None:
        """From this step on these values hold. Only at the top of a step: vLLM reads them in it."""
        self.running = int(values["max_running"])
        if self._traits.splits:
            setattr(self._scheduler, ACTIVE, self.running)
        if self._traits.chunks:
            self.budget = int(values["max_batched_tokens"])
            longest = int(values["long_prefill_tokens"])
            is_start = longest == self._start["long_prefill_tokens"]
            threshold = self._start_threshold if is_start else longest
            setattr(self._scheduler.scheduler_config, THRESHOLD, threshold)
        self.follow()

    def follow(self) -> None:
        """Never below what runs, at the top of every step while a lease is held.

        A budget below the sequences that run would starve the last of them, since vLLM does not let
        them take turns. And where slots and admission are one, vLLM ends itself when more run than
        there are slots.
        """
        scheduler, running = self._scheduler, len(self._scheduler.running)
        if not self._traits.splits:
            setattr(scheduler, SLOTS, max(self.running, running))
        budget = max(self.budget, running * self._traits.tokens_per_sequence)
        setattr(scheduler, BUDGET, min(budget, self._start_budget))
