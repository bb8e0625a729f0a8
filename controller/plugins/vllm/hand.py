"""The plug-in's hand on one scheduler: knobs at the top of a step, figures at its end.

All of it runs on vLLM's own thread.
"""

import logging
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from operator import attrgetter
from time import monotonic_ns, time
from typing import Any, Final

from controller.engines.page import STEP_SLOTS, StepFigures
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
    WAITING,
    WAITING_TOKENS,
)
from controller.plugins.vllm.knobs import Limits, Traits
from controller.plugins.vllm.kv_cache import KvCache
from controller.plugins.vllm.leased import Leased
from controller.plugins.vllm.prompts import Prompts, Waiting
from controller.plugins.vllm.stuck import Sight, StuckWatch
from controller.plugins.vllm.turns import Turns
from controller.serving.leases import NS_PER_MS

log = logging.getLogger("vllm.sits")

RECOUNT_STEPS: Final = 64
"""How often the cached tokens are counted anew, whatever was added up since."""

SAME_RATE: Final = 0.01
"""A measured prefill rate that moved by less makes no other order."""

SHOWN_EVERY_NS: Final = 10_000_000
"""The page is written at the end of a step, and of shorter ones not at each: who reads it looks
every 9 to 17 ms. See the contract."""

MOST_ENDED: Final = STEP_SLOTS // 2
"""Steps that may wait to be shown."""

_SET_ASIDE: Final = ("kv_holding_waiting", "skipped_waiting")
"""Where vLLM keeps those that wait for more than their turn, by version."""

_PASSED_OVER: Final = ("deferred_waiting", "skipped_waiting")
_ENDED_BY_THEMSELVES: Final = frozenset({"FINISHED_STOPPED", "FINISHED_LENGTH_CAPPED"})
_computed_tokens: Final = attrgetter("num_computed_tokens")

_Planned = tuple[int, int, int, int, int, int, int, bool]
"""A step that is planned and not yet taken back: when it began, its tokens, those of prompts, the
sequences that decode, cached tokens, tokens that will be sampled, prompt tokens that are done with
it, and whether any are left. Not a class: to make one would cost more than all else at this point.
"""
SAMPLED: Final = 5


def _near(rate: float, planned: float) -> bool:
    """Whether a rate is what it was, as far as an order depends on it; NaN is like nothing."""
    return abs(rate - planned) <= SAME_RATE * planned


def _sampled(output: Any) -> int:
    """Tokens in the answer of vLLM's model."""
    return sum(map(len, getattr(output, "sampled_token_ids", None) or ()))


class Hand:
    """What the scheduler calls."""

    def __init__(
        self, scheduler: Any, traits: Traits, limits: Limits, cache: KvCache, leased: Leased
    ) -> None:
        self.prompts = Prompts()
        self.turns = Turns(self._waiting)
        self._scheduler = scheduler
        self._relegates = traits.relegates
        self._speculates = traits.tokens_per_sequence > 1
        self._limits = limits
        self._cache = cache
        self._leased = leased
        self._figures = leased.figures
        self._held = self._touched = self._measures_rate = self._shows_waiting = False
        self._followed = -1
        self._planned: deque[_Planned] = deque()
        self._ended: list[tuple[int, int, _Planned]] = []
        self._due_ns = 0
        self._rate = PrefillRate()
        self._rules = Rules()
        self._cached_tokens = 0
        self._began_ns = self._last_end_ns = 0
        self._stuck = StuckWatch()
        aside = next((name for name in _SET_ASIDE if hasattr(scheduler, name)), None)
        self._aside = None if aside is None else attrgetter(aside)
        # vLLM's queues count themselves in Python, which takes twice as long
        self._length: Callable[[Any], int] = (
            deque.__len__ if isinstance(scheduler.waiting, deque) else len
        )
        self._passed = next((name for name in _PASSED_OVER if hasattr(scheduler, name)), None)

    def stop(self) -> None:
        """The end: no socket and no page stay behind."""
        self._leased.stop()

    def begin_step(self) -> None:
        """The top of a step, before vLLM plans it."""
        leased = self._leased
        leased.in_flight += 1  # first: see there
        self._began_ns = now_ns = monotonic_ns()
        if leased.changed or now_ns >= leased.deadline_ns:
            self._take(now_ns)
        if self._touched:
            self._steer(now_ns)

    def _steer(self, now_ns: int) -> None:
        """What a lease wants done at the top of every step."""
        if self._held and len(self._scheduler.running) != self._followed:
            self._follow()
        if self.prompts.begun:
            self._decodes_first()
        if (order := self.turns.order) is not None:
            if self._measures_rate and not _near(self._rate.tokens_per_s, self._rules.tokens_per_s):
                self._rules = self._rules_now()
            order.update(now_ns, self.prompts.begun_tokens, self._rules)

    def _follow(self) -> None:
        self._limits.follow()
        self._followed = len(self._scheduler.running)

    def scheduled(self, output: Any) -> None:
        """The step is planned."""
        prompts, total = self.prompts, output.total_num_scheduled_tokens
        tokens = output.num_scheduled_tokens
        if prompts.waiting:
            if output.scheduled_new_reqs or prompts.returned:
                self._look_who_began(tokens)
            elif self._held and len(self._scheduler.running) < self._limits.running:
                self._look_for_a_standstill()
        if not prompts.begun:
            decodes, left = len(tokens), bool(prompts.waiting)
            self._cached_tokens = cached = self._cached_tokens + total
            self._planned.append((self._began_ns, total, 0, decodes, cached, decodes, 0, left))
            return
        advance = prompts.advance(tokens)
        decodes = len(tokens) - advance.sequences
        self._cached_tokens += total + advance.done - advance.tokens
        self._planned.append(
            (
                self._began_ns,
                total,
                advance.tokens,
                decodes,
                self._cached_tokens,
                decodes + advance.completed,
                advance.done,
                bool(prompts.waiting or prompts.begun),
            )
        )

    def end_step(self, output: Any) -> None:
        """The step is computed and its tokens are taken in."""
        end_ns, leased = monotonic_ns(), self._leased
        if leased.in_flight:
            leased.in_flight -= 1
        if self._planned:
            planned = self._planned.popleft()
            sampled = _sampled(output) if self._speculates else planned[SAMPLED]
            self._ended.append((end_ns, sampled, planned))
        if end_ns >= self._due_ns or not self._scheduler.running or len(self._ended) >= MOST_ENDED:
            self._show(end_ns)

    def arrived(self, request: Any) -> None:
        """A request comes, and is about to wait."""
        now_ns = monotonic_ns()
        arrived_ns = arrival_ns(request.arrival_time, time(), now_ns)
        self.prompts.arrive(request.request_id, arrived_ns, request.num_prompt_tokens)
        self._figures[REQUESTS] += 1
        self._figures[PROMPT_TOKENS] += request.num_prompt_tokens
        self._show(now_ns)

    def preempted(self, request: Any) -> None:
        """A running request is about to be put back, for want of memory."""
        self._cached_tokens = max(0, self._cached_tokens - request.num_computed_tokens)
        self._figures[PREEMPTIONS] += 1
        arrived_ns = arrival_ns(request.arrival_time, time(), monotonic_ns())
        self.prompts.come_back(request.request_id, arrived_ns, request.num_tokens)

    def left(self, request: Any) -> None:
        """A request has ended, in whatever way."""
        self._cached_tokens = max(0, self._cached_tokens - request.num_computed_tokens)
        self.prompts.leave(request.request_id)
        self._figures[FINISHED] += request.status.name in _ENDED_BY_THEMSELVES

    def aborted(self) -> None:
        """Requests were taken back."""
        self._show(monotonic_ns())

    def _show(self, now_ns: int) -> None:
        """Write the page: who runs and waits now, and the steps that have ended since last time."""
        scheduler, figures, prompts = self._scheduler, self._figures, self.prompts
        steps = self._account() if self._ended else ()
        waiting = self._length(scheduler.waiting)
        if self._aside is not None:
            waiting += self._length(self._aside(scheduler))
        figures[RUNNING] = running = len(scheduler.running)
        figures[KV_USED] = self._cache.used()
        if waiting or prompts.begun or self._shows_waiting:
            figures[WAITING] = waiting
            figures[WAITING_TOKENS] = prompts.waiting_tokens + prompts.begun_tokens
            figures[OLDEST] = prompts.oldest_arrival_ns
            figures[ON_TIME] = prompts.waiting_tokens
            if self.turns.active:
                self._show_turns(now_ns)
            self._shows_waiting = bool(waiting or prompts.begun or self.turns.active)
        self._leased.publish(now_ns, steps)
        self._due_ns = now_ns + SHOWN_EVERY_NS
        if not (running or waiting):
            self._last_end_ns = 0

    def _account(self) -> list[StepFigures]:
        """Take in the steps that have ended, each as the page has it."""
        figures, last_ns, steps = self._figures, self._last_end_ns, []
        index, generated = figures[STEPS], figures[GENERATED]
        for end_ns, sampled, planned in self._ended:
            began_ns, tokens, prefill, decodes, cached, _, done, left = planned
            # from the end of the last: what passes between two steps is lost to users too
            took_ns, last_ns = end_ns - (last_ns or began_ns), end_ns
            if not tokens:
                continue
            if left:
                self._rate.take(done, took_ns)
            index += 1
            generated += sampled
            if not index % RECOUNT_STEPS:
                self._cached_tokens = sum(map(_computed_tokens, self._scheduler.running))
            steps.append((index, end_ns, took_ns, prefill, decodes, cached))
        figures[STEPS], figures[GENERATED], self._last_end_ns = index, generated, last_ns
        self._ended.clear()
        return steps

    def give_up(self, reason: str) -> None:
        """Never touch vLLM again: start values, no order of ours; who asks is told `reason`."""
        with suppress(Exception):
            self._leased.fail(reason)
        self.turns.abandon()
        with suppress(Exception):
            self._limits.take(self._leased.values)

    def turns_failed(self, error: Exception) -> None:
        """The order of the queue failed, in the middle of vLLM's planning."""
        self._scheduler._sits_failed(error)

    def _take(self, now_ns: int) -> None:
        """Put in force what is wanted."""
        values, lease = self._leased.take(now_ns)
        if not self._held:
            self._stuck.admitted()
        self._held = lease is not None
        self._touched |= self._held
        self._limits.take(values)
        self._followed = len(self._scheduler.running)
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

    def _rules_now(self) -> Rules:
        values = self._leased.values
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
        if on_time is not None:
            figures[ON_TIME] = on_time

    def _decodes_first(self) -> None:
        """Those that generate before the prompts begun.

        vLLM gives tokens in the order of this list. Without limits that we moved, at most its last
        is a prompt begun; with them a long prompt before others would take their turn.
        """
        running, begun = self._scheduler.running, self.prompts.begun
        if any(each.request_id not in begun for each in running[-len(begun) :]):
            running.sort(key=lambda each: each.request_id in begun)

    def _look_who_began(self, tokens: Mapping[str, int]) -> None:
        """Those that waited and have tokens in this step."""
        began = self.prompts.waiting.keys() & tokens.keys()
        for key in began:
            self.prompts.begin(key, self._scheduler.requests[key])
        if began:
            self._stuck.admitted()

    def _look_for_a_standstill(self) -> None:
        """Nobody was admitted: whether anybody ever will be, under the cap that we set."""
        if self._stuck.look(self._began_ns, self._sight()):
            log.warning("sits: vLLM admits nobody below its cap; every knob goes back to its start")
            self._leased.end()
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
