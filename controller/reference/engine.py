"""The engine: one thread that computes steps, and what other threads may ask of it.

One lock guards scheduler, leases and page; the step's computation runs outside it, so that a
caller waits for microseconds, not for a step. Tokens leave through one callback a step.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from controller.engines.contract import Knob
from controller.engines.page import EngineNow, PageWriter, Step
from controller.reference.model import EOS, Chunk, KvCache, Model, Tokens, sample
from controller.reference.scheduler import Limits, Plan, Scheduler
from controller.reference.scheduler import Sequence as Scheduled
from controller.serving.leases import NS_PER_MS, Leases

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Token:
    """One token of request `key`; `finish` is None, `stop` (end of text) or `length`."""

    key: int
    token: int
    finish: str | None


Deliver = Callable[[Sequence[Token]], None]
"""Takes every token of one step; called on the engine's thread, so it only hands them over."""


@dataclass(slots=True)
class _Request:
    prompt: Tokens
    cache_tokens: int
    temperature: float
    ignore_eos: bool
    last: int = -1
    cache: KvCache | None = None
    scheduled: Scheduled = field(init=False)


class Engine:
    """A model, a scheduler and their leased knobs. Every method may be called from any thread."""

    def __init__(
        self,
        model: Model,
        kv_tokens: int,
        *,
        knobs: Mapping[str, Knob],
        max_lease_ms: int,
        page: PageWriter | None,
        deliver: Deliver,
        seed: int = 0,
    ) -> None:
        """`knobs` are some of `Limits`; their start values are in force until one is leased."""
        self._model = model
        self._page = page
        self._deliver = deliver
        self._random = np.random.default_rng(seed)
        self._changed = threading.Condition(threading.Lock())
        self._scheduler = Scheduler(kv_tokens)
        self._leases = Leases(knobs, max_lease_ms)
        self._limits = Limits(**{name: int(knob.start) for name, knob in knobs.items()})
        self._requests: dict[int, _Request] = {}
        self._in_step = False
        self._stopping = False
        self._failed = False
        self._on_knobs: Callable[[], None] = _ignore
        self._on_end: Callable[[], None] = _ignore
        self._last_key = self._steps = 0
        self._finished = self._prompt_tokens = self._generated = 0
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        with self._changed:
            self._publish()

    def start(self, on_knobs: Callable[[], None], on_end: Callable[[], None]) -> None:
        """Start the thread. It calls `on_knobs` when it changed a knob, `on_end` when it ends.

        Neither may block.
        """
        self._on_knobs = on_knobs
        self._on_end = on_end
        self._thread.start()

    def stop(self) -> None:
        """Stop after the step in flight, and wait for that. Nothing is delivered afterwards."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        self._thread.join()

    @property
    def alive(self) -> bool:
        """Whether the thread runs and can serve."""
        return self._thread.is_alive() and not self._failed

    def submit(
        self,
        prompt: Sequence[int],
        max_new_tokens: int,
        temperature: float = 0.0,
        *,
        ignore_eos: bool = False,
    ) -> int | None:
        """Queue a request; returns its key, or None when the queue is full."""
        request = _Request(
            np.array(prompt, np.int64), len(prompt) + max_new_tokens, temperature, ignore_eos
        )
        with self._changed:
            self._last_key += 1
            key = self._last_key
            request.scheduled = Scheduled(key, len(prompt), max_new_tokens, time.monotonic_ns())
            self._end_overdue()
            if not self._scheduler.add(request.scheduled, self._limits):
                self._last_key -= 1
                self._publish()
                return None
            self._requests[key] = request
            self._prompt_tokens += len(prompt)
            self._publish()
            self._changed.notify()
        return key

    def abort(self, key: int) -> None:
        """Drop a request wherever it stands; its slot is free for the next step."""
        with self._changed:
            if self._requests.pop(key, None) is not None:
                self._scheduler.remove(key)
                self._publish()

    def with_leases(self, act: Callable[[Leases], dict[str, Any]]) -> dict[str, Any]:
        """Run `act` on the leases and return what it returns, with their state added.

        Without a step in flight there is nothing to wait for, so a change is applied here.
        """
        with self._changed:
            self._end_overdue()
            try:
                fields = act(self._leases)
            finally:
                if not self._in_step:
                    self._leases.apply()
                self._take_limits()
                self._publish()
            return {**fields, **self._leases.state(time.monotonic_ns())}

    def now(self) -> EngineNow:
        """What the page shows, as of now."""
        with self._changed:
            self._end_overdue()
            return self._now()

    def drain_s(self) -> float:
        """How long the prompts that wait or run will take from now on, NaN if that is not known."""
        with self._changed:
            return self._scheduler.drain_s()

    def next_deadline_ns(self) -> int | None:
        """When a lease or a prepared change next runs out."""
        with self._changed:
            return self._leases.deadline_ns()

    def expire(self) -> int:
        """End overdue leases (an idle engine has no steps that would); returns the knob version."""
        with self._changed:
            self._end_overdue()
            return self._leases.version

    def _run(self) -> None:
        try:
            self._steps_until_stopped()
        except Exception:
            log.exception("the engine's thread failed")
        finally:
            self._failed = not self._stopping
            self._on_end()

    def _steps_until_stopped(self) -> None:
        while True:
            with self._changed:
                self._end_overdue()
                version = self._leases.version
                self._leases.apply()
                applied = self._leases.version != version
                self._take_limits()
                plan = self._scheduler.plan(self._limits, time.monotonic_ns())
                if self._stopping:
                    return
                if plan.empty:
                    self._publish()
                    self._changed.wait()
                    continue
                self._in_step = True
                chunks = self._chunks(plan)
                sampled = [self._requests[sequence.key] for sequence in plan.sampled()]
                keys = [sequence.key for sequence in plan.sampled()]
            if applied:
                self._on_knobs()
            began = time.monotonic_ns()
            tokens = self._compute(chunks, sampled)
            ended = time.monotonic_ns()
            with self._changed:
                self._in_step = False
                delivered = self._advance(plan, keys, tokens, ended)
                self._steps += 1
                self._publish(
                    Step(
                        self._steps,
                        ended,
                        ended - began,
                        plan.prefill_tokens,
                        len(plan.decodes),
                        sum(chunk.cache.length for chunk in chunks),
                    )
                )
            if delivered:
                self._deliver(delivered)

    def _chunks(self, plan: Plan) -> list[Chunk]:
        """What the model computes for `plan`: decodes first, as in `Plan.sampled`."""
        chunks = []
        for sequence in plan.decodes:
            request = self._requests[sequence.key]
            assert request.cache is not None
            chunks.append(Chunk(request.cache, np.array([request.last]), sample=True))
        for prefill in plan.prefills:
            request = self._requests[prefill.sequence.key]
            if request.cache is None:
                request.cache = KvCache(self._model.shape, request.cache_tokens)
            part = request.prompt[prefill.first : prefill.first + prefill.count]
            chunks.append(Chunk(request.cache, part, prefill.completes))
        return chunks

    def _compute(self, chunks: list[Chunk], sampled: list[_Request]) -> list[int]:
        logits = self._model.forward(chunks)
        if not sampled:
            return []
        temperatures = np.array([request.temperature for request in sampled], np.float32)
        tokens: list[int] = sample(logits, temperatures, self._random).tolist()
        return tokens

    def _advance(
        self, plan: Plan, keys: list[int], tokens: list[int], ended_ns: int
    ) -> list[Token]:
        """Take in a step's tokens; those of requests aborted meanwhile are dropped."""
        sampled = [
            (key, token, self._requests[key])
            for key, token in zip(keys, tokens, strict=True)
            if key in self._requests
        ]
        ended = {key for key, token, request in sampled if token == EOS and not request.ignore_eos}
        finished = {sequence.key for sequence in self._scheduler.advance(plan, ended, ended_ns)}
        delivered = []
        for key, token, request in sampled:
            request.last = token
            finish = None
            if key in finished:
                finish = "stop" if key in ended else "length"
                del self._requests[key]
            delivered.append(Token(key, token, finish))
        self._finished += len(finished)
        self._generated += len(delivered)
        return delivered

    def _end_overdue(self) -> None:
        if self._leases.expire(time.monotonic_ns()):
            log.warning("the lease ran out: every knob is back at its start value")
            self._take_limits()
            self._publish()

    def _take_limits(self) -> None:
        self._limits = Limits(**{name: int(value) for name, value in self._leases.values.items()})

    def _now(self) -> EngineNow:
        scheduler = self._scheduler
        now_ns = time.monotonic_ns()
        return EngineNow(
            updated_ns=now_ns,
            steps=self._steps,
            waiting=scheduler.waiting,
            running=scheduler.running,
            waiting_tokens=scheduler.waiting_tokens,
            oldest_arrival_ns=scheduler.oldest_arrival_ns,
            kv_used=scheduler.kv_used,
            kv_total=scheduler.kv_total,
            requests_total=self._last_key,
            finished_total=self._finished,
            prompt_tokens_total=self._prompt_tokens,
            generated_tokens_total=self._generated,
            preemptions_total=0,
            epoch=self._leases.applied_epoch,
            max_running=self._limits.max_running,
            max_batched_tokens=self._limits.max_batched_tokens,
            lease_expiries_total=self._leases.expiries,
            deferred=scheduler.deferred,
            deferred_total=scheduler.deferred_total,
            longest_deferral_ms=scheduler.longest_deferral_ns(now_ns) // NS_PER_MS,
            shed_total=scheduler.shed_total,
            on_time_tokens=scheduler.on_time_tokens,
        )

    def _publish(self, step: Step | None = None) -> None:
        if self._page is not None:
            self._page.write(self._now(), step)


def _ignore() -> None:
    """Before `start` nobody listens."""
