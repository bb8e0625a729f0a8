"""The plug-in's hand on one scheduler: knobs at the top of a step, figures at its end.

All of it runs on vLLM's own thread.
"""

import logging
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from operator import attrgetter
from typing import Any, Final

from controller.plugins.prefill_rate import PrefillRate
from controller.plugins.relegation import Rules
from controller.plugins.vllm import figures as at
from controller.plugins.vllm.arrivals import arrival_ns
from controller.plugins.vllm.figures import StepFigures
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
        self._held = self._touched = False
        self._planned: deque[_Planned] = deque()
        self._rate = PrefillRate()
        self._rules = Rules()
        self._cached_tokens = 0
        self._began_ns = self._last_end_ns = 0
        self._stuck = StuckWatch()
        self._aside = next((name for name in _SET_ASIDE if hasattr(scheduler, name)), None)
        self._passed = next((name for name in _PASSED_OVER if hasattr(scheduler, name)), None)

    def stop(self) -> None:
        """The end: no socket and no page stay behind."""
        self._leased.stop()

    def begin_step(self) -> None:
        """The top of a step, before vLLM plans it."""
        leased = self._leased
        leased.in_flight += 1  # first: see there
        now_ns = time.monotonic_ns()
        self._began_ns = now_ns
        if leased.changed or now_ns >= leased.deadline_ns:
            self._take(now_ns)
        if self._held:
            self._limits.follow()
        if self._touched and self.prompts.begun:
            self._decodes_first()
        if self.turns.active:
            if not leased.values["prefill_tokens_per_s"]:
                self._rules = self._rules_now()
            self.turns.update(now_ns, self.prompts.begun_tokens, self._rules)

    def scheduled(self, output: Any) -> None:
        """The step is planned."""
        prompts, tokens = self.prompts, output.num_scheduled_tokens
        total = output.total_num_scheduled_tokens
        if prompts.waiting:
            if output.scheduled_new_reqs or prompts.returned:
                self._look_who_began(tokens)
            elif self._held and len(self._scheduler.running) < self._limits.running:
                self._look_for_a_standstill()
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
        end_ns, step, figures = time.monotonic_ns(), None, self._figures
        if self._leased.in_flight:
            self._leased.in_flight -= 1
        if self._planned:
            began_ns, tokens, prefill, decodes, cached, generated, done, left = (
                self._planned.popleft()
            )
            if tokens:
                # from the end of the last: what passes between two steps is lost to users too
                took_ns = end_ns - (self._last_end_ns or began_ns)
                if left:
                    self._rate.take(done, took_ns)
                index = figures[at.STEPS] + 1
                figures[at.STEPS] = index
                figures[at.GENERATED] += _sampled(output) if self._speculates else generated
                if index % RECOUNT_STEPS == 0:
                    self._cached_tokens = sum(map(_computed_tokens, self._scheduler.running))
                step = index, end_ns, took_ns, prefill, decodes, cached
        self._publish(end_ns, step)
        self._last_end_ns = end_ns if figures[at.RUNNING] or figures[at.WAITING] else 0

    def arrived(self, request: Any) -> None:
        """A request comes, and is about to wait."""
        now_ns = time.monotonic_ns()
        arrived_ns = arrival_ns(request.arrival_time, time.time(), now_ns)
        self.prompts.arrive(request.request_id, arrived_ns, request.num_prompt_tokens)
        self._figures[at.REQUESTS] += 1
        self._figures[at.PROMPT_TOKENS] += request.num_prompt_tokens
        self._publish(now_ns)

    def preempted(self, request: Any) -> None:
        """A running request is about to be put back, for want of memory."""
        self._cached_tokens = max(0, self._cached_tokens - request.num_computed_tokens)
        self._figures[at.PREEMPTIONS] += 1
        arrived_ns = arrival_ns(request.arrival_time, time.time(), time.monotonic_ns())
        self.prompts.come_back(request.request_id, arrived_ns, request.num_tokens)

    def left(self, request: Any) -> None:
        """A request has ended, in whatever way."""
        self._cached_tokens = max(0, self._cached_tokens - request.num_computed_tokens)
        self.prompts.leave(request.request_id)
        self._figures[at.FINISHED] += request.status.name in _ENDED_BY_THEMSELVES

    def aborted(self) -> None:
        """Requests were taken back."""
        self._publish(time.monotonic_ns())

    def _publish(self, now_ns: int, step: StepFigures | None = None) -> None:
        """Write the page, with `step` if one has just ended."""
        scheduler, figures, prompts = self._scheduler, self._figures, self.prompts
        waiting = len(scheduler.waiting)
        if self._aside is not None:
            waiting += len(getattr(scheduler, self._aside))
        figures[at.WAITING] = waiting
        figures[at.RUNNING] = len(scheduler.running)
        figures[at.WAITING_TOKENS] = prompts.waiting_tokens + prompts.begun_tokens
        figures[at.OLDEST] = prompts.oldest_arrival_ns if prompts.waiting else 0
        figures[at.KV_USED] = self._cache.used()
        figures[at.ON_TIME] = prompts.waiting_tokens
        if self.turns.active:
            self._show_turns(now_ns)
        self._leased.publish(now_ns, step)

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
        if self._relegates:
            self._take_turns(values)

    def _take_turns(self, values: Mapping[str, float]) -> None:
        if values["ttft_deadline_ms"] and not self.turns.active:
            self.turns.begin(self._scheduler.waiting)
        elif not values["ttft_deadline_ms"] and self.turns.active:
            self._end_turns()
        self._rules = self._rules_now()

    def _end_turns(self) -> None:
        if self.turns.active:
            self.turns.end(self._scheduler.waiting)
            self._show_turns(time.monotonic_ns())

    def _rules_now(self) -> Rules:
        values = self._leased.values
        return Rules(
            int(values["ttft_deadline_ms"]) * NS_PER_MS,
            int(values["max_deferral_ms"]) * NS_PER_MS,
            values["prefill_tokens_per_s"] or self._rate.tokens_per_s,
        )

    def _show_turns(self, now_ns: int) -> None:
        turns, figures = self.turns, self._figures
        figures[at.DEFERRED] = turns.deferred
        figures[at.DEFERRED_TOTAL] = turns.deferred_total
        figures[at.LONGEST] = turns.longest_deferral_ns(now_ns) // NS_PER_MS
        if (tokens := turns.on_time_tokens) is not None:
            figures[at.ON_TIME] = tokens

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
