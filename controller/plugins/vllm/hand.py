"""The plug-in's hand on one scheduler: knobs at the top of a step, figures at its end.

All of it runs on vLLM's own thread. A step in which nothing but tokens comes and goes has a way of
its own through here, and each line of that was weighed: see docs/decisions.md.
"""

import logging
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from operator import attrgetter
from time import monotonic_ns, time
from typing import Any, Final

from controller.engines.page import (
    NOW_AT,
    NOW_END,
    SEQUENCE_WORD,
    SLOTS_AT,
    STEP_SLOTS,
    pack_step,
)
from controller.plugins.prefill_rate import PrefillRate
from controller.plugins.relegation import Rules
from controller.plugins.vllm.arrivals import arrival_ns
from controller.plugins.vllm.figures import (
    DEFERRED,
    DEFERRED_TOTAL,
    FINISHED,
    GENERATED,
    KV_USED,
    LONGEST,
    OLDEST,
    ON_TIME,
    PREEMPTIONS,
    PROMPT_TOKENS,
    REQUESTS,
    RUNNING,
    STEPS,
    UPDATED,
    WAITING,
    WAITING_TOKENS,
)
from controller.plugins.vllm.knobs import Limits, Traits
from controller.plugins.vllm.kv_cache import KvCache
from controller.plugins.vllm.leased import NEVER, Leased
from controller.plugins.vllm.prompts import Prompts, Waiting
from controller.plugins.vllm.stuck import Sight, StuckWatch
from controller.plugins.vllm.turns import Turns
from controller.serving.leases import NS_PER_MS

log = logging.getLogger("vllm.sits")

RECOUNT_STEPS: Final = 64
"""How often the cached tokens are counted anew, whatever was added up since."""

SAME_RATE: Final = 0.01
"""A measured prefill rate that moved by less makes no other order."""

MOST_PLANNED: Final = 64
"""Steps under way that are remembered: vLLM has one or two, or one for each stage of a pipeline."""

_PASSED_OVER: Final = ("deferred_waiting", "skipped_waiting")
_ENDED_BY_THEMSELVES: Final = frozenset({"FINISHED_STOPPED", "FINISHED_LENGTH_CAPPED"})
_computed_tokens: Final = attrgetter("num_computed_tokens")

RATE_EVERY_NS: Final = 50_000_000
"""For how long tokens are added up before the measured rate is told of them: it averages over
seconds."""

LOOK_EVERY_NS: Final = 100_000_000
"""How often, under a lease, it is looked whether prompts are computed at all."""

_Prompted = tuple[Any, int, int, int, int, int, bool]
"""A plan that computes prompts: itself, tokens of prompts, sequences that decode, tokens that will
be sampled, prompt tokens that are done with it, those of them that were in the prefix cache, and
whether any are left. Not a class: to make one would cost more than all else at this point."""


def _near(rate: float, planned: float) -> bool:
    """Whether a rate is what it was, as far as an order depends on it; NaN is like nothing."""
    return abs(rate - planned) <= SAME_RATE * planned


def _sampled(output: Any) -> int:
    """Tokens in the answer of vLLM's model."""
    return sum(map(len, getattr(output, "sampled_token_ids", None) or ()))


class Hand:
    """What the scheduler calls.

    At the top of a step it tells `leased` that one is under way, and calls `begin_step` where
    `looks` or a change of the lease asks for that; once it is planned it notes that in `last_plan`,
    and calls `scheduled` where there are new requests in it or `accounts` asks for that. Before
    vLLM takes the answer in it adds the step's tokens to `cached_tokens`, and then calls
    `end_step`.
    """

    # more than 30 attributes would be looked up in a dict
    __slots__ = (
        "_cache",
        "_done",
        "_due_ns",
        "_figures",
        "_first_deferred_ns",
        "_followed",
        "_generated",
        "_held",
        "_idle",
        "_last_end_ns",
        "_limits",
        "_measures_rate",
        "_moved",
        "_passed",
        "_prompted",
        "_rate",
        "_rated_ns",
        "_relegates",
        "_rules",
        "_running",
        "_scheduler",
        "_speculates",
        "_steps",
        "_stuck",
        "_touched",
        "accounts",
        "cached_tokens",
        "last_plan",
        "leased",
        "looks",
        "prompts",
        "turns",
    )

    def __init__(
        self, scheduler: Any, traits: Traits, limits: Limits, cache: KvCache, leased: Leased
    ) -> None:
        self.prompts = Prompts()
        self.turns = Turns(self._waiting)
        self.leased = leased
        self.looks = True
        self.accounts = False
        self.cached_tokens = 0
        self.last_plan: Any = None
        self._scheduler = scheduler
        self._relegates = traits.relegates
        self._speculates = traits.tokens_per_sequence > 1
        self._limits = limits
        self._cache = cache
        self._figures = leased.figures
        self._held = self._touched = self._measures_rate = False
        self._moved = False
        self._followed = -1
        self._prompted: deque[_Prompted] = deque(maxlen=MOST_PLANNED)
        self._rate = PrefillRate()
        self._rules = Rules()
        self._steps = self._generated = self._running = self._done = self._rated_ns = 0
        self._last_end_ns = self._first_deferred_ns = self._due_ns = 0
        self._idle = True
        self._stuck = StuckWatch()
        self._passed = next((name for name in _PASSED_OVER if hasattr(scheduler, name)), None)

    def stop(self) -> None:
        """The end: no socket and no page stay behind."""
        self.leased.stop()

    def begin_step(self) -> None:
        """The top of a step, before vLLM plans it."""
        now_ns = monotonic_ns()
        if self._idle:
            self._idle = False
            if self.last_plan is None:
                self._last_end_ns = now_ns
        if self.leased.changed or now_ns >= self._due_ns:
            self._take(now_ns)
        if not self._touched:
            self.looks = False
            return
        if self._running != self._followed and self._held:
            self._follow()
        if self.prompts.begun:
            self._decodes_first()
        elif not self._held:
            self._touched = False
        if (order := self.turns.order) is not None:
            if self._measures_rate and not _near(self._rate.tokens_per_s, self._rules.tokens_per_s):
                self._rules = self._rules_now()
            rules, ahead = self._rules, self.prompts.begun_tokens
            # as `update` looks, a call cheaper
            if now_ns < order.quiet_until_ns and ahead == order.ahead and rules is order.asked:
                order.now_ns = now_ns
            elif order.update(now_ns, ahead, rules):
                self._moved = True

    def _follow(self) -> None:
        self._limits.follow()
        self._followed = self._running

    def scheduled(self, plan: Any) -> None:
        """The step is planned, with new requests in it or while prompts are not done."""
        prompts, tokens = self.prompts, plan.num_scheduled_tokens
        if prompts.waiting:
            self._look_who_began(tokens)
        if prompts.begun:
            computed, sequences, completed, done = prompts.advance(tokens)
            decodes, left = len(tokens) - sequences, bool(prompts.waiting or prompts.begun)
            self._prompted.append(
                (plan, computed, decodes, decodes + completed, done, done - computed, left)
            )
            self._figures[WAITING_TOKENS] = prompts.waiting_tokens + prompts.begun_tokens
        self.accounts = bool(prompts.begun or prompts.returned)

    def end_step(self, plan: Any, output: Any, cached: int) -> None:
        """The step is computed and its tokens are taken in; with it `cached` are in the cache."""
        end_ns, leased = monotonic_ns(), self.leased
        if plan is self.last_plan:
            self.last_plan = None
            leased.under_way = False
        # from the end of the last: what passes between two steps is lost to users too
        took_ns = end_ns - self._last_end_ns
        self._last_end_ns = end_ns
        decodes = sampled = len(plan.num_scheduled_tokens)
        if not decodes:
            self._show(end_ns)
            return
        prefill = 0
        if self._prompted and self._prompted[0][0] is plan:
            _, prefill, decodes, sampled, done, found, left = self._prompted.popleft()
            if found:
                cached += found
                self.cached_tokens += found
            if left:
                self._done += done
                if end_ns - self._rated_ns >= RATE_EVERY_NS:
                    self._rate_prompts(end_ns)
            elif self._done:
                self._rate_prompts(end_ns - took_ns)
        if self._speculates:
            sampled = _sampled(output)
        self._steps = index = self._steps + 1
        self._generated = generated = self._generated + sampled
        figures, cache, running = self._figures, self._cache, len(self._scheduler.running)
        figures[UPDATED] = end_ns
        figures[STEPS] = index
        figures[GENERATED] = generated
        figures[KV_USED] = (cache.blocks - cache.queue.num_free_blocks) * cache.size // cache.groups
        if not running or running != self._running:
            self._show_running(running)
        if self._moved:
            self._show_waiting(end_ns)
        elif self._first_deferred_ns:
            figures[LONGEST] = (end_ns - self._first_deferred_ns) // NS_PER_MS
        page = leased.page
        if page is not None:
            leased.writes = True  # first: see there
            if leased.others_write:
                leased.writes = False
                leased.publish(end_ns, (index, end_ns, took_ns, prefill, decodes, cached))
            else:
                # as `PageWriter.publish`, a call or two cheaper
                memory, words, sequence = page.memory, page.words, page.sequence
                words[SEQUENCE_WORD] = sequence + 1
                memory[NOW_AT:NOW_END] = figures
                slot = SLOTS_AT[index % STEP_SLOTS]
                pack_step(memory, slot, index, end_ns, took_ns, prefill, decodes, cached)
                page.sequence = words[SEQUENCE_WORD] = sequence + 2
                leased.writes = False
        if not index % RECOUNT_STEPS:
            self._recount()

    def _rate_prompts(self, now_ns: int) -> None:
        """Up to now prompts waited, since the last time or since the first of them came."""
        self._rate.take(self._done, now_ns - self._rated_ns)
        self._done, self._rated_ns = 0, now_ns

    def _recount(self) -> None:
        """The cached tokens, whatever was added up since; vLLM counts those of a plan at once."""
        ahead = 0 if self.last_plan is None else self.last_plan.total_num_scheduled_tokens
        found = sum(map(_computed_tokens, self._scheduler.running))
        self.cached_tokens = max(0, found - ahead)

    def arrived(self, request: Any) -> None:
        """A request comes, and is about to wait."""
        now_ns = monotonic_ns()
        arrived_ns = arrival_ns(request.arrival_time, time(), now_ns)
        if not (self.prompts.waiting or self.prompts.begun):
            self._done, self._rated_ns = 0, now_ns
        self.prompts.arrive(request.request_id, arrived_ns, request.num_prompt_tokens)
        self._figures[REQUESTS] += 1
        self._figures[PROMPT_TOKENS] += request.num_prompt_tokens
        self._show(now_ns)

    def preempted(self, request: Any) -> None:
        """A running request is about to be put back, for want of memory."""
        self.cached_tokens = max(0, self.cached_tokens - request.num_computed_tokens)
        self._figures[PREEMPTIONS] += 1
        now_ns = monotonic_ns()
        if not (self.prompts.waiting or self.prompts.begun):
            self._done, self._rated_ns = 0, now_ns
        arrived_ns = arrival_ns(request.arrival_time, time(), now_ns)
        self.prompts.come_back(request.request_id, arrived_ns, request.num_tokens)
        self.accounts = self._moved = True

    def left(self, request: Any) -> None:
        """A request has ended, in whatever way."""
        self.cached_tokens = max(0, self.cached_tokens - request.num_computed_tokens)
        self.prompts.leave(request.request_id)
        self._moved = True
        self._figures[FINISHED] += request.status.name in _ENDED_BY_THEMSELVES

    def aborted(self) -> None:
        """Requests were taken back."""
        self._show(monotonic_ns())

    def _show(self, now_ns: int) -> None:
        """Write the page: who runs and waits now."""
        self._figures[KV_USED] = self._cache.used()
        self._show_running(len(self._scheduler.running))
        self._show_waiting(now_ns)
        self.leased.publish(now_ns)

    def _show_running(self, running: int) -> None:
        self._figures[RUNNING] = self._running = running
        if not (running or self.prompts.waiting):
            self._idle = self.looks = True

    def _show_waiting(self, now_ns: int) -> None:
        figures, prompts = self._figures, self.prompts
        figures[WAITING] = len(prompts.waiting)
        figures[WAITING_TOKENS] = prompts.waiting_tokens + prompts.begun_tokens
        figures[OLDEST] = prompts.oldest_arrival_ns
        figures[ON_TIME] = prompts.waiting_tokens
        if self.turns.active:
            self._show_turns(now_ns)
        self._moved = False

    def give_up(self, reason: str) -> None:
        """Never touch vLLM again: start values, no order of ours; who asks is told `reason`."""
        with suppress(Exception):
            self.leased.fail(reason)
        self.turns.abandon()
        with suppress(Exception):
            self._limits.take(self.leased.values)

    def turns_failed(self, error: Exception) -> None:
        """The order of the queue failed, in the middle of vLLM's planning."""
        self._scheduler._sits_failed(error)

    def _take(self, now_ns: int) -> None:
        """Put in force what is wanted, and see how prompts get on."""
        if self.prompts.waiting and not self.prompts.begun:
            self._rate_prompts(now_ns)
        if self._held:
            self._look_for_a_standstill(now_ns)
        values, lease = self.leased.take(now_ns)
        if not self._held:
            self._stuck.admitted()
        self._held = lease is not None
        self._due_ns = NEVER if lease is None else min(lease.deadline_ns, now_ns + LOOK_EVERY_NS)
        self._touched |= self._held
        self._limits.take(values)
        self._followed = self._running
        if self._relegates:
            self._take_turns(values)

    def _take_turns(self, values: Mapping[str, float]) -> None:
        if values["ttft_deadline_ms"] and not self.turns.active:
            self.turns.begin(self._scheduler.waiting)
        elif not values["ttft_deadline_ms"] and self.turns.active:
            self._end_turns()
        self._measures_rate = not values["prefill_tokens_per_s"]
        self._rules = self._rules_now()

    def _end_turns(self) -> None:
        if self.turns.active:
            self.turns.end(self._scheduler.waiting)
            self._show_turns(monotonic_ns())
            self._moved = True

    def _rules_now(self) -> Rules:
        values = self.leased.values
        return Rules(
            int(values["ttft_deadline_ms"]) * NS_PER_MS,
            int(values["max_deferral_ms"]) * NS_PER_MS,
            values["prefill_tokens_per_s"] or self._rate.tokens_per_s,
        )

    def _show_turns(self, now_ns: int) -> None:
        figures = self._figures
        deferred, total, longest_ns, on_time = self.turns.told(now_ns)
        figures[DEFERRED] = deferred
        figures[DEFERRED_TOTAL] = total
        figures[LONGEST] = longest_ns // NS_PER_MS
        self._first_deferred_ns = now_ns - longest_ns if deferred else 0
        if on_time is not None:
            figures[ON_TIME] = on_time

    def _decodes_first(self) -> None:
        """Those that generate before the prompts begun.

        vLLM gives tokens in the order of this list. Without limits that we moved, at most its last
        is a prompt begun; with them a long prompt before others would take their turn.
        """
        running, begun = self._scheduler.running, self.prompts.begun
        for each in running[-len(begun) :]:
            if each.request_id not in begun:
                running.sort(key=lambda each: each.request_id in begun)
                return

    def _look_who_began(self, tokens: Mapping[str, int]) -> None:
        """Those that waited and have tokens in this step."""
        began = self.prompts.waiting.keys() & tokens.keys()
        for key in began:
            self.prompts.begin(key, self._scheduler.requests[key])
        if began:
            self._moved = True
            self._stuck.admitted()

    def _look_for_a_standstill(self, now_ns: int) -> None:
        """Whether anybody who waits will ever be admitted, under the cap that we set."""
        if self._stuck.look(now_ns, self._sight()):
            log.warning("sits: vLLM admits nobody below its cap; every knob goes back to its start")
            self.leased.end()
            self._stuck.admitted()

    def _sight(self) -> Sight:
        scheduler = self._scheduler
        waiting = len(self.prompts.waiting)
        if self._passed is not None:
            waiting -= len(getattr(scheduler, self._passed))
        pause = getattr(scheduler, "_pause_state", None)
        if getattr(pause, "name", "UNPAUSED") != "UNPAUSED":
            waiting = 0
        return Sight(
            waiting,
            len(scheduler.running),
            self._limits.running,
            self._cache.free_share(),
            bool(self.prompts.begun),
        )

    def _waiting(self, request: Any) -> Waiting:
        return self.prompts.waiting[request.request_id]
