"""Continuous batching, without any IO: what the next step computes, and who waits.

Every running sequence that has its prompt behind it gets one token a step; what is left of the
token budget goes to prompts, in chunks: to those begun, then to those that wait, in the order of
`controller.plugins.relegation`. One that was begun late, in a moment of slack, comes after those
that can still be on time. A sequence's KV cache is reserved whole when it is admitted
(prompt and the most it may generate), so nothing is ever preempted.
"""

import math
from collections import deque
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Final

from controller.plugins.prefill_rate import PrefillRate
from controller.plugins.relegation import Relegation, Rules

NS_PER_MS: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Limits:
    """The knob values in force; they may change between two plans.

    At most `max_running` sequences are admitted, `max_batched_tokens` tokens computed in a step,
    `long_prefill_tokens` prompt tokens of one sequence in a step, and `max_queued` sequences wait.
    With a `ttft_deadline_ms` those that can't meet it wait behind those that can, for no longer
    than about `max_deferral_ms` unless that is 0; `prefill_tokens_per_s` of 0 is the rate measured.
    """

    max_running: int
    max_batched_tokens: int
    long_prefill_tokens: int
    max_queued: int
    ttft_deadline_ms: int = 0
    prefill_tokens_per_s: int = 0
    max_deferral_ms: int = 0


@dataclass(slots=True, eq=False)
class Sequence:
    """One request in the scheduler. `arrival_ns` is CLOCK_MONOTONIC.

    `yields` once it was admitted although it is late, because there was room.
    """

    key: int
    prompt_tokens: int
    max_new_tokens: int
    arrival_ns: int
    admitted: bool = False
    prefilled: int = 0
    generated: int = 0
    yields: bool = False

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
    """One step: a token for each of `decodes`, and some prompts' next chunks.

    `left_tokens` are prompt tokens that it leaves for later steps.
    """

    decodes: tuple[Sequence, ...]
    prefills: tuple[Prefill, ...]
    left_tokens: int

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

    def __init__(self, kv_total: int, queue: Relegation[int] | None = None) -> None:
        """`kv_total` is the KV cache's size in tokens; `queue` is where sequences wait."""
        self.kv_total = kv_total
        self.kv_used = 0
        self.shed_total = 0
        self._queue: Relegation[int] = Relegation() if queue is None else queue
        self._queue_tokens = 0
        self._rate = PrefillRate()
        self._since_ns: int | None = None
        self._prefilling: list[Sequence] = []
        self._decoding: deque[Sequence] = deque()
        self._live: dict[int, Sequence] = {}
        self._waiting_tokens = 0

    @property
    def waiting(self) -> int:
        """Sequences not yet admitted."""
        return len(self._queue)

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
        return self._queue.oldest_arrival_ns

    @property
    def deferred(self) -> int:
        """Sequences that wait behind those on time."""
        return self._queue.deferred

    @property
    def deferred_total(self) -> int:
        """Sequences that were ever deferred."""
        return self._queue.deferred_total

    @property
    def on_time_tokens(self) -> int:
        """Prompt tokens of waiting sequences that are not deferred."""
        return self._queue.on_time_tokens

    def longest_deferral_ns(self, now_ns: int) -> int:
        """How long ago the longest waiting of the deferred arrived, 0 if none is."""
        return self._queue.longest_deferral_ns(now_ns)

    def drain_s(self) -> float:
        """How long all prompts that are not yet computed will take, NaN if that is not known."""
        rate = self._rate.tokens_per_s
        return self._waiting_tokens / rate if rate > 0 else math.nan

    def add(self, sequence: Sequence, limits: Limits) -> bool:
        """Queue `sequence`; False when the queue is full.

        A full queue still takes who can be on time and puts nobody off: those it holds are late,
        and to keep others out would not serve them sooner. `ValueError` if it could never run:
        larger than the whole KV cache.
        """
        if sequence.reserved_tokens > self.kv_total:
            raise ValueError(
                f"{sequence.reserved_tokens} tokens do not fit a KV cache of {self.kv_total}"
            )
        full = len(self._queue) >= limits.max_queued
        if full and not self._queue.fits(sequence.prompt_tokens):
            self.shed_total += 1
            return False
        self._queue.add(sequence.key, sequence.arrival_ns, sequence.prompt_tokens)
        self._queue_tokens += sequence.prompt_tokens
        self._live[sequence.key] = sequence
        self._waiting_tokens += sequence.prompt_tokens
        return True

    def plan(self, limits: Limits, now_ns: int) -> Plan:
        """Admit what may run now and say what the next step computes.

        Never more than `max_batched_tokens` tokens. Where that is less than the sequences that
        decode, they take turns.
        """
        yielding = [each for each in self._prefilling if self._yields(each, limits, now_ns)]
        yielding_tokens = sum(each.prompt_tokens - each.prefilled for each in yielding)
        ahead_tokens = self._waiting_tokens - self._queue_tokens - yielding_tokens
        self._queue.update(now_ns, ahead_tokens, self._rules(limits))
        served = min(len(self._decoding), limits.max_batched_tokens)
        decodes = tuple(self._decoding[i] for i in range(served))
        if served < len(self._decoding):
            self._decoding.rotate(-served)
        budget = left = limits.max_batched_tokens - served
        prefills = []
        turns = self._in_turn(yielding, limits)
        while left and (sequence := next(turns, None)) is not None:
            prefills.append(_next_chunk(sequence, left, limits))
            left -= prefills[-1].count
        plan = Plan(decodes, tuple(prefills), self._waiting_tokens - (budget - left))
        if plan.empty:
            self._since_ns = None
        elif self._since_ns is None:
            self._since_ns = now_ns
        return plan

    def advance(self, plan: Plan, ended: Collection[int], now_ns: int) -> list[Sequence]:
        """Take in a `plan` that was computed by `now_ns`; returns the sequences that finished.

        `ended` are the keys of those that sampled an end of text. Sequences removed since the plan
        was made are passed over.
        """
        if plan.left_tokens and self._since_ns is not None:
            # with what passed between two steps: that is lost to prompts too
            self._rate.take(plan.prefill_tokens, now_ns - self._since_ns)
        self._since_ns = now_ns if plan.left_tokens else None
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
            self._queue.discard(key)
            self._queue_tokens -= sequence.prompt_tokens
            return
        if sequence.prefilled < sequence.prompt_tokens:
            self._prefilling.remove(sequence)
        else:
            self._decoding.remove(sequence)
        self.kv_used -= sequence.reserved_tokens

    def _in_turn(self, yielding: list[Sequence], limits: Limits) -> Iterator[Sequence]:
        """Who gets what is left of the budget, one after another; admits as far as it is asked."""
        yield from [each for each in self._prefilling if each not in yielding]
        while (sequence := self._admit(limits, yielding=False)) is not None:
            yield sequence
        yield from yielding
        while (sequence := self._admit(limits, yielding=True)) is not None:
            yield sequence

    def _admit(self, limits: Limits, *, yielding: bool) -> Sequence | None:
        """Move the first of the queue to the running set if it may; the queue is never jumped."""
        key = self._queue.first(yielding=yielding)
        if key is None or self.running >= limits.max_running:
            return None
        sequence = self._live[key]
        if self.kv_used + sequence.reserved_tokens > self.kv_total:
            return None
        sequence.yields = self._queue.take(key)
        self._queue_tokens -= sequence.prompt_tokens
        sequence.admitted = True
        self._prefilling.append(sequence)
        self.kv_used += sequence.reserved_tokens
        return sequence

    def _yields(self, sequence: Sequence, limits: Limits, now_ns: int) -> bool:
        """Whether a begun prompt comes after those on time."""
        if not sequence.yields or not limits.ttft_deadline_ms:
            return False
        return not self._queue.is_aged(sequence.arrival_ns, now_ns)

    def _rules(self, limits: Limits) -> Rules:
        return Rules(
            limits.ttft_deadline_ms * NS_PER_MS,
            limits.max_deferral_ms * NS_PER_MS,
            limits.prefill_tokens_per_s or self._rate.tokens_per_s,
        )


def _next_chunk(sequence: Sequence, budget: int, limits: Limits) -> Prefill:
    left = sequence.prompt_tokens - sequence.prefilled
    return Prefill(sequence, sequence.prefilled, min(left, budget, limits.long_prefill_tokens))
