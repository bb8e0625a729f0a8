import math
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.memory_history import Growth, PerRequest
from controller.memory_plan import BAND, GROWTH, moved, room_for
from controller.memory_sentinel import Cappable, MemoryView, SentinelMemory, decide_memory

MIB = 1 << 20
SECOND = 1_000_000_000


def test_nothing_is_planned_while_nobody_knows_what_a_request_takes() -> None:
    assert room_for(40 * MIB, None, 0, 0) == math.inf
    assert room_for(40 * MIB, 0.0, 0, 0) == math.inf


def test_requests_have_room_to_their_end_and_a_tenth_is_not_planned_with() -> None:
    assert room_for(40 * MIB, 8.0 * MIB, 0, 0) == pytest.approx(4.5)
    # the same four, half done: they have what two have at their end
    assert room_for(24 * MIB, 8.0 * MIB, 2, 0) == pytest.approx(4.5)


def test_as_many_as_ran_before_fit_again_though_the_engine_kept_their_memory() -> None:
    assert room_for(1 * MIB, 8.0 * MIB, 0, 200) == 200


def test_nothing_left_holds_no_more_than_what_runs() -> None:
    assert room_for(-5 * MIB, 8.0 * MIB, 10, 10) == 10


@given(st.integers(1, 500), st.floats(0, 1000), st.integers(1, 10), st.integers(10, 500))
def test_a_cap_that_fits_stays_whatever_a_reading_differs_by(
    cap: int, fits: float, least: int, most: int
) -> None:
    cap = min(max(cap, least), most)
    new = moved(cap, fits, least, most)
    assert least <= new <= max(cap, most)
    assert new <= max(cap + 1, GROWTH * cap)
    if new < cap:
        assert fits < cap - BAND
    # what it came to holds for every reading within the band
    if least < new < most and new <= fits:
        assert moved(new, fits - 0.2, least, most) >= new


@dataclass(slots=True)
class Engine:
    """One that computes a token of each running request a tick; memory is taken as tokens come.

    It is killed when it has more than its limit. `kept`: what requests had stays with it, for the
    next ones.
    """

    limit: int
    per_token: int
    tokens: int = 500
    prompt: int = 200
    per_tick: int = 4
    kept: bool = False
    base: int = 100 * MIB
    max_running: float = 128
    running: list[int] = field(default_factory=list)
    waiting: int = 0
    answered: int = 0
    pool: int = 0

    @property
    def used(self) -> int:
        now = self.per_token * sum(self.running)
        self.pool = max(self.pool, now) if self.kept else now
        return self.base + self.pool

    @property
    def filled(self) -> float:
        return sum(self.running) / (self.tokens * len(self.running)) if self.running else 1.0

    def step(self) -> None:
        self.running = [each + self.per_tick for each in self.running]
        ended = sum(each >= self.tokens for each in self.running)
        self.running = [each for each in self.running if each < self.tokens]
        self.answered += ended
        while self.waiting and len(self.running) < self.max_running:
            self.waiting -= 1
            self.running.append(self.prompt)


@dataclass(slots=True)
class Watched:
    """An engine and the sentinel beside it, by a clock of the test's own."""

    engine: Engine
    now_ns: int = 0
    growth: Growth = field(default_factory=Growth)
    each: PerRequest = field(default_factory=PerRequest)
    memory: SentinelMemory = field(default_factory=SentinelMemory)

    def run(self, seconds: float, *, most: int = 0) -> None:
        """For so long; `most` clients ask again as soon as they are answered."""
        engine, ends_ns = self.engine, self.now_ns + int(seconds * SECOND)
        while self.now_ns < ends_ns:
            self.now_ns += 50_000_000
            engine.waiting = max(engine.waiting, most - len(engine.running))
            engine.step()
            assert engine.used <= engine.limit, "killed"
            self.look()

    def drain(self) -> None:
        """Until everybody is answered."""
        while self.engine.running or self.engine.waiting:
            self.run(1)

    def look(self) -> None:
        engine, running = self.engine, len(self.engine.running)
        bound = self.growth.take(self.now_ns, "/engine", engine.limit, engine.used)
        had = running * engine.filled
        view = MemoryView(
            (bound,),
            per_request=self.each.take(self.now_ns, had, engine.used),
            unfilled=running - had,
            most_had=self.each.most_had,
        )
        cappable = Cappable(engine.max_running, 1, running)
        self.memory, _ = decide_memory(view, self.memory, self.now_ns, cappable)
        for wanted in (self.memory.cap, self.memory.restore):
            engine.max_running = wanted if wanted is not None else engine.max_running


def small(per_tick: int) -> Watched:
    """Room for five requests of 8 MiB."""
    return Watched(Engine(limit=140 * MIB, per_token=(8 * MIB) // 500, per_tick=per_tick))


@pytest.mark.parametrize("per_tick", [1, 4, 30])
def test_a_burst_that_kills_an_engine_alone_does_not_once_it_is_known(per_tick: int) -> None:
    watched = small(per_tick)
    watched.run(5)
    watched.run(40, most=4)
    watched.drain()
    before = watched.engine.answered
    watched.engine.waiting = 14
    watched.drain()
    assert watched.engine.answered - before == 14


@pytest.mark.parametrize("per_tick", [1, 4, 30])
def test_the_same_burst_without_a_cap_kills_it(per_tick: int) -> None:
    engine = small(per_tick).engine
    engine.waiting = 14
    most = 0
    while engine.running or engine.waiting:
        engine.step()
        most = max(most, engine.used)
    assert most > engine.limit


def test_an_engine_that_keeps_what_requests_had_is_soon_free_again() -> None:
    engine = Engine(limit=1200 * MIB, per_token=(8 * MIB) // 500, kept=True)
    watched = Watched(engine)
    watched.run(5)
    for most in (2, 10, 40, 80):
        watched.run(10, most=most)
    watched.run(100)
    assert engine.max_running >= 40
    watched.run(60, most=128)
    assert len(engine.running) >= 80


@pytest.mark.parametrize("per_tick", [1, 4, 30])
def test_growth_that_was_planned_for_costs_no_more_than_caution(per_tick: int) -> None:
    """Six tenths at least of what four at a time would do: that many fit, and nearly fill it."""
    watched = small(per_tick)
    watched.run(5)
    watched.run(20, most=4)
    before = watched.engine.answered
    watched.run(60, most=14)
    four = 4 * 60 / 0.05 * per_tick / 300
    assert watched.engine.answered - before > 0.6 * four


def test_where_memory_holds_all_that_may_run_nothing_is_capped() -> None:
    watched = small(4)
    watched.engine.limit = 4000 * MIB
    watched.run(5)
    watched.run(20, most=20)
    assert watched.memory == replace(SentinelMemory(), capped_ns=watched.memory.capped_ns)
    assert watched.engine.max_running == 128
