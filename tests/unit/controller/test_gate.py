"""What is let into an engine of which only requests are known; the engine here is a queue model."""

import json
import math
import random
from collections import deque
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bpf.layout import Counters
from controller.actions import ReleaseKnobs, SetKnobs
from controller.admission import QUEUED
from controller.attribution import ON_THE_WAY, STOPS, Cause
from controller.batching import RUNNING, BatchMemory, BatchView
from controller.codec import decode, encode
from controller.core import IDLE_NS, CoreState, decide
from controller.engines.contract import Knob
from controller.engines.page import EngineNow
from controller.gate import LEAST_SHARE, MOST_SHARE, Gate, Served, decide_gate, is_gate
from controller.laws import served_rps
from controller.policy_model import KnobFloors, Slo

from .situations import SECOND, window

START = {RUNNING: 16, QUEUED: 1000}
KNOBS = {name: Knob(name, 1, start, start, "requests") for name, start in START.items()}
TICK_MS = 20
TOKENS = 20


@dataclass(slots=True)
class Request:
    arrived_ms: int
    left: float = TOKENS
    began: bool = False
    late_gap: bool = False


@dataclass
class Engine:
    """Runs at most `max_running`, each token taking base + each · running ms.

    In every tick `slow_readers` chunks are late only on the way.
    """

    slo: Slo
    base_ms: float = 10.0
    each_ms: float = 2.0
    slow_readers: int = 0
    knobs: dict[str, float] = field(default_factory=lambda: dict(START))
    now_ms: int = 0
    waiting: deque[Request] = field(default_factory=deque)
    running: list[Request] = field(default_factory=list)
    total: Counters = field(default_factory=Counters)
    finished: int = 0
    accepted: int = 0
    shed: int = 0
    good: int = 0

    def step(self, arrivals: int) -> None:
        """One tick with so many newcomers."""
        self.now_ms += TICK_MS
        for _ in range(arrivals):
            if len(self.waiting) >= self.knobs[QUEUED] and self.waiting:
                self.shed += 1
                continue
            self.accepted += 1
            self.waiting.append(Request(self.now_ms))
        while self.waiting and len(self.running) < self.knobs[RUNNING]:
            self.running.append(self.waiting.popleft())
        gap_ms = self.base_ms + self.each_ms * len(self.running)
        late = self.slow_readers
        counted = {"requests": arrivals, "gaps": late, "gaps_over": late, "gaps_unsent": late}
        counted |= {"first_chunks": 0, "ttft_over": 0}
        for request in list(self.running):
            request.left -= TICK_MS / gap_ms
            counted["gaps"] += 1
            if gap_ms > self.slo.gap_ms:
                counted["gaps_over"] += 1
                request.late_gap = True
            on_time = self.now_ms - request.arrived_ms <= self.slo.ttft_ms
            if not request.began:
                request.began = True
                counted["first_chunks"] += 1
                counted["ttft_over"] += not on_time
                request.late_gap |= not on_time
            if request.left <= 0:
                self.running.remove(request)
                self.finished += 1
                self.good += not request.late_gap
        fields = {name: getattr(self.total, name) + more for name, more in counted.items()}
        self.total = self.total._replace(**fields)

    def shown(self) -> EngineNow:
        oldest = self.waiting[0].arrived_ms * 1_000_000 if self.waiting else 0
        return EngineNow(
            updated_ns=self.now_ms * 1_000_000,
            waiting=len(self.waiting),
            running=len(self.running),
            oldest_arrival_ns=oldest,
            requests_total=self.accepted,
            finished_total=self.finished,
            max_running=int(self.knobs[RUNNING]),
        )


def run(engine: Engine, rps: float, seconds: int, *, controlled: bool, seed: int = 1) -> CoreState:
    """Poisson arrivals for a while; the state at the end."""
    chance, state = random.Random(seed), CoreState()
    view = BatchView(KNOBS, engine.slo, KnobFloors())
    due_ms = 0.0
    before = engine.total
    for _ in range(seconds * 1000 // TICK_MS):
        arrivals = 0
        while due_ms <= engine.now_ms:
            arrivals += 1
            due_ms += chance.expovariate(rps) * 1e3
        engine.step(arrivals)
        if not controlled:
            continue
        signals = replace(
            window(engine.now_ms * 1_000_000, engine=engine.shown()),
            totals=engine.total,
            kernel=engine.total.since(before),
        )
        before = engine.total
        cause = Cause.BATCH if signals.kernel.gaps_over else Cause.NONE
        if engine.slow_readers:
            cause = Cause.SLOW_READER
        state, proposal = decide(view, state, signals, cause, 0.99)
        for action in proposal.actions if proposal is not None else ():
            if isinstance(action, SetKnobs):
                engine.knobs = {**START, **action.values}
            elif isinstance(action, ReleaseKnobs):
                engine.knobs = dict(START)
    return state


def capacity(engine: Engine) -> float:
    running = START[RUNNING]
    return running / (TOKENS * (engine.base_ms + engine.each_ms * running) / 1e3)


LOOSE = Slo(ttft_ms=2000, gap_ms=1000)


@pytest.mark.parametrize("overload", [1.3, 2, 4])
def test_in_an_overload_nearly_all_that_get_in_are_on_time_and_no_capacity_is_lost(
    overload: float,
) -> None:
    free, held = Engine(LOOSE), Engine(LOOSE)
    run(free, overload * capacity(free), 120, controlled=False)
    run(held, overload * capacity(held), 120, controlled=True)
    assert held.finished >= 0.97 * free.finished
    assert held.good >= 0.85 * held.finished
    assert held.good >= 2 * free.good


@pytest.mark.parametrize("slow_readers", [0, 5])
def test_below_capacity_nothing_is_held_and_nobody_is_refused(slow_readers: int) -> None:
    engine = Engine(LOOSE, slow_readers=slow_readers)
    run(engine, 0.6 * capacity(engine), 120, controlled=True)
    assert engine.shed == 0
    assert engine.good == engine.finished
    assert engine.knobs == START


def test_after_an_overload_everything_is_given_back() -> None:
    engine = Engine(LOOSE)
    state = run(engine, 3 * capacity(engine), 30, controlled=True)
    assert engine.knobs[QUEUED] < START[QUEUED]
    assert state.batch.point
    engine.waiting.clear()
    view = BatchView(KNOBS, engine.slo, KnobFloors())
    signals = window((engine.now_ms + 61_000) * 1_000_000, engine=engine.shown())
    _, proposal = decide_gate(view, state.batch, signals, state.gate, Cause.NONE)
    assert proposal is not None
    assert isinstance(proposal.actions[0], ReleaseKnobs)


def test_an_overload_is_answered_the_same_while_clients_read_slowly() -> None:
    alone, beside = Engine(LOOSE), Engine(LOOSE, slow_readers=5)
    for engine in (alone, beside):
        run(engine, 2 * capacity(engine), 120, controlled=True)
    assert (beside.good, beside.shed, beside.knobs) == (alone.good, alone.shed, alone.knobs)
    assert beside.knobs[QUEUED] < START[QUEUED]


@pytest.mark.parametrize("slow_readers", [0, 5])
def test_a_batch_that_makes_gaps_late_is_made_smaller_until_they_are_not(
    slow_readers: int,
) -> None:
    # with 16 a gap takes 42 ms, with 10 it takes 30
    slo = Slo(ttft_ms=3000, gap_ms=31)
    free, held = Engine(slo), Engine(slo, slow_readers=slow_readers)
    run(free, 0.9 * capacity(free), 120, controlled=False)
    run(held, 0.9 * capacity(held), 120, controlled=True)
    assert held.knobs[RUNNING] <= 11
    assert held.good > 2 * free.good


def test_a_cut_that_cures_nothing_is_given_up() -> None:
    # not the batch: a token takes that long alone
    engine = Engine(Slo(ttft_ms=2000, gap_ms=20), base_ms=30, each_ms=0.1)
    state = run(engine, 0.8 * capacity(engine), 60, controlled=True)
    assert math.isinf(state.gate.cap)
    assert engine.knobs[RUNNING] == START[RUNNING]


@pytest.mark.parametrize("cause", sorted(Cause))
def test_nothing_is_decided_while_the_engine_stands_still_for_something_else(cause: Cause) -> None:
    engine = Engine(LOOSE)
    state = run(engine, 3 * capacity(engine), 30, controlled=True)
    view = BatchView(KNOBS, engine.slo, KnobFloors())
    signals = window((engine.now_ms + 61_000) * 1_000_000, engine=engine.shown())
    _, proposal = decide_gate(view, state.batch, signals, state.gate, cause)
    assert (proposal is None) == (cause in STOPS)
    assert not STOPS & ON_THE_WAY


def test_an_engine_that_counts_steps_or_has_no_such_knob_is_no_gate() -> None:
    view = BatchView(KNOBS, LOOSE, KnobFloors())
    shown = EngineNow(requests_total=1)
    assert is_gate(view, shown)
    assert not is_gate(view, replace(shown, steps=1))
    assert not is_gate(view, None)
    assert not is_gate(replace(view, knobs={}), shown)


def test_a_long_lull_gives_back_what_is_held() -> None:
    state = CoreState(batch=BatchMemory({QUEUED: 5.0}), idle_ns=0, requests_total=3)
    signals = window(IDLE_NS + SECOND, engine=EngineNow(requests_total=3))
    _, proposal = decide(BatchView(KNOBS, LOOSE, KnobFloors()), state, signals, Cause.NONE, 0.99)
    assert proposal is not None


@given(st.floats(0.1, 1e3), st.integers(1, 500), st.integers(1, 500))
def test_little_s_law_is_exact_at_the_cap_and_in_proportion(
    rps: float, running: int, most: int
) -> None:
    assert served_rps(rps, running, running) == pytest.approx(rps)
    assert served_rps(rps, running, most) == pytest.approx(rps * most / running)
    assert math.isinf(served_rps(rps, 0, most))


@given(st.lists(st.tuples(st.integers(0, 50), st.floats(0, 64), st.floats(0.01, 10)), max_size=30))
def test_what_was_served_is_never_nonsense(seconds: list[tuple[int, float, float]]) -> None:
    served = Served()
    for finished, running, passed_s in seconds:
        served = served.after(finished, running, passed_s)
    assert served.rps(16) >= 0
    assert not math.isnan(served.rps(16))


def test_the_share_stays_in_its_range() -> None:
    engine = Engine(LOOSE)
    state = run(engine, 4 * capacity(engine), 90, controlled=True)
    assert LEAST_SHARE <= state.gate.share <= MOST_SHARE
    assert Gate().share == 0.7


def test_what_is_kept_of_a_gate_goes_through_the_journal() -> None:
    engine = Engine(LOOSE)
    state = run(engine, 3 * capacity(engine), 30, controlled=True)
    text = json.dumps(encode(state), allow_nan=False)
    assert decode(CoreState, json.loads(text)) == state
