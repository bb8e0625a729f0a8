"""Continuous batching, without any IO: what the next step computes, and who waits.

Every running sequence that has its prompt behind it gets one token a step; what is left of the
token budget goes to prompts, in chunks, first come first served. A sequence's KV cache is reserved
whole when it is admitted (prompt and the most it may generate), so nothing is ever preempted.
"""

from collections import deque
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Protocol


class Limits(Protocol):
    """The values in force; they may change between two plans."""

    @property
    def max_running(self) -> int:
        """Sequences running at once. Lowering it admits no more until enough have finished."""

    @property
    def max_batched_tokens(self) -> int:
        """Tokens computed in one step."""

    @property
    def long_prefill_tokens(self) -> int:
        """Prompt tokens computed for one sequence in one step."""

    @property
    def max_queued(self) -> int:
        """Sequences waiting at once."""


@dataclass(slots=True, eq=False)
class Sequence:
    """One request in the scheduler. `arrival_ns` is CLOCK_MONOTONIC."""

    key: int
    prompt_tokens: int
    max_new_tokens: int
    arrival_ns: int
    admitted: bool = False
    prefilled: int = 0
    generated: int = 0

    @property
    def reserved_tokens(self) -> int:
        """KV tokens set aside while it runs."""
        return self.prompt_tokens + self.max_new_tokens


@dataclass(frozen=True, slots=True)
class Prefill:
    """Compute `count` prompt tokens of `sequence`, from `first` on."""

    sequence: Sequence
    first: int
    count: int

    @property
    def completes(self) -> bool:
        """Whether the prompt is done after this, so that its first token is sampled."""
        return self.first + self.count == self.sequence.prompt_tokens


@dataclass(frozen=True, slots=True)
class Plan:
    """One step: a token for each of `decodes`, and some prompts' next chunks."""

    decodes: tuple[Sequence, ...]
    prefills: tuple[Prefill, ...]

    @property
    def prefill_tokens(self) -> int:
        """Prompt tokens computed."""
        return sum(prefill.count for prefill in self.prefills)

    @property
    def empty(self) -> bool:
        """Whether there is nothing to compute."""
        return not self.decodes and not self.prefills

    def sampled(self) -> Iterator[Sequence]:
        """The sequences that get a token from this step, decodes first."""
        yield from self.decodes
        for prefill in self.prefills:
            if prefill.completes:
                yield prefill.sequence


class Scheduler:
    """The waiting queue and the running set."""

    def __init__(self, kv_total: int) -> None:
        """`kv_total` is the KV cache's size in tokens."""
        self.kv_total = kv_total
        self.kv_used = 0
        self._waiting: deque[Sequence] = deque()
        self._prefilling: list[Sequence] = []
        self._decoding: deque[Sequence] = deque()
        self._live: dict[int, Sequence] = {}
        self._waiting_tokens = 0

    @property
    def waiting(self) -> int:
        """Sequences not yet admitted."""
        return len(self._waiting)

    @property
    def running(self) -> int:
        """Sequences admitted and not finished."""
        return len(self._prefilling) + len(self._decoding)

    @property
    def waiting_tokens(self) -> int:
        """Prompt tokens not yet computed, of waiting and running sequences."""
        return self._waiting_tokens

    @property
    def oldest_arrival_ns(self) -> int:
        """When the longest waiting sequence arrived, 0 when none waits."""
        return self._waiting[0].arrival_ns if self._waiting else 0

    def add(self, sequence: Sequence, limits: Limits) -> bool:
        """Queue `sequence`; False when the queue is full.

        `ValueError` if it could never run: larger than the whole KV cache.
        """
        if sequence.reserved_tokens > self.kv_total:
            raise ValueError(
                f"{sequence.reserved_tokens} tokens do not fit a KV cache of {self.kv_total}"
            )
        if len(self._waiting) >= limits.max_queued:
            return False
        self._waiting.append(sequence)
        self._live[sequence.key] = sequence
        self._waiting_tokens += sequence.prompt_tokens
        return True

    def plan(self, limits: Limits) -> Plan:
        """Admit what may run now and say what the next step computes.

        Never more than `max_batched_tokens` tokens. Where that is less than the sequences that
        decode, they take turns.
        """
        served = min(len(self._decoding), limits.max_batched_tokens)
        decodes = tuple(self._decoding[i] for i in range(served))
        if served < len(self._decoding):
            self._decoding.rotate(-served)
        budget = limits.max_batched_tokens - served
        prefills = []
        for sequence in self._prefilling:
            if budget == 0:
                break
            prefills.append(_next_chunk(sequence, budget, limits))
            budget -= prefills[-1].count
        while budget > 0 and self._admit(limits):
            prefills.append(_next_chunk(self._prefilling[-1], budget, limits))
            budget -= prefills[-1].count
        return Plan(decodes, tuple(prefills))

    def advance(self, plan: Plan, ended: Collection[int]) -> list[Sequence]:
        """Take in a computed `plan`; returns the sequences that finished.

        `ended` are the keys of those that sampled an end of text. Sequences removed since the plan
        was made are passed over.
        """
        for prefill in plan.prefills:
            sequence = prefill.sequence
            if sequence.key not in self._live:
                continue
            sequence.prefilled += prefill.count
            self._waiting_tokens -= prefill.count
            if prefill.completes:
                self._prefilling.remove(sequence)
                self._decoding.append(sequence)
        finished = []
        for sequence in plan.sampled():
            if sequence.key not in self._live:
                continue
            sequence.generated += 1
            if sequence.generated >= sequence.max_new_tokens or sequence.key in ended:
                finished.append(sequence)
        for sequence in finished:
            self.remove(sequence.key)
        return finished

    def remove(self, key: int) -> None:
        """Forget a sequence, wherever it is; nothing if it is not there any more."""
        sequence = self._live.pop(key, None)
        if sequence is None:
            return
        self._waiting_tokens -= sequence.prompt_tokens - sequence.prefilled
        if not sequence.admitted:
            self._waiting.remove(sequence)
            return
        if sequence.prefilled < sequence.prompt_tokens:
            self._prefilling.remove(sequence)
        else:
            self._decoding.remove(sequence)
        self.kv_used -= sequence.reserved_tokens

    def _admit(self, limits: Limits) -> bool:
        """Move the head of the queue to the running set if it may; the queue is never jumped."""
        if not self._waiting or self.running >= limits.max_running:
            return False
        if self.kv_used + self._waiting[0].reserved_tokens > self.kv_total:
            return False
        sequence = self._waiting.popleft()
        sequence.admitted = True
        self._prefilling.append(sequence)
        self.kv_used += sequence.reserved_tokens
        return True


def _next_chunk(sequence: Sequence, budget: int, limits: Limits) -> Prefill:
    left = sequence.prompt_tokens - sequence.prefilled
    return Prefill(sequence, sequence.prefilled, min(left, budget, limits.long_prefill_tokens))
