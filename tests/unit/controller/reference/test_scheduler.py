import math
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.reference.scheduler import Limits, Plan, Scheduler, Sequence

KV_TOTAL = 300
NOW_NS = 1_000_000_000
STEP_NS = 5_000_000


LIMITS = Limits(max_running=8, max_batched_tokens=64, long_prefill_tokens=64, max_queued=1000)


def tokens_of(plan: Plan) -> int:
    return len(plan.decodes) + plan.prefill_tokens


def step(scheduler: Scheduler, limits: Limits) -> Plan:
    plan = scheduler.plan(limits, NOW_NS)
    scheduler.advance(plan, (), NOW_NS + STEP_NS)
    return plan


limits_drawn = st.builds(
    Limits,
    max_running=st.integers(1, 10),
    max_batched_tokens=st.integers(1, 40),
    long_prefill_tokens=st.integers(1, 40),
    max_queued=st.integers(1, 20),
)
relegating_drawn = st.builds(
    replace,
    limits_drawn,
    ttft_deadline_ms=st.integers(0, 200),
    prefill_tokens_per_s=st.integers(0, 2000),
    max_deferral_ms=st.integers(0, 300),
)
sizes_drawn = st.tuples(st.integers(1, 80), st.integers(1, 20))
act_drawn = st.one_of(
    st.tuples(st.just("add"), sizes_drawn),
    st.tuples(st.just("step"), relegating_drawn),
    st.tuples(st.just("abort"), st.integers(0, 30)),
    st.tuples(st.just("abort in step"), st.integers(0, 30)),
)


@settings(deadline=None)
@given(st.lists(act_drawn, max_size=80))
def test_no_order_of_events_breaks_a_bound(acts: list[tuple[str, object]]) -> None:
    scheduler = Scheduler(KV_TOTAL)
    limits = LIMITS
    live: dict[int, Sequence] = {}
    now_ns = NOW_NS
    key = 0
    for name, detail in acts:
        if name == "add":
            assert isinstance(detail, tuple)
            key += 1
            prompt_tokens, max_new_tokens = detail
            sequence = Sequence(key, prompt_tokens, max_new_tokens, arrival_ns=now_ns + key)
            queued = scheduler.waiting
            if taken := scheduler.add(sequence, limits):
                live[key] = sequence
            may_exceed = limits.ttft_deadline_ms > 0
            assert taken if queued < limits.max_queued else (may_exceed or not taken)
        elif name == "abort":
            assert isinstance(detail, int)
            scheduler.remove(detail)
            live.pop(detail, None)
        else:
            if isinstance(detail, Limits):
                limits = detail
            ran = scheduler.running
            now_ns += STEP_NS
            plan = scheduler.plan(limits, now_ns)
            assert tokens_of(plan) <= limits.max_batched_tokens
            assert scheduler.running <= max(ran, limits.max_running)
            assert all(1 <= part.count <= limits.long_prefill_tokens for part in plan.prefills)
            served = [s.key for s in plan.decodes] + [p.sequence.key for p in plan.prefills]
            assert len(set(served)) == len(served)
            if name == "abort in step":
                assert isinstance(detail, int)
                scheduler.remove(detail)
                live.pop(detail, None)
            for sequence in scheduler.advance(plan, (), now_ns + STEP_NS):
                assert sequence.generated == sequence.max_new_tokens
                del live[sequence.key]
        admitted = [sequence for sequence in live.values() if sequence.admitted]
        assert scheduler.kv_used == sum(s.reserved_tokens for s in admitted) <= KV_TOTAL
        assert scheduler.running == len(admitted)
        assert scheduler.waiting == len(live) - len(admitted)
        assert scheduler.waiting_tokens == sum(s.prompt_tokens - s.prefilled for s in live.values())
        assert scheduler.oldest_arrival_ns == min(
            (s.arrival_ns for s in live.values() if not s.admitted), default=0
        )
        assert 0 <= scheduler.deferred <= scheduler.waiting


@settings(deadline=None)
@given(st.lists(sizes_drawn, min_size=1, max_size=20), relegating_drawn)
def test_every_sequence_ends_with_all_its_tokens(
    sizes: list[tuple[int, int]], limits: Limits
) -> None:
    scheduler = Scheduler(KV_TOTAL)
    sequences = [Sequence(key, *size, key) for key, size in enumerate(sizes)]
    for sequence in sequences:
        assert scheduler.add(sequence, LIMITS)
    work = sum(sequence.reserved_tokens for sequence in sequences)
    steps = 0
    while scheduler.running or scheduler.waiting:
        assert not step(scheduler, limits).empty
        steps += 1
        assert steps <= work
    assert all(s.generated == s.max_new_tokens for s in sequences)
    assert scheduler.kv_used == 0


@settings(deadline=None)
@given(st.lists(sizes_drawn, min_size=1, max_size=20), limits_drawn)
def test_admission_is_first_come_first_served(sizes: list[tuple[int, int]], limits: Limits) -> None:
    scheduler = Scheduler(KV_TOTAL)
    sequences = [Sequence(key, *size, key) for key, size in enumerate(sizes)]
    for sequence in sequences:
        scheduler.add(sequence, LIMITS)
    while scheduler.running or scheduler.waiting:
        step(scheduler, limits)
        admitted = [sequence.admitted for sequence in sequences]
        assert admitted == sorted(admitted, reverse=True)


@settings(deadline=None)
@given(st.integers(2, 12), st.integers(1, 11))
def test_decodes_above_the_budget_take_turns(count: int, budget: int) -> None:
    scheduler = Scheduler(10_000)
    sequences = [Sequence(key, 1, 500, arrival_ns=key) for key in range(count)]
    for sequence in sequences:
        scheduler.add(sequence, LIMITS)
    step(scheduler, replace(LIMITS, max_running=count))
    for _ in range(4 * count):
        step(scheduler, replace(LIMITS, max_running=count, max_batched_tokens=budget))
    generated = [sequence.generated for sequence in sequences]
    assert max(generated) - min(generated) <= 1


def test_decodes_come_before_prompts() -> None:
    scheduler = Scheduler(10_000)
    decoding = Sequence(1, 1, 50, arrival_ns=1)
    scheduler.add(decoding, LIMITS)
    step(scheduler, LIMITS)
    scheduler.add(Sequence(2, 500, 1, arrival_ns=2), LIMITS)
    plan = step(scheduler, replace(LIMITS, max_batched_tokens=32))
    assert plan.decodes == (decoding,)
    assert plan.prefill_tokens == 31


def test_a_long_prompt_leaves_budget_to_the_next_under_its_cap() -> None:
    scheduler = Scheduler(10_000)
    scheduler.add(Sequence(1, 500, 1, arrival_ns=1), LIMITS)
    scheduler.add(Sequence(2, 20, 1, arrival_ns=2), LIMITS)
    plan = step(scheduler, replace(LIMITS, max_batched_tokens=64, long_prefill_tokens=16))
    assert [(part.sequence.key, part.count) for part in plan.prefills] == [(1, 16), (2, 16)]


def test_lowering_max_running_drains_without_stopping_anyone() -> None:
    scheduler = Scheduler(10_000)
    sequences = [Sequence(key, 1, 5 + key, arrival_ns=key) for key in range(6)]
    for sequence in sequences:
        scheduler.add(sequence, LIMITS)
    step(scheduler, replace(LIMITS, max_running=4))
    assert scheduler.running == 4
    seen = []
    while scheduler.running:
        before = scheduler.running
        plan = step(scheduler, replace(LIMITS, max_running=2))
        assert len(plan.decodes) == before or before < 2
        seen.append(before)
    assert seen[0] == 4
    assert all(later <= max(2, earlier) for earlier, later in pairwise(seen))
    assert all(s.generated == s.max_new_tokens for s in sequences)


def test_an_end_of_text_ends_a_sequence_early() -> None:
    scheduler = Scheduler(100)
    sequence = Sequence(7, 3, 50, arrival_ns=1)
    scheduler.add(sequence, LIMITS)
    plan = scheduler.plan(LIMITS, NOW_NS)
    assert scheduler.advance(plan, {7}, NOW_NS + STEP_NS) == [sequence]
    assert scheduler.running == 0
    assert scheduler.kv_used == 0


def test_a_sequence_larger_than_the_cache_is_refused() -> None:
    with pytest.raises(ValueError, match="101 tokens do not fit a KV cache of 100"):
        Scheduler(100).add(Sequence(1, 100, 1, arrival_ns=1), LIMITS)


def test_a_full_queue_of_late_requests_still_takes_one_that_can_be_on_time() -> None:
    limits = replace(
        LIMITS,
        max_running=1,
        max_batched_tokens=10,
        max_queued=2,
        ttft_deadline_ms=100,
        prefill_tokens_per_s=1000,
    )
    scheduler = Scheduler(10_000)
    late = [Sequence(key, 90, 1, NOW_NS) for key in range(3)]
    assert scheduler.add(late[0], limits)
    scheduler.plan(limits, NOW_NS)
    assert [scheduler.add(each, limits) for each in late[1:]] == [True, True]
    scheduler.plan(limits, NOW_NS)
    assert scheduler.deferred == 2
    assert not scheduler.add(Sequence(3, 90, 1, NOW_NS), limits)
    assert scheduler.add(Sequence(4, 5, 1, NOW_NS), limits)
    assert scheduler.shed_total == 1
    fcfs = replace(limits, ttft_deadline_ms=0)
    scheduler.plan(fcfs, NOW_NS)
    assert not scheduler.add(Sequence(5, 1, 1, NOW_NS), fcfs)


MS = 1_000_000


class Clocked:
    """A scheduler whose steps take a fixed time and a millisecond for each prompt token."""

    def __init__(self, kv_total: int = 100_000) -> None:
        self.scheduler = Scheduler(kv_total)
        self.now_ns = MS
        self.sequences: list[Sequence] = []
        self.order: list[int] = []

    def add(self, prompt_tokens: int, limits: Limits, answer_tokens: int = 1) -> Sequence:
        key = len(self.sequences)
        sequence = Sequence(key, prompt_tokens, answer_tokens, self.now_ns)
        assert self.scheduler.add(sequence, limits)
        self.sequences.append(sequence)
        return sequence

    def step(self, limits: Limits) -> Plan:
        plan = self.scheduler.plan(limits, self.now_ns)
        self.order += [part.sequence.key for part in plan.prefills if part.completes]
        self.now_ns += plan.prefill_tokens * MS
        self.scheduler.advance(plan, (), self.now_ns)
        return plan


BOUND = Limits(4, 10, 10, 1000, ttft_deadline_ms=100, prefill_tokens_per_s=1000)


def test_one_that_cannot_be_in_time_waits_for_those_that_can() -> None:
    clocked = Clocked()
    clocked.add(200, BOUND)
    clocked.add(30, BOUND)
    clocked.add(40, BOUND)
    while clocked.scheduler.waiting or clocked.scheduler.running:
        clocked.step(BOUND)
    assert clocked.order == [1, 2, 0]


def test_without_a_deadline_the_same_requests_come_in_order() -> None:
    clocked = Clocked()
    free = replace(BOUND, ttft_deadline_ms=0)
    for tokens in (200, 30, 40):
        clocked.add(tokens, free)
    while clocked.scheduler.waiting or clocked.scheduler.running:
        clocked.step(free)
    assert clocked.order == [0, 1, 2]


def test_a_late_prompt_that_was_begun_gives_way_to_one_in_time_until_half_its_bound() -> None:
    clocked = Clocked()
    bound = replace(BOUND, max_deferral_ms=60)
    late = clocked.add(200, bound)
    clocked.step(bound)
    assert late.prefilled == 10
    clocked.add(90, bound)
    while clocked.now_ns - late.arrival_ns <= 30 * MS:
        assert late.prefilled == 10
        clocked.step(bound)
    clocked.step(bound)
    assert late.prefilled == 20


def test_when_the_deadline_is_given_up_a_begun_prompt_goes_on() -> None:
    clocked = Clocked()
    late = clocked.add(200, BOUND)
    clocked.step(BOUND)
    clocked.add(90, BOUND)
    clocked.step(BOUND)
    assert late.prefilled == 10
    clocked.step(replace(BOUND, ttft_deadline_ms=0))
    assert late.prefilled == 20
    assert clocked.scheduler.deferred == 0


def test_without_a_rate_given_the_one_measured_decides_who_is_late() -> None:
    measured = replace(BOUND, prefill_tokens_per_s=0)
    clocked = Clocked()
    clocked.add(40, measured)
    for _ in range(4):
        clocked.step(measured)
    long = clocked.add(150, measured)
    clocked.add(50, measured)
    clocked.step(measured)
    assert clocked.scheduler.deferred == 1
    assert not long.admitted


def test_how_long_the_queue_will_take_is_told_once_the_rate_is_known() -> None:
    clocked = Clocked()
    assert math.isnan(clocked.scheduler.drain_s())
    clocked.add(100, BOUND)
    clocked.step(BOUND)
    assert clocked.scheduler.drain_s() == pytest.approx(0.09)


def test_the_pauses_of_an_idle_engine_are_not_counted_against_its_rate() -> None:
    clocked = Clocked()
    clocked.add(20, BOUND)
    clocked.step(BOUND)
    clocked.step(BOUND)
    assert clocked.step(BOUND).empty
    clocked.now_ns += 10_000 * MS
    clocked.add(100, BOUND)
    clocked.step(BOUND)
    assert clocked.scheduler.drain_s() == pytest.approx(0.09)


def test_nobody_is_admitted_without_a_part_of_the_step() -> None:
    clocked = Clocked()
    sequences = [clocked.add(10, BOUND) for _ in range(3)]
    plan = clocked.step(BOUND)
    assert [part.sequence for part in plan.prefills] == sequences[:1]
    assert not sequences[1].admitted


def test_a_refused_request_is_counted() -> None:
    scheduler = Scheduler(100)
    narrow = replace(LIMITS, max_queued=1)
    assert scheduler.add(Sequence(1, 1, 1, 1), narrow)
    assert not scheduler.add(Sequence(2, 1, 1, 1), narrow)
    assert scheduler.shed_total == 1
