"""An engine that computes nothing: the reference scheduler, with step times from a model.

It shows what a real one shows: the stats page's figures, its steps, and what the kernel would count
of its streams. Time is whatever the caller says it is.
"""

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from bpf.layout import Counters
from controller.engines.contract import KNOBS, Knob
from controller.engines.page import EngineNow, Step
from controller.plugins.relegation import MAX_DEADLINE_MS, MAX_DEFERRAL_MS, MAX_TOKENS_PER_S
from controller.policy_model import Slo
from controller.reference.scheduler import Limits, Plan, Scheduler, Sequence


@dataclass(frozen=True, slots=True)
class StepTimes:
    """How long a step takes: t = base + prefill·tokens + decode·sequences + kv·cached tokens, ms.

    `noise` is the standard deviation of the logarithm of what multiplies it, 1 in the mean;
    `between_ms` is what passes between one step and the next.
    """

    base_ms: float
    prefill_ms: float
    decode_ms: float
    kv_ms: float = 0.0
    noise: float = 0.0
    between_ms: float = 0.0

    def mean_ms(self, prefill_tokens: int, decode_seqs: int, kv_tokens: int) -> float:
        """Without noise."""
        return (
            self.base_ms
            + self.prefill_ms * prefill_tokens
            + self.decode_ms * decode_seqs
            + self.kv_ms * kv_tokens
        )


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """What engine is simulated: its step times, its KV cache in tokens, its start values."""

    times: StepTimes
    kv_tokens: int = 65_536
    max_running: int = 64
    max_batched_tokens: int = 2048
    long_prefill_tokens: int = 2048
    max_queued: int = 100_000
    graph_sizes: tuple[int, ...] = ()

    def knobs(self) -> dict[str, Knob]:
        """As the engine would offer them in `hello`."""
        ranges = {
            "max_running": (1, self.max_running, self.max_running),
            "max_batched_tokens": (1, self.max_batched_tokens, self.max_batched_tokens),
            "long_prefill_tokens": (1, self.long_prefill_tokens, self.long_prefill_tokens),
            "max_queued": (1, self.max_queued, self.max_queued),
            "ttft_deadline_ms": (0, MAX_DEADLINE_MS, 0),
            "prefill_tokens_per_s": (0, MAX_TOKENS_PER_S, 0),
            "max_deferral_ms": (0, MAX_DEADLINE_MS, MAX_DEFERRAL_MS),
        }
        return {name: Knob(name, *range_, KNOBS[name]) for name, range_ in ranges.items()}


@dataclass(slots=True)
class Served:
    """What became of one request; times in ns, 0 for what has not happened."""

    arrival_ns: int
    prompt_tokens: int
    answer_tokens: int
    refused: bool = False
    first_ns: int = 0
    last_ns: int = 0
    tokens: int = 0
    longest_gap_ns: int = 0
    gaps_over: int = 0


@dataclass(slots=True)
class _Counts:
    requests: int = 0
    first_chunks: int = 0
    ttft_sum_ns: int = 0
    ttft_over: int = 0
    chunks: int = 0
    gap_sum_ns: int = 0
    gaps_over: int = 0
    ends: int = 0
    run_ns: int = 0
    prompt_tokens: int = 0
    by_key: dict[int, Served] = field(default_factory=dict)


class VirtualEngine:
    """One simulated engine. Each call says what time it is; time must not go back."""

    def __init__(self, spec: EngineSpec, slo: Slo, seed: int = 0) -> None:
        """`slo` is what the kernel programs would count against."""
        self.served: list[Served] = []
        self.gaps_ns: list[int] = []
        self.steps: list[Step] = []
        self.crossed = False
        self._spec = spec
        self._ttft_slo_ns = int(slo.ttft_ms * 1e6)
        self._gap_slo_ns = int(slo.gap_ms * 1e6)
        self._noise = random.Random(seed)
        self._scheduler = Scheduler(spec.kv_tokens)
        self._start = {name: int(knob.start) for name, knob in spec.knobs().items()}
        self._limits = Limits(**self._start)
        self._counts = _Counts()
        self._plan: Plan | None = None
        self._began_ns = self._ends_ns = 0
        self._kv_read = 0

    @property
    def ends_ns(self) -> int | None:
        """When the step in flight ends; None when there is none."""
        return self._ends_ns if self._plan is not None else None

    @property
    def values(self) -> dict[str, float]:
        """The knobs in force."""
        return {name: getattr(self._limits, name) for name in self._start}

    def set(self, values: Mapping[str, float]) -> None:
        """Put knobs in force from the next step on; those not named go to their start values."""
        self._limits = Limits(**self._start | {name: int(v) for name, v in values.items()})

    def submit(self, now_ns: int, prompt_tokens: int, answer_tokens: int) -> None:
        """A request comes in: an idle engine starts at once, a full queue refuses it."""
        counts = self._counts
        served = Served(now_ns, prompt_tokens, answer_tokens)
        self.served.append(served)
        key = len(self.served)
        sequence = Sequence(key, prompt_tokens, answer_tokens, now_ns)
        counts.requests += 1
        if sequence.reserved_tokens > self._spec.kv_tokens or not self._scheduler.add(
            sequence, self._limits
        ):
            served.refused = True
            counts.ends += 1
            return
        counts.prompt_tokens += prompt_tokens
        counts.by_key[key] = served
        if self._plan is None:
            self._begin(now_ns)

    def end_step(self) -> None:
        """The step in flight ends: its tokens go out, and the next one starts if there is work."""
        assert self._plan is not None
        plan, now_ns, counts = self._plan, self._ends_ns, self._counts
        sampled = list(plan.sampled())
        finished = self._scheduler.advance(plan, (), now_ns)
        for sequence in sampled:
            self._deliver(counts.by_key[sequence.key], now_ns)
        for sequence in finished:
            del counts.by_key[sequence.key]
        counts.ends += len(finished)
        counts.run_ns += now_ns - self._began_ns
        self.steps.append(
            Step(
                len(self.steps) + 1,
                now_ns,
                now_ns - self._began_ns,
                plan.prefill_tokens,
                len(plan.decodes),
                self._kv_read,
            )
        )
        self._plan = None
        self._begin(now_ns + int(self._spec.times.between_ms * 1e6))

    def now(self, now_ns: int) -> EngineNow:
        """As the stats page would show it."""
        scheduler, counts = self._scheduler, self._counts
        return EngineNow(
            updated_ns=now_ns,
            steps=len(self.steps),
            waiting=scheduler.waiting,
            running=scheduler.running,
            waiting_tokens=scheduler.waiting_tokens,
            oldest_arrival_ns=scheduler.oldest_arrival_ns,
            kv_used=scheduler.kv_used,
            kv_total=scheduler.kv_total,
            requests_total=counts.requests,
            finished_total=counts.ends,
            prompt_tokens_total=counts.prompt_tokens,
            generated_tokens_total=counts.chunks,
            max_running=self._limits.max_running,
            max_batched_tokens=self._limits.max_batched_tokens,
            deferred=scheduler.deferred,
            deferred_total=scheduler.deferred_total,
            longest_deferral_ms=scheduler.longest_deferral_ns(now_ns) // 1_000_000,
            shed_total=scheduler.shed_total,
            on_time_tokens=scheduler.on_time_tokens,
        )

    def counters(self) -> Counters:
        """As the kernel programs would count it: one chunk a token, a CPU of its own."""
        counts = self._counts
        return Counters(
            run_ns=counts.run_ns,
            requests=counts.requests,
            responses=counts.first_chunks,
            first_chunks=counts.first_chunks,
            ttft_sum_ns=counts.ttft_sum_ns,
            ttft_over=counts.ttft_over,
            chunks=counts.chunks,
            gaps=counts.chunks - counts.first_chunks,
            gap_sum_ns=counts.gap_sum_ns,
            gaps_over=counts.gaps_over,
            ends_complete=counts.ends,
            events=counts.chunks,
            writes=counts.chunks,
        )

    def _begin(self, now_ns: int) -> None:
        plan = self._scheduler.plan(self._limits, now_ns)
        if plan.empty:
            return
        kv_read = sum(each.prompt_tokens + each.generated for each in plan.decodes)
        kv_read += sum(each.first + each.count for each in plan.prefills)
        times = self._spec.times
        took_ms = times.mean_ms(plan.prefill_tokens, len(plan.decodes), kv_read)
        if times.noise:
            took_ms *= self._noise.lognormvariate(-(times.noise**2) / 2, times.noise)
        self._plan, self._kv_read = plan, kv_read
        self._began_ns, self._ends_ns = now_ns, now_ns + max(1, int(took_ms * 1e6))

    def _deliver(self, served: Served, now_ns: int) -> None:
        counts = self._counts
        counts.chunks += 1
        served.tokens += 1
        if served.first_ns:
            gap_ns = now_ns - served.last_ns
            self.gaps_ns.append(gap_ns)
            counts.gap_sum_ns += gap_ns
            served.longest_gap_ns = max(served.longest_gap_ns, gap_ns)
            if gap_ns > self._gap_slo_ns:
                served.gaps_over += 1
                counts.gaps_over += 1
                self.crossed = True
        else:
            served.first_ns = now_ns
            ttft_ns = now_ns - served.arrival_ns
            counts.first_chunks += 1
            counts.ttft_sum_ns += ttft_ns
            if ttft_ns > self._ttft_slo_ns:
                counts.ttft_over += 1
                self.crossed = True
        served.last_ns = now_ns


EXAMPLE: Final = EngineSpec(StepTimes(4.0, 0.04, 0.2, 1e-5))
"""Step times of a small model on a fast accelerator."""
