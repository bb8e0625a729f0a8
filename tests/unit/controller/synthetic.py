"""An engine that computes nothing but keeps time: the reference scheduler under a step formula.

Its clock is its own, so a minute of it takes a second or two, and the same seed gives the same.
"""

import random
from collections import deque
from dataclasses import dataclass, field, replace
from typing import Final

from bpf.layout import Counters
from controller.actions import SetKnobs
from controller.attribution import attribute
from controller.batching import BatchMemory, BatchView, decide_batch
from controller.engines.contract import Knob
from controller.engines.page import EngineNow, Step
from controller.policy_model import KnobFloors, Slo
from controller.reference.scheduler import Limits, Scheduler, Sequence
from controller.signals import Sample, between
from controller.step_model import StepModel, learn
from controller.watch import ARRIVALS_NS, WINDOW_NS

TICK_NS: Final = 17_000_000
SECOND: Final = 1_000_000_000
KV_TOKENS: Final = 65_536
START: Final = Limits(64, 2048, 65_536, 10_000)


@dataclass(slots=True)
class Run:
    """What became of the streams, and what was decided. Times in seconds of the engine."""

    seconds: float
    gaps: int = 0
    late: list[float] = field(default_factory=list)
    changes: list[float] = field(default_factory=list)
    budgets: list[int] = field(default_factory=list)
    tokens: int = 0
    model: StepModel = field(default_factory=StepModel)
    memory: BatchMemory = field(default_factory=BatchMemory)

    def late_after(self, second: float) -> int:
        """Gaps over the SLO since then."""
        return sum(at >= second for at in self.late)

    def changes_a_minute(self, after: float) -> float:
        return 60 * sum(at >= after for at in self.changes) / (self.seconds - after)


@dataclass(slots=True)
class Load:
    """Poisson arrivals of prompts and answers of random length."""

    per_s: float
    seed: int = 1
    prompt: tuple[int, int] = (50, 900)
    answer: tuple[int, int] = (20, 120)


def run(load: Load, seconds: float, slo: Slo, controlled: bool = True) -> Run:
    """Serve `load`; with `controlled` under the batching law, else at the start values."""
    arrivals, noise = random.Random(load.seed), random.Random(load.seed + 1)
    start = limits = START
    knobs = {
        "max_running": Knob("max_running", 1, 64, start.max_running, "requests"),
        "max_batched_tokens": Knob(
            "max_batched_tokens", 1, 2048, start.max_batched_tokens, "tokens"
        ),
    }
    view = BatchView(knobs, slo, KnobFloors())
    scheduler = Scheduler(KV_TOKENS)
    done = Run(seconds)
    counters = Counters()
    samples: deque[Sample] = deque()
    recent: deque[Step] = deque()
    prompts: deque[tuple[int, int]] = deque()
    fresh: list[Step] = []
    last_token: dict[int, int] = {}
    now_ns = next_ns = tick_ns = steps = key = prompt_tokens = 0
    while now_ns < seconds * SECOND:
        while next_ns <= now_ns:
            key += 1
            sequence = Sequence(
                key, arrivals.randint(*load.prompt), arrivals.randint(*load.answer), next_ns
            )
            scheduler.add(sequence, limits)
            prompt_tokens += sequence.prompt_tokens
            next_ns += int(arrivals.expovariate(load.per_s) * SECOND)
        plan = scheduler.plan(limits, now_ns)
        if plan.empty:
            now_ns = next_ns
            continue
        kv = sum(each.prompt_tokens + each.generated for each in plan.decodes)
        kv += sum(each.first + each.count for each in plan.prefills)
        ms = 8 + 0.06 * plan.prefill_tokens + 0.4 * len(plan.decodes) + 0.0005 * kv
        step_ns = int(ms * 1e6 * max(0.5, 1 + noise.gauss(0, 0.05)))
        now_ns += step_ns
        steps += 1
        fresh.append(Step(steps, now_ns, step_ns, plan.prefill_tokens, len(plan.decodes), kv))
        late = 0
        for sequence in plan.sampled():
            done.tokens += 1
            if sequence.key in last_token:
                done.gaps += 1
                if now_ns - last_token[sequence.key] > slo.gap_ms * 1e6:
                    late += 1
                    done.late.append(now_ns / SECOND)
            last_token[sequence.key] = now_ns
        counters = counters._replace(
            run_ns=counters.run_ns + step_ns, gaps_over=counters.gaps_over + late
        )
        scheduler.advance(plan, (), now_ns)
        if now_ns < tick_ns or not controlled:
            continue
        tick_ns = now_ns + TICK_NS
        samples.append(Sample(now_ns, counters))
        while len(samples) > 2 and samples[1].now_ns <= now_ns - WINDOW_NS:
            samples.popleft()
        recent.extend(fresh)
        while recent[0].end_ns < samples[0].now_ns:
            recent.popleft()
        prompts.append((now_ns, prompt_tokens))
        while len(prompts) > 2 and prompts[1][0] <= now_ns - ARRIVALS_NS:
            prompts.popleft()
        for_ns = max(1, now_ns - prompts[0][0])
        engine = EngineNow(
            updated_ns=now_ns,
            steps=steps,
            waiting=scheduler.waiting,
            running=scheduler.running,
            oldest_arrival_ns=scheduler.oldest_arrival_ns,
            kv_used=scheduler.kv_used,
            kv_total=KV_TOKENS,
        )
        rate = (prompt_tokens - prompts[0][1]) / for_ns * SECOND
        signals = between(samples[0], samples[-1], engine, recent, rate)
        done.model = learn(done.model, fresh, disturbed=False)
        fresh.clear()
        cause = attribute(signals, slo, 0.1).cause
        done.memory, proposal = decide_batch(view, done.memory, signals, done.model, cause)
        if proposal is None:
            continue
        (action,) = proposal.actions
        values = action.values if isinstance(action, SetKnobs) else {}
        limits = replace(start, **{name: int(value) for name, value in values.items()})
        done.changes.append(now_ns / SECOND)
        done.budgets.append(limits.max_batched_tokens)
        # as the loop does: judge what follows by itself
        while len(samples) > 1:
            samples.popleft()
        recent.clear()
    return done
