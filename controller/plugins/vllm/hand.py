"""The plug-in's hand on one scheduler: leases in force at the top of a step, figures at its end.

Two threads meet here. vLLM's own computes steps; the socket's changes leases. A change waits in the
leases until the next step begins, so no knob moves while vLLM plans one; vLLM's thread looks at one
attribute to see that nothing changed. The lock is held for microseconds.
"""

import logging
import threading
import time
from array import array
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import fields
from operator import attrgetter
from typing import Any, Final

from controller.engines.contract import ContractError, Knob
from controller.engines.page import EngineNow, PageWriter
from controller.plugins.prefill_rate import PrefillRate
from controller.plugins.relegation import Rules
from controller.plugins.vllm.arrivals import arrival_ns
from controller.plugins.vllm.knobs import Limits, Traits
from controller.plugins.vllm.kv_cache import KvCache
from controller.plugins.vllm.prompts import Prompts, Waiting
from controller.plugins.vllm.stuck import Sight, StuckWatch
from controller.plugins.vllm.turns import Turns
from controller.serving.leases import NS_PER_MS, Leases
from controller.serving.server import AdminServer

log = logging.getLogger("vllm.sits")

MAX_LEASE_MS: Final = 10_000
NEVER: Final = 2**63
RECOUNT_STEPS: Final = 64
"""How often the cached tokens are counted anew, whatever was added up since."""

_PLACE: Final = {field.name: place for place, field in enumerate(fields(EngineNow))}
_UPDATED: Final = _PLACE["updated_ns"]
_STEPS: Final = _PLACE["steps"]
_WAITING: Final = _PLACE["waiting"]
_RUNNING: Final = _PLACE["running"]
_WAITING_TOKENS: Final = _PLACE["waiting_tokens"]
_OLDEST: Final = _PLACE["oldest_arrival_ns"]
_KV_USED: Final = _PLACE["kv_used"]
_KV_TOTAL: Final = _PLACE["kv_total"]
_REQUESTS: Final = _PLACE["requests_total"]
_FINISHED: Final = _PLACE["finished_total"]
_PROMPT_TOKENS: Final = _PLACE["prompt_tokens_total"]
_GENERATED: Final = _PLACE["generated_tokens_total"]
_PREEMPTIONS: Final = _PLACE["preemptions_total"]
_EPOCH: Final = _PLACE["epoch"]
_MAX_RUNNING: Final = _PLACE["max_running"]
_MAX_BATCHED: Final = _PLACE["max_batched_tokens"]
_EXPIRIES: Final = _PLACE["lease_expiries_total"]
_DEFERRED: Final = _PLACE["deferred"]
_DEFERRED_TOTAL: Final = _PLACE["deferred_total"]
_LONGEST: Final = _PLACE["longest_deferral_ms"]
_ON_TIME: Final = _PLACE["on_time_tokens"]

_SET_ASIDE: Final = ("kv_holding_waiting", "skipped_waiting")
"""Where vLLM keeps those that wait for more than their turn, by version."""

_PASSED_OVER: Final = ("deferred_waiting", "skipped_waiting")
_ENDED_BY_THEMSELVES: Final = frozenset({"FINISHED_STOPPED", "FINISHED_LENGTH_CAPPED"})
_computed_tokens: Final = attrgetter("num_computed_tokens")


_StepFigures = tuple[int, int, int, int, int, int]
_Planned = tuple[int, int, int, int, int, int, int, bool]
"""A step that is planned and not yet taken back: when it began, its tokens, those of prompts, the
sequences that decode, cached tokens, tokens that will be sampled, prompt tokens that are done with
it, and whether any are left. Not a class: to make one would cost more than all else at this point.
"""


def _sampled(output: Any) -> int:
    """Tokens in the answer of vLLM's model."""
    return sum(map(len, getattr(output, "sampled_token_ids", None) or ()))


class Hand:
    """What the scheduler calls on vLLM's thread, and the server on its own (as `Served`)."""

    def __init__(
        self, scheduler: Any, traits: Traits, knobs: Mapping[str, Knob], page: PageWriter | None
    ) -> None:
        self.prompts = Prompts()
        self.turns = Turns(self._waiting)
        self._scheduler = scheduler
        self._traits = traits
        self._limits = Limits(scheduler, traits, knobs)
        self._page = page
        self._server: AdminServer | None = None
        self._lock = threading.Lock()
        self._leases = Leases(knobs, MAX_LEASE_MS)
        self._failure = ""
        self._seen_version = self._leases.version
        self._changed = False
        self._deadline_ns = NEVER
        self._held = self._touched = False
        self._in_flight = 0
        self._planned: deque[_Planned] = deque()
        self._rate = PrefillRate()
        self._rules = Rules()
        self._cache = KvCache(scheduler)
        self._cached_tokens = 0
        self._began_ns = self._last_end_ns = 0
        self._speculates = traits.tokens_per_sequence > 1
        self._stuck = StuckWatch()
        self._aside = next((name for name in _SET_ASIDE if hasattr(scheduler, name)), None)
        self._passed = next((name for name in _PASSED_OVER if hasattr(scheduler, name)), None)
        self._figures = array("Q", bytes(8 * len(_PLACE)))
        self._figures[_KV_TOTAL] = self._cache.total
        with self._lock:
            self._show_leases()
            self._write()

    def serve(self, server: AdminServer) -> None:
        """Begin to answer."""
        self._server = server
        server.start()

    def stop(self) -> None:
        """The end: no socket and no page stay behind."""
        if self._server is not None:
            self._server.stop()
        if self._page is not None:
            with self._lock:
                page, self._page = self._page, None
            page.close()

    # What vLLM's thread calls, in the order of a step.

    def begin_step(self) -> None:
        """The top of a step, before vLLM plans it."""
        self._in_flight += 1  # first: who changes a lease now knows that it is too late for this
        now_ns = time.monotonic_ns()
        self._began_ns = now_ns
        if self._changed or now_ns >= self._deadline_ns:
            self._take(now_ns)
        if self._held:
            self._limits.follow()
        if self._touched and self.prompts.begun:
            self._decodes_first()
        if self.turns.active:
            if not self._leases.values["prefill_tokens_per_s"]:
                self._rules = self._rules_now()
            self.turns.update(now_ns, self.prompts.begun_tokens, self._rules)

    def scheduled(self, output: Any) -> None:
        """The step is planned."""
        prompts, tokens = self.prompts, output.num_scheduled_tokens
        total = output.total_num_scheduled_tokens
        if prompts.waiting:
            if output.scheduled_new_reqs or prompts.returned:
                self._look_who_began(tokens)
            elif self._held:
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
        if self._in_flight:
            self._in_flight -= 1
        if self._planned:
            began_ns, tokens, prefill, decodes, cached, generated, done, left = (
                self._planned.popleft()
            )
            if tokens:
                # from the end of the last: what passes between two steps is lost to users too
                took_ns = end_ns - (self._last_end_ns or began_ns)
                if left:
                    self._rate.take(done, took_ns)
                index = figures[_STEPS] + 1
                figures[_STEPS] = index
                figures[_GENERATED] += _sampled(output) if self._speculates else generated
                if index % RECOUNT_STEPS == 0:
                    self._cached_tokens = sum(map(_computed_tokens, self._scheduler.running))
                step = index, end_ns, took_ns, prefill, decodes, cached
        self._publish(end_ns, step)
        self._last_end_ns = end_ns if figures[_RUNNING] or figures[_WAITING] else 0

    def arrived(self, request: Any) -> None:
        """A request comes, and is about to wait."""
        now_ns = time.monotonic_ns()
        arrived_ns = arrival_ns(request.arrival_time, time.time(), now_ns)
        self.prompts.arrive(request.request_id, arrived_ns, request.num_prompt_tokens)
        self._figures[_REQUESTS] += 1
        self._figures[_PROMPT_TOKENS] += request.num_prompt_tokens
        self._publish(now_ns)

    def preempted(self, request: Any) -> None:
        """A running request is about to be put back, for want of memory."""
        self._cached_tokens = max(0, self._cached_tokens - request.num_computed_tokens)
        self._figures[_PREEMPTIONS] += 1
        arrived_ns = arrival_ns(request.arrival_time, time.time(), time.monotonic_ns())
        self.prompts.come_back(request.request_id, arrived_ns, request.num_tokens)

    def left(self, request: Any) -> None:
        """A request has ended, in whatever way."""
        self._cached_tokens = max(0, self._cached_tokens - request.num_computed_tokens)
        self.prompts.leave(request.request_id)
        self._figures[_FINISHED] += request.status.name in _ENDED_BY_THEMSELVES

    def aborted(self) -> None:
        """Requests were taken back."""
        self._publish(time.monotonic_ns())

    def _publish(self, now_ns: int, step: _StepFigures | None = None) -> None:
        """Write the page, with `step` if one has just ended."""
        scheduler, figures, prompts = self._scheduler, self._figures, self.prompts
        waiting = len(scheduler.waiting)
        if self._aside is not None:
            waiting += len(getattr(scheduler, self._aside))
        figures[_WAITING] = waiting
        figures[_RUNNING] = len(scheduler.running)
        figures[_WAITING_TOKENS] = prompts.waiting_tokens + prompts.begun_tokens
        figures[_OLDEST] = prompts.oldest_arrival_ns if prompts.waiting else 0
        figures[_KV_USED] = self._cache.used()
        figures[_ON_TIME] = prompts.waiting_tokens
        if self.turns.active:
            self._show_turns(now_ns)
        with self._lock:
            figures[_UPDATED] = now_ns
            if self._page is not None:
                self._page.publish(figures, step)

    def give_up(self, reason: str) -> None:
        """Never touch vLLM again: start values, no order of ours; who asks is told `reason`."""
        with self._lock:
            self._failure = reason
            self._leases.end()
            with suppress(Exception):
                self._figures[_DEFERRED] = self._figures[_LONGEST] = 0
                self._show_leases()
                self._write()
        self.turns.abandon()
        with suppress(Exception):
            self._limits.take(self._leases.values)
        if self._server is not None:
            self._server.wake()

    def turns_failed(self, error: Exception) -> None:
        """The order of the queue failed, in the middle of vLLM's planning."""
        self._scheduler._sits_failed(error)

    # What the server's thread calls.

    def with_leases(self, act: Callable[[Leases], dict[str, Any]]) -> dict[str, Any]:
        """Run `act` on the leases and return what it returns, with their state added."""
        with self._changing() as now_ns:
            fields = act(self._leases)
            if self._failure and (self._leases.lease or self._leases.prepared):
                self._leases.end()
                raise ContractError("failed", self._failure)
        with self._lock:
            return {**fields, **self._leases.state(now_ns)}

    def now(self) -> EngineNow:
        """What the page shows."""
        with self._lock:
            figures = self._figures.tolist()
        return EngineNow(*figures)

    def next_deadline_ns(self) -> int | None:
        """When a lease or a promise next runs out."""
        with self._lock:
            return self._leases.deadline_ns()

    def expire(self) -> int:
        """End what has run out, on an idle engine too; returns the leases' version."""
        with self._changing():
            return self._leases.version

    @contextmanager
    def _changing(self) -> Iterator[int]:
        """Hold the leases, ended where overdue; afterwards what changed is seen by the next step.

        With no step under way there is nothing to wait for: it is applied here.
        """
        with self._lock:
            now_ns = time.monotonic_ns()
            self._expire(now_ns)
            try:
                yield now_ns
            finally:
                if self._leases.version != self._seen_version:
                    self._changed = True  # first: see begin_step
                    if not self._in_flight:
                        self._leases.apply()
                    self._show_leases()
                    self._write()

    def _expire(self, now_ns: int) -> None:
        if self._leases.expire(now_ns):
            log.warning("sits: the lease ran out, every knob is back at its start value")

    def _show_leases(self) -> None:
        leases, figures = self._leases, self._figures
        self._seen_version = leases.version
        figures[_EPOCH] = leases.applied_epoch
        figures[_EXPIRIES] = leases.expiries
        figures[_MAX_RUNNING] = int(leases.values["max_running"])
        figures[_MAX_BATCHED] = int(leases.values.get("max_batched_tokens", self._limits.budget))

    def _write(self) -> None:
        self._figures[_UPDATED] = time.monotonic_ns()
        if self._page is not None:
            self._page.publish(self._figures, None)

    # Parts of a step, on vLLM's thread.

    def _take(self, now_ns: int) -> None:
        """Put in force what is wanted."""
        with self._lock:
            self._changed = False
            version = self._leases.version
            self._expire(now_ns)
            self._leases.apply()
            lease, values = self._leases.lease, self._leases.values
            self._deadline_ns = NEVER if lease is None else lease.deadline_ns
            news = self._leases.version != version
            if self._leases.version != self._seen_version:
                self._show_leases()
                self._write()
        if not self._held:
            self._stuck.admitted()
        self._held = lease is not None
        self._touched |= self._held
        self._limits.take(values)
        if self._traits.relegates:
            self._take_turns(values)
        if news and self._server is not None:
            self._server.wake()

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
        values = self._leases.values
        return Rules(
            int(values["ttft_deadline_ms"]) * NS_PER_MS,
            int(values["max_deferral_ms"]) * NS_PER_MS,
            values["prefill_tokens_per_s"] or self._rate.tokens_per_s,
        )

    def _show_turns(self, now_ns: int) -> None:
        turns, figures = self.turns, self._figures
        figures[_DEFERRED] = turns.deferred
        figures[_DEFERRED_TOTAL] = turns.deferred_total
        figures[_LONGEST] = turns.longest_deferral_ns(now_ns) // NS_PER_MS
        if (tokens := turns.on_time_tokens) is not None:
            figures[_ON_TIME] = tokens

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
            with self._lock:
                self._leases.end()
                self._changed = True
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
