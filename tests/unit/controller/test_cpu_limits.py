from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Final

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from controller.actions import Action, ReleaseLimit, SetQuota, SetWeight
from controller.attribution import OUTSIDE, Cause
from controller.cpu_limits import (
    QUOTA_AFTER_NS,
    WEIGHT_DWELL_NS,
    CpuMemory,
    CpuView,
    decide_cpu,
)
from controller.neighbour_limits import (
    IDLE_AT_ONCE,
    NO_TRAFFIC_NS,
    QUOTA_DWELL_NS,
    RELAX_AFTER_NS,
    RELEASE_AFTER_NS,
    NeighbourView,
)
from controller.signals import Signals

from .situations import SECOND, stolen, window

TICK_NS: Final = 17_000_000
CPUS: Final = 2
BUSY: Final = window(run_ns=SECOND, chunks=50, requests=2)


def burner(
    name: str = "b", used: float = 0.5, min_cores: float = 0.05, *, idle: bool = False
) -> NeighbourView:
    return NeighbourView(name, used, min_cores, idle=idle)


@dataclass(slots=True)
class Ladder:
    """The law over time, and what its actions left in force."""

    base_weight: int | None = 100
    max_weight: int = 10_000
    neighbours: Sequence[NeighbourView] = (burner(),)
    now_ns: int = 1000 * SECOND
    memory: CpuMemory = field(default_factory=CpuMemory)
    weight: int | None = None
    quotas: dict[str, float] = field(default_factory=dict)
    idled: set[str] = field(default_factory=set)
    log: list[tuple[int, Action]] = field(default_factory=list)

    def tick(self, signals: Signals, cause: Cause, after_ns: int = TICK_NS) -> list[Action]:
        self.now_ns += after_ns
        view = CpuView(self.base_weight, self.max_weight, CPUS, tuple(self.neighbours))
        signals = replace(signals, now_ns=self.now_ns)
        self.memory, proposal = decide_cpu(view, self.memory, signals, cause)
        actions = list(proposal.actions) if proposal is not None else []
        for action in actions:
            self._carry_out(action)
        self.log += [(self.now_ns, action) for action in actions]
        return actions

    def press(self, seconds: float) -> None:
        """Neighbours hold the CPU, whatever is done about it."""
        self._run(stolen(), Cause.NEIGHBOUR_CPU, seconds)

    def calm(self, seconds: float, signals: Signals | None = None) -> None:
        """Traffic, and nothing at risk."""
        self._run(BUSY if signals is None else signals, Cause.NONE, seconds)

    def idle(self, seconds: float) -> None:
        self.calm(seconds, window())

    def until_quota(self) -> None:
        self.press((2 * WEIGHT_DWELL_NS + QUOTA_AFTER_NS + QUOTA_DWELL_NS) / SECOND)
        assert self.quotas

    def times(self, kind: type[Action]) -> list[int]:
        return [at for at, action in self.log if isinstance(action, kind)]

    def _run(self, signals: Signals, cause: Cause, seconds: float) -> None:
        end_ns = self.now_ns + seconds * SECOND
        while self.now_ns < end_ns:
            self.tick(signals, cause)

    def _carry_out(self, action: Action) -> None:
        match action:
            case SetWeight(weight=0, target=target):
                assert target not in self.idled
                self.idled.add(target)
            case ReleaseLimit(target=target, knob="cpu_weight", old=0):
                self.idled.remove(target)
            case SetWeight(weight=weight, old=old):
                assert old == (self.weight or self.base_weight)
                self.weight = weight
            case SetQuota(target=target, cores=cores, old=was):
                assert was == self.quotas.get(target)
                self.quotas[target] = cores
            case ReleaseLimit(target="", knob="cpu_weight", old=held):
                assert held == self.weight
                self.weight = None
            case ReleaseLimit(target=target, knob="cpu_quota", old=held):
                assert self.quotas.pop(target) == held
            case _:
                raise AssertionError(action)


def test_the_first_step_is_ten_times_the_weight_at_once() -> None:
    assert Ladder().tick(stolen(), Cause.NEIGHBOUR_CPU) == [SetWeight(1000, 100)]


def test_neighbours_that_may_be_are_made_idle_with_the_first_step() -> None:
    ladder = Ladder(neighbours=[burner("a", idle=True), burner("b"), burner("c", idle=True)])
    assert ladder.tick(stolen(), Cause.NEIGHBOUR_CPU) == [
        SetWeight(1000, 100),
        SetWeight(0, None, "a"),
        SetWeight(0, None, "c"),
    ]


def test_of_many_those_that_use_most_are_made_idle_first_and_the_others_soon() -> None:
    many = [burner(f"n{number}", used=0.02 + number / 1000, idle=True) for number in range(40)]
    ladder = Ladder(base_weight=None, neighbours=many)
    first = [f"n{number}" for number in range(39, 39 - IDLE_AT_ONCE, -1)]
    assert ladder.tick(stolen(), Cause.NEIGHBOUR_CPU) == [SetWeight(0, None, n) for n in first]
    for _ in range(2):
        ladder.tick(stolen(), Cause.NEIGHBOUR_CPU)
    assert len(ladder.idled) == len(many)


def test_they_are_made_idle_where_the_engines_weight_cannot_be_set() -> None:
    ladder = Ladder(base_weight=None, neighbours=[burner(idle=True)])
    assert ladder.tick(stolen(), Cause.NEIGHBOUR_CPU) == [SetWeight(0, None, "b")]


def test_one_that_begins_to_burn_later_is_made_idle_then() -> None:
    ladder = Ladder(neighbours=[burner("a", idle=True), burner("b", used=0.0, idle=True)])
    ladder.press(2)
    assert ladder.idled == {"a"}
    ladder.neighbours = [burner("a", idle=True), burner("b", idle=True)]
    began_ns = ladder.now_ns
    assert ladder.tick(stolen(), Cause.NEIGHBOUR_CPU) == [SetWeight(0, None, "b")]
    ladder.press(2)
    assert next(at for at in ladder.times(SetQuota) if at > began_ns) - began_ns >= QUOTA_AFTER_NS


def test_a_tenant_is_never_made_idle() -> None:
    ladder = Ladder(neighbours=[replace(burner(idle=True), weight=100)])
    assert ladder.tick(stolen(), Cause.NEIGHBOUR_CPU) == [SetWeight(1000, 100)]


def test_nobody_is_made_idle_for_a_wait_that_others_caused() -> None:
    ladder = Ladder(neighbours=[burner(used=0.02, idle=True)])
    assert ladder.tick(stolen(), Cause.NEIGHBOUR_CPU) == [SetWeight(1000, 100)]


def test_quotas_come_when_idle_neighbours_still_take_the_cpu() -> None:
    ladder = Ladder(base_weight=None, neighbours=[burner(idle=True)])
    ladder.press(3)
    assert ladder.times(SetQuota)[0] - ladder.times(SetWeight)[0] >= QUOTA_AFTER_NS


def test_idle_neighbours_stay_so_while_they_burn_and_there_is_traffic() -> None:
    ladder = Ladder(neighbours=[burner(idle=True)])
    ladder.press(0.1)
    ladder.calm(120)
    assert ladder.idled == {"b"}


def test_idle_neighbours_get_their_weight_back_when_they_are_quiet() -> None:
    ladder = Ladder(neighbours=[burner(idle=True)])
    ladder.press(0.1)
    ladder.neighbours = [burner(used=0.01, idle=True)]
    ladder.calm(RELEASE_AFTER_NS / SECOND - 0.1)
    assert ladder.idled == {"b"}
    ladder.calm(0.2)
    assert (ladder.idled, ladder.weight) == (set(), None)


def relapse(ladder: Ladder, seconds: float) -> None:
    """A neighbour that gets nothing while it is idle, and takes the CPU once it is not."""
    end_ns = ladder.now_ns + seconds * SECOND
    while ladder.now_ns < end_ns:
        if ladder.idled:
            ladder.neighbours = [burner(used=0.0, idle=True)]
            ladder.calm(0.1)
        else:
            ladder.neighbours = [burner(idle=True)]
            ladder.press(0.1)


def test_one_that_takes_the_cpu_whenever_it_is_woken_is_woken_less_and_less_often() -> None:
    ladder = Ladder()
    relapse(ladder, 700)
    woken = [at for at, action in ladder.log if action == ReleaseLimit("b", "cpu_weight", 0)]
    slept = [round((b - a) / SECOND) for a, b in pairwise(woken)]
    assert slept == [20, 40, 80, 160, 160, 160]
    raised = [action for _, action in ladder.log if isinstance(action, SetWeight) and action.weight]
    assert len(raised) <= 2 * len(woken)


def test_once_it_stays_quiet_after_a_wake_the_next_one_comes_soon_again() -> None:
    ladder = Ladder()
    relapse(ladder, 100)
    assert ladder.memory.hold.relapses == 3
    while ladder.idled:
        ladder.calm(0.1)
    ladder.calm(81)
    relapse(ladder, 0.2)
    assert ladder.idled == {"b"}
    ladder.calm(10)
    assert not ladder.idled


def test_an_engine_without_traffic_does_not_wake_what_another_one_needs_idle() -> None:
    busy = Ladder(base_weight=None, neighbours=[burner(idle=True)])
    busy.press(0.1)
    quiet = Ladder(base_weight=None, neighbours=[burner(idle=True)], now_ns=busy.now_ns)
    for _ in range(2 * NO_TRAFFIC_NS // SECOND):
        busy.calm(0.5)
        quiet.memory = replace(quiet.memory, hold=busy.memory.hold)
        quiet.now_ns = busy.now_ns
        assert quiet.tick(window(), Cause.NONE) == []
        busy.memory = replace(busy.memory, hold=quiet.memory.hold)
    assert busy.memory.hold.idle == ["b"]


def test_the_next_raise_waits_for_the_effect_of_the_first() -> None:
    ladder = Ladder()
    ladder.press(2 * WEIGHT_DWELL_NS / SECOND)
    first, second = ladder.times(SetWeight)
    assert second - first >= WEIGHT_DWELL_NS
    assert ladder.weight == 10_000


def test_the_weight_stops_at_the_policys_highest() -> None:
    ladder = Ladder(max_weight=700)
    ladder.press(3)
    assert [action for _, action in ladder.log if isinstance(action, SetWeight)] == [
        SetWeight(700, 100)
    ]


def test_a_weight_above_the_policys_highest_is_left_alone() -> None:
    ladder = Ladder(base_weight=500, max_weight=200)
    ladder.press(5)
    assert ladder.weight is None


def test_quotas_come_only_after_the_highest_weight_failed_for_a_while() -> None:
    ladder = Ladder()
    ladder.press(5)
    assert ladder.times(SetQuota)[0] - ladder.times(SetWeight)[-1] >= QUOTA_AFTER_NS


def test_quotas_come_only_after_a_while_where_the_weight_cannot_be_set() -> None:
    ladder = Ladder(base_weight=None)
    began_ns = ladder.now_ns
    ladder.press(5)
    assert not ladder.times(SetWeight)
    assert ladder.times(SetQuota)[0] - began_ns >= QUOTA_AFTER_NS


def test_trouble_after_a_long_calm_gives_the_highest_weight_its_while_again() -> None:
    ladder = Ladder()
    ladder.press(2 * WEIGHT_DWELL_NS / SECOND)
    ladder.calm(8)
    began_ns = ladder.now_ns
    ladder.press(QUOTA_AFTER_NS / SECOND / 2)
    assert not ladder.times(SetQuota)
    ladder.press(2)
    assert ladder.times(SetQuota)[0] - began_ns >= QUOTA_AFTER_NS


def test_trouble_that_comes_and_goes_is_not_helped_by_its_pauses() -> None:
    ladder = Ladder()
    for _ in range(10):
        ladder.press(0.2)
        ladder.calm(0.2)
    assert ladder.quotas


def test_a_quota_halves_what_the_neighbour_uses_and_again_after_its_dwell() -> None:
    ladder = Ladder(neighbours=[burner(used=0.8)])
    ladder.press(2 * WEIGHT_DWELL_NS / SECOND + 5)
    actions = [action for _, action in ladder.log if isinstance(action, SetQuota)]
    assert actions[:2] == [SetQuota("b", 0.4, None), SetQuota("b", 0.2, 0.4)]
    times = ladder.times(SetQuota)
    assert all(b - a >= QUOTA_DWELL_NS for a, b in pairwise(times))


def test_no_quota_is_below_the_neighbours_least() -> None:
    ladder = Ladder(neighbours=[burner(min_cores=0.3)])
    ladder.press(20)
    assert ladder.quotas == {"b": 0.3}


def test_a_quota_that_would_change_nothing_is_not_set() -> None:
    ladder = Ladder(neighbours=[burner("big", 0.9), burner("small", 0.2, min_cores=0.5)])
    ladder.press(20)
    assert list(ladder.quotas) == ["big"]


def test_a_neighbour_that_uses_no_cpu_gets_no_quota() -> None:
    ladder = Ladder(neighbours=[burner("busy", 0.9), burner("quiet", 0.01)])
    ladder.press(20)
    assert list(ladder.quotas) == ["busy"]


def test_neighbours_that_cannot_have_held_the_cpu_get_no_quota() -> None:
    # half the time was lost to others, and these used a fifth of a core
    ladder = Ladder(neighbours=[burner(used=0.2)])
    ladder.press(20)
    assert ladder.weight == 10_000
    assert not ladder.quotas


@pytest.mark.parametrize(
    "cause", [c for c in Cause if c not in OUTSIDE | {Cause.NONE, Cause.NEIGHBOUR_CPU}]
)
def test_another_cause_changes_nothing_and_ends_the_calm(cause: Cause) -> None:
    ladder = Ladder()
    ladder.until_quota()
    ladder.calm(RELAX_AFTER_NS / SECOND - 1)
    held = (ladder.weight, dict(ladder.quotas))
    assert ladder.tick(stolen(), cause) == []
    ladder.calm(2)
    assert (ladder.weight, ladder.quotas) == held


@pytest.mark.parametrize("cause", sorted(OUTSIDE))
def test_what_more_cpu_would_not_cure_limits_nobody_and_counts_as_calm(cause: Cause) -> None:
    ladder = Ladder()
    assert ladder.tick(stolen(), cause) == []
    assert (ladder.weight, ladder.quotas) == (None, {})
    ladder.until_quota()
    ladder.calm(RELAX_AFTER_NS / SECOND - 1)
    held = dict(ladder.quotas)
    ladder.tick(stolen(), cause)
    ladder.calm(2)
    assert sum(ladder.quotas.values()) > sum(held.values())


def test_on_the_way_back_quotas_grow_and_go_before_the_weight() -> None:
    ladder = Ladder()
    ladder.until_quota()
    began_ns, first = ladder.now_ns, ladder.quotas["b"]
    ladder.idle(2 * NO_TRAFFIC_NS / SECOND)
    kinds = [type(action) for at, action in ladder.log if at > began_ns]
    assert kinds[-2:] == [ReleaseLimit, ReleaseLimit]
    assert set(kinds[:-2]) == {SetQuota}
    grown = [a.cores for at, a in ladder.log if at > began_ns and isinstance(a, SetQuota)]
    assert grown == [pytest.approx(first * 1.25**i) for i in range(1, len(grown) + 1)]
    assert ladder.quotas == {}
    assert ladder.weight is None


def test_quotas_stay_until_the_calm_has_lasted() -> None:
    ladder = Ladder()
    ladder.until_quota()
    held = dict(ladder.quotas)
    ladder.idle(RELAX_AFTER_NS / SECOND - 0.1)
    assert ladder.quotas == held


def test_the_weight_stays_while_neighbours_burn_and_there_is_traffic() -> None:
    ladder = Ladder()
    ladder.press(0.1)
    ladder.calm(120)
    assert ladder.weight == 1000


def test_the_weight_goes_when_the_neighbours_are_quiet() -> None:
    ladder = Ladder()
    ladder.press(0.1)
    ladder.neighbours = [burner(used=0.01)]
    ladder.calm(RELEASE_AFTER_NS / SECOND - 0.1)
    assert ladder.weight == 1000
    ladder.calm(0.2)
    assert ladder.weight is None


def test_a_lull_in_the_load_does_not_cost_the_weight_while_neighbours_burn() -> None:
    ladder = Ladder()
    ladder.press(0.1)
    ladder.idle(NO_TRAFFIC_NS / SECOND - 1)
    ladder.calm(1)
    ladder.idle(NO_TRAFFIC_NS / SECOND - 1)
    assert ladder.weight is not None


def test_the_weight_goes_when_there_is_no_traffic_for_long() -> None:
    ladder = Ladder()
    ladder.press(0.1)
    ladder.idle(NO_TRAFFIC_NS / SECOND + 0.1)
    assert ladder.weight is None


def test_the_ladder_begins_anew_after_everything_was_given_back() -> None:
    ladder = Ladder()
    ladder.until_quota()
    ladder.idle(2 * NO_TRAFFIC_NS / SECOND)
    ladder.tick(stolen(), Cause.NEIGHBOUR_CPU)
    assert ladder.log[-1][1] == SetWeight(1000, 100)


def test_the_quota_of_a_neighbour_that_is_gone_is_released() -> None:
    ladder = Ladder(neighbours=[burner("goes", 0.9), burner("stays", 0.9)])
    ladder.until_quota()
    ladder.neighbours = [burner("stays", 0.1)]
    ladder.calm(RELAX_AFTER_NS / SECOND + 0.1)
    assert list(ladder.quotas) == ["stays"]


@pytest.mark.parametrize("period_ticks", [1, 3, 30])
def test_a_signal_that_alternates_makes_nothing_flap(period_ticks: int) -> None:
    ladder = Ladder()
    for i in range(60 * SECOND // TICK_NS):
        if i // period_ticks % 2:
            ladder.tick(BUSY, Cause.NONE)
        else:
            ladder.tick(stolen(), Cause.NEIGHBOUR_CPU)
    # two raises, and halvings down to the least: never a step back
    assert not ladder.times(ReleaseLimit)
    cores = [action.cores for _, action in ladder.log if isinstance(action, SetQuota)]
    assert cores == sorted(cores, reverse=True)
    assert len(ladder.log) < 10


def test_every_decision_says_why() -> None:
    view = CpuView(100, 10_000, CPUS, (burner(),))
    _, proposal = decide_cpu(view, CpuMemory(), stolen(share=0.25), Cause.NEIGHBOUR_CPU)
    assert proposal is not None
    assert proposal.reason == "neighbours held the CPU for 25% of the time the engine wanted it"


class AnyLoad(RuleBasedStateMachine):
    """Whatever the causes and the neighbours do."""

    def __init__(self) -> None:
        super().__init__()
        self.ladder = Ladder()

    @rule(
        cause=st.sampled_from(Cause),
        share=st.floats(0, 1),
        after_ns=st.integers(1_000_000, 2 * SECOND),
        times=st.integers(1, 20),
    )
    def tick(self, cause: Cause, share: float, after_ns: int, times: int) -> None:
        signals = BUSY if cause is Cause.NONE else stolen(share=share)
        for _ in range(times):
            self.ladder.tick(signals, cause, after_ns)

    @rule(
        neighbours=st.lists(
            st.builds(
                burner,
                name=st.sampled_from("abcd"),
                used=st.floats(0, CPUS),
                min_cores=st.floats(0.01, CPUS),
            ),
            max_size=4,
            unique_by=lambda each: each.name,
        )
    )
    def change_neighbours(self, neighbours: list[NeighbourView]) -> None:
        self.ladder.neighbours = neighbours
        # what was decided before is not judged by the neighbours of now
        self.ladder.now_ns += 1

    @rule(highest=st.integers(0, 10_000), base=st.none() | st.just(100))
    def change_what_can_be_done(self, highest: int, base: int | None) -> None:
        if self.ladder.weight is None:
            self.ladder.max_weight, self.ladder.base_weight = highest, base

    @rule()
    def nothing_for_long(self) -> None:
        for _ in range(200):
            self.ladder.tick(window(), Cause.NONE, SECOND // 2)
        assert self.ladder.weight is None
        assert self.ladder.quotas == {}
        assert self.ladder.idled == set()

    @invariant()
    def limits_are_within_their_bounds(self) -> None:
        ladder = self.ladder
        assert ladder.memory.weight == ladder.weight
        assert ladder.memory.hold.quotas == ladder.quotas
        assert set(ladder.memory.hold.idle) == ladder.idled
        if ladder.weight is not None:
            assert 100 < ladder.weight <= ladder.max_weight
        least = {each.name: each.min_cores for each in ladder.neighbours}
        for at_ns, action in ladder.log:
            if isinstance(action, SetQuota) and at_ns == ladder.now_ns:
                # one that grows may have been set while less was allowed
                grows = action.old is not None and action.cores > action.old
                assert grows or least[action.target] <= action.cores
                assert action.cores < CPUS


TestAnyLoad = AnyLoad.TestCase
TestAnyLoad.settings = settings(max_examples=60, stateful_step_count=20, deadline=None)


def test_a_weight_that_other_engines_leave_no_room_for_is_lowered() -> None:
    ladder = Ladder()
    ladder.press(1)
    assert ladder.weight == 10_000
    ladder.max_weight = 1100
    ladder.press(1)
    assert ladder.weight == 1100
    ladder.max_weight = 10_000
    ladder.press(1)
    assert ladder.weight == 10_000


def test_a_tenant_s_weight_is_its_own_and_the_ladder_goes_back_to_it() -> None:
    view = CpuView(100, 10_000, CPUS, (burner(used=0.0),), tenant_weight=120)
    now_ns = 1000 * SECOND
    memory, proposal = decide_cpu(view, CpuMemory(), replace(BUSY, now_ns=now_ns), Cause.NONE)
    assert proposal is not None
    assert proposal.actions == (SetWeight(120, 100),)
    now_ns += SECOND
    pressed = replace(stolen(), now_ns=now_ns)
    memory, proposal = decide_cpu(view, memory, pressed, Cause.NEIGHBOUR_CPU)
    assert proposal is not None
    assert proposal.actions == (SetWeight(1200, 120),)
    for after in (1, 2 * RELEASE_AFTER_NS):
        calm = replace(BUSY, now_ns=now_ns + after)
        memory, proposal = decide_cpu(view, memory, calm, Cause.NONE)
    assert proposal is not None
    assert proposal.actions == (SetWeight(120, 1200),)
    assert not memory.raised
