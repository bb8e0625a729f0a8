import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.plugins.relegation import AGED_SHARE, Relegation, Rules

MS = 1_000_000
SECOND = 1_000 * MS
RATE = 1000.0
"""Tokens a second: a token takes a millisecond."""

RULES = Rules(deadline_ns=100 * MS, tokens_per_s=RATE)
OFF = Rules(tokens_per_s=RATE)


@dataclass(frozen=True, slots=True)
class Job:
    arrival_ms: int
    tokens: int


jobs_drawn = st.lists(
    st.builds(Job, st.integers(0, 400), st.integers(1, 90)), min_size=1, max_size=25
).map(lambda jobs: sorted(jobs, key=lambda job: job.arrival_ms))


def queue_of(jobs: Sequence[Job], now_ms: int, rules: Rules, ahead: int = 0) -> Relegation[int]:
    queue: Relegation[int] = Relegation()
    for key, job in enumerate(jobs):
        queue.add(key, job.arrival_ms * MS, job.tokens)
    queue.update(now_ms * MS, ahead, rules)
    return queue


def on_time_of(queue: Relegation[int]) -> list[int]:
    """Those on time, in the order they are served."""
    return queue.order()[: len(queue) - queue.deferred]


def served(queue: Relegation[int]) -> list[int]:
    """Everybody, one after another, with the clock standing still."""
    order = []
    while (key := queue.first()) is not None:
        queue.take(key)
        order.append(key)
    return order


def late_keys(order: Sequence[int], jobs: Sequence[Job], now_ms: float, ahead: int) -> set[int]:
    """Those that miss `RULES` if they are computed in this order from now on."""
    late, at_ms = set(), now_ms + ahead
    for key in order:
        at_ms += jobs[key].tokens
        if at_ms > jobs[key].arrival_ms + 100:
            late.add(key)
    return late


@dataclass(slots=True)
class Machine:
    """Computes prompts one after another, as many tokens a step as take `step_ms`."""

    rules: Rules
    step_ms: int = 10

    def run(self, jobs: Sequence[Job]) -> list[tuple[int, int]]:
        """(begun, done) of each job in ms."""
        queue: Relegation[int] = Relegation()
        done = [(-1, -1)] * len(jobs)
        begun: list[tuple[int, int]] = []
        now_ms = come = 0
        while come < len(jobs) or len(queue) or begun:
            while come < len(jobs) and jobs[come].arrival_ms <= now_ms:
                queue.add(come, jobs[come].arrival_ms * MS, jobs[come].tokens)
                come += 1
            queue.update(now_ms * MS, sum(left for _, left in begun), self.rules)
            now_ms += self.step_ms
            room = self.step_ms
            while room:
                if not begun:
                    key = queue.first()
                    if key is None:
                        break
                    queue.take(key)
                    done[key] = (now_ms - self.step_ms, -1)
                    begun.append((key, jobs[key].tokens))
                key, left = begun.pop()
                room -= (computed := min(left, room))
                if computed < left:
                    begun.append((key, left - computed))
                else:
                    done[key] = (done[key][0], now_ms)
        return done

    def late(self, jobs: Sequence[Job]) -> int:
        """How many are done too late."""
        done = self.run(jobs)
        return sum(end > job.arrival_ms + 100 for (_, end), job in zip(done, jobs, strict=True))


@settings(deadline=None)
@given(jobs_drawn, st.integers(0, 50), st.integers(400, 500))
def test_those_on_time_are_in_time_and_come_first_in_order_of_arrival(
    jobs: list[Job], ahead: int, now_ms: int
) -> None:
    queue = queue_of(jobs, now_ms, RULES, ahead)
    on_time = on_time_of(queue)
    assert on_time == sorted(on_time)
    assert not late_keys(on_time, jobs, now_ms, ahead)
    assert queue.on_time_tokens == sum(jobs[key].tokens for key in on_time)
    deferred = queue.order()[len(on_time) :]
    assert deferred == sorted(deferred)
    assert served(queue) == on_time + deferred


@settings(deadline=None, max_examples=50)
@given(
    st.lists(st.builds(Job, st.integers(0, 90), st.integers(1, 60)), min_size=1, max_size=9).map(
        lambda jobs: sorted(jobs, key=lambda job: job.arrival_ms)
    ),
    st.integers(0, 40),
)
def test_no_other_choice_keeps_more_on_time(jobs: list[Job], ahead: int) -> None:
    queue = queue_of(jobs, 90, RULES, ahead)
    best = max(
        size
        for size in range(len(jobs) + 1)
        for chosen in combinations(range(len(jobs)), size)
        if not late_keys(chosen, jobs, 90, ahead)
    )
    assert len(queue) - queue.deferred == best


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 90), st.integers(1, 120)), min_size=1, max_size=40),
    st.sampled_from([1, 5, 10]),
)
def test_never_more_are_late_than_first_come_first_served(
    drawn: list[tuple[int, int]], step_ms: int
) -> None:
    jobs, now_ms = [], 0
    for gap_ms, tokens in drawn:
        now_ms += gap_ms
        jobs.append(Job(now_ms, tokens))
    assert Machine(RULES, step_ms).late(jobs) <= Machine(OFF, step_ms).late(jobs)


def test_far_fewer_are_late_in_a_burst() -> None:
    jobs = [Job(0, 20)] * 40
    assert Machine(OFF).late(jobs) == 35
    later = [Job(100 * n, 20) for n in range(1, 10)]
    assert Machine(OFF).late([*jobs, *later]) > 35
    assert Machine(RULES).late([*jobs, *later]) == 35


class Waiting:
    """A queue and what is known of it otherwise; `act` does one thing to both."""

    def __init__(self) -> None:
        self.queue: Relegation[int] = Relegation()
        self.jobs: dict[int, Job] = {}
        self.deferred: set[int] = set()
        self.now_ms = self.ahead = self.keys = 0

    def act(self, what: str, amount: int, rules: Rules) -> None:
        queue = self.queue
        match what:
            case "add":
                self.keys += 1
                self.jobs[self.keys] = Job(self.now_ms, amount)
                queue.add(self.keys, self.now_ms * MS, amount)
            case "take":
                key = queue.first()
                assert (key is None) == (not self.jobs)
                if key is not None:
                    queue.take(key)
                    self.ahead += self.jobs.pop(key).tokens
            case "discard":
                queue.discard(amount)
                self.jobs.pop(amount, None)
            case "pass":
                self.now_ms += amount
                self.ahead = max(0, self.ahead - amount)
            case "abort":
                self.ahead = 0
        queue.update(self.now_ms * MS, self.ahead, rules)
        order = queue.order()
        self.deferred |= set(order[len(order) - queue.deferred :])


acts_drawn = st.lists(
    st.tuples(
        st.sampled_from(["add", "add", "take", "discard", "pass", "abort"]), st.integers(1, 60)
    ),
    max_size=80,
)


@settings(deadline=None)
@given(acts_drawn)
def test_whatever_comes_and_goes_the_queue_is_whole_and_its_promises_hold(
    acts: list[tuple[str, int]],
) -> None:
    waiting = Waiting()
    for what, amount in acts:
        waiting.act(what, amount, RULES)
        queue, jobs = waiting.queue, waiting.jobs
        order = queue.order()
        assert sorted(order) == sorted(jobs)
        assert len(queue) == len(jobs)
        assert queue.first() == (order[0] if order else None)
        on_time = on_time_of(queue)
        at_ms = waiting.now_ms + waiting.ahead
        for key in on_time:
            at_ms += jobs[key].tokens
            assert at_ms <= jobs[key].arrival_ms + 100
        assert queue.on_time_tokens == sum(jobs[key].tokens for key in on_time)
        assert queue.oldest_arrival_ns == min(
            (job.arrival_ms * MS for job in jobs.values()), default=0
        )
        assert queue.longest_deferral_ns(waiting.now_ms * MS) == max(
            ((waiting.now_ms - jobs[key].arrival_ms) * MS for key in order[len(on_time) :]),
            default=0,
        )
        assert queue.deferred_total == len(waiting.deferred)


@settings(deadline=None)
@given(acts_drawn, st.sampled_from([0, 150 * MS]))
def test_updates_in_between_with_nothing_new_change_nothing(
    acts: list[tuple[str, int]], max_deferral_ns: int
) -> None:
    """A queue that skips what can change nothing is the same as one that looks anew each time."""
    rules = replace(RULES, max_deferral_ns=max_deferral_ns)
    skipping, looking = Waiting(), Waiting()
    for what, amount in acts:
        skipping.act(what, amount, rules)
        # rules that are equal and not the same are looked at
        looking.act(what, amount, replace(rules))
        assert skipping.queue.order() == looking.queue.order()
        assert skipping.queue.deferred == looking.queue.deferred
        assert skipping.queue.deferred_total == looking.queue.deferred_total


@settings(deadline=None)
@given(acts_drawn, st.sampled_from([0.0, -1.0, math.nan, math.inf, -math.inf, RATE]))
def test_any_rate_will_do(acts: list[tuple[str, int]], rate: float) -> None:
    waiting = Waiting()
    rules = Rules(100 * MS, 150 * MS, rate)
    for what, amount in acts:
        waiting.act(what, amount, rules)
        assert sorted(waiting.queue.order()) == sorted(waiting.jobs)
    assert sorted(served(waiting.queue)) == sorted(waiting.jobs)


def test_without_a_rate_only_those_whose_deadline_has_passed_are_deferred() -> None:
    jobs = [Job(0, 10**9), Job(50, 10**9)]
    assert queue_of(jobs, 100, Rules(100 * MS)).deferred == 0
    assert on_time_of(queue_of(jobs, 101, Rules(100 * MS))) == [1]


@settings(deadline=None)
@given(acts_drawn, st.sampled_from([0, 10 * MS]))
def test_without_a_deadline_it_is_first_come_first_served(
    acts: list[tuple[str, int]], bound_ns: int
) -> None:
    waiting = Waiting()
    for what, amount in acts:
        waiting.act(what, amount, Rules(0, bound_ns, RATE))
        assert waiting.queue.order() == sorted(waiting.jobs)
    assert waiting.queue.deferred_total == 0


@settings(deadline=None)
@given(acts_drawn)
def test_once_the_deadline_is_given_up_it_is_first_come_first_served_again(
    acts: list[tuple[str, int]],
) -> None:
    waiting = Waiting()
    for what, amount in acts:
        waiting.act(what, amount, RULES)
    waiting.act("nothing", 0, OFF)
    assert waiting.queue.deferred == 0
    assert served(waiting.queue) == sorted(waiting.jobs)


def test_one_that_came_before_the_last_is_put_in_its_place() -> None:
    queue: Relegation[str] = Relegation()
    queue.add("second", 2, 1)
    queue.update(3, 0, RULES)
    queue.add("first", 1, 1)
    queue.update(3, 0, RULES)
    assert queue.order() == ["first", "second"]


def test_the_same_request_does_not_wait_twice() -> None:
    queue: Relegation[str] = Relegation()
    queue.add("a", 1, 1)
    with pytest.raises(ValueError, match="'a' waits already"):
        queue.add("a", 2, 1)


def test_a_deferred_request_comes_back_when_another_leaves_room() -> None:
    queue = queue_of([Job(0, 60), Job(0, 61)], 0, RULES)
    assert on_time_of(queue) == [0]
    queue.discard(0)
    queue.update(1 * MS, 0, RULES)
    assert queue.deferred == 1
    queue = queue_of([Job(900, 60), Job(900, 61)], 900, Rules(200 * MS, 0, RATE), ahead=100)
    assert on_time_of(queue) == [0]
    queue.discard(0)
    queue.update(1001 * MS, 0, Rules(200 * MS, 0, RATE))
    assert on_time_of(queue) == [1]


def test_nobody_is_put_off_for_one_that_was_and_back_again() -> None:
    queue = queue_of([Job(0, 40)], 0, RULES, ahead=70)
    assert queue.deferred == 1
    queue.add(1, 20 * MS, 90)
    queue.update(20 * MS, 0, RULES)
    assert on_time_of(queue) == [1]
    # a new plan: made from nothing it would keep the shorter one instead, and no more
    queue.update(21 * MS, 0, Rules(100 * MS, 0, 1.2 * RATE))
    assert on_time_of(queue) == [1]


def flooded(rules: Rules) -> int:
    """When a prompt too long to be on time is begun, in ms, beside short ones without a pause."""
    short = [Job(10 * n, 10) for n in range(400)]
    done = Machine(rules).run([short[0], Job(0, 150), *short[1:]])
    return done[1][0]


def test_without_a_bound_a_long_prompt_waits_for_slack() -> None:
    assert flooded(RULES) >= 3990


def test_a_deferred_request_is_begun_once_it_has_waited_half_the_bound() -> None:
    assert 250 < flooded(Rules(100 * MS, 500 * MS, RATE)) <= 270


def test_a_backlog_of_aged_requests_makes_few_late_that_leave_room_for_its_share() -> None:
    jobs = [Job(0, 40)] * 100 + [Job(10 * n, 4) for n in range(1, 800)]
    done = Machine(Rules(100 * MS, 200 * MS, RATE)).run(jobs)
    aged = [begun for begun, _ in done[2:100]]
    assert max(aged) > 5000
    late = sum(end > job.arrival_ms + 100 for (_, end), job in zip(done, jobs, strict=True))
    assert late <= 98 + 0.02 * 800


def test_aged_requests_get_their_share_while_others_wait() -> None:
    bounded = Rules(100 * MS, 200 * MS, RATE)
    queue: Relegation[int] = Relegation()
    for key in range(100):
        queue.add(key, 0, 40)
    tokens = {True: 0, False: 0}
    for now_ms in range(1000, 3000, 40):
        for key in range(now_ms, now_ms + 4):
            queue.add(key, now_ms * MS, 40)
        queue.update(now_ms * MS, 0, bounded)
        chosen = queue.first()
        assert chosen is not None
        queue.take(chosen)
        tokens[chosen < 100] += 40
    assert tokens[True] / (tokens[True] + tokens[False]) == pytest.approx(AGED_SHARE, abs=0.1)


@pytest.mark.parametrize("bound_ms", [300, 450])
def test_where_there_is_room_for_all_nobody_waits_much_longer_than_the_bound(bound_ms: int) -> None:
    # long prompts that nobody can have on time are 15%, short ones 80%
    long, step_ms = 150, 10
    jobs = sorted(
        [Job(1000 * n, long) for n in range(10)] + [Job(10 * n, 8) for n in range(1000)],
        key=lambda job: job.arrival_ms,
    )

    def longest_wait(bound_ms: int) -> int:
        done = Machine(Rules(100 * MS, bound_ms * MS, RATE), step_ms).run(jobs)
        return max(begun - job.arrival_ms for (begun, _), job in zip(done, jobs, strict=True))

    assert longest_wait(0) > 600
    # one that was begun is not interrupted
    assert longest_wait(bound_ms) <= bound_ms + long + 2 * step_ms


def test_an_update_with_nothing_new_costs_the_same_however_many_wait() -> None:
    def took_ns(count: int) -> float:
        queue = queue_of([Job(0, 40)] * count, 0, RULES)
        return least_ns(lambda: queue.update(1 * MS, 0, RULES))

    assert took_ns(20_000) < 20 * took_ns(2)


def least_ns(act: Callable[[], object]) -> float:
    """The shortest of many times: the others were disturbed."""
    times = []
    for _ in range(200):
        began = time.perf_counter_ns()
        act()
        times.append(time.perf_counter_ns() - began)
    return min(times)


@given(jobs_drawn, st.integers(1, 120))
def test_who_is_said_to_fit_is_on_time_and_puts_nobody_off(jobs: list[Job], tokens: int) -> None:
    now_ms = jobs[-1].arrival_ms
    queue = queue_of(jobs, now_ms, RULES)
    before = queue.deferred
    fits = queue.fits(tokens)
    queue.add(len(jobs), now_ms * MS, tokens)
    queue.update(now_ms * MS, 0, RULES)
    assert fits == (queue.deferred == before)


def test_those_that_came_since_the_last_update_take_their_room() -> None:
    queue = queue_of([Job(0, 50)], 0, RULES)
    assert queue.fits(50)
    queue.add(1, 0, 30)
    assert not queue.fits(21)
    assert queue.fits(20)


def test_without_a_deadline_or_a_rate_nobody_is_said_to_fit() -> None:
    assert not queue_of([Job(0, 1)], 0, OFF).fits(1)
    assert not queue_of([Job(0, 1)], 0, Rules(deadline_ns=100 * MS)).fits(1)
