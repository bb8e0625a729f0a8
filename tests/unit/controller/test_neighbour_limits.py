import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.actions import Action, Freeze, ReleaseLimit, SetQuota, SetWeight, Thaw
from controller.attribution import Cause
from controller.cpu_limits import CpuMemory, CpuView, decide_cpu
from controller.neighbour_limits import (
    MOST_FROZEN,
    QUOTA_DWELL_NS,
    RELAX_AFTER_NS,
    Frozen,
    Hold,
    NeighbourView,
    relax,
    tighten,
    weigh_tenants,
)

from .situations import MS, SECOND, stolen, window

CPUS = 2
TICK_NS = 17 * MS
A = NeighbourView("a", 0.4, 0.4, 0.7, 200, 50)
B = NeighbourView("b", 0.4, 0.4, 0.25, 800, 200)
NEVER = NeighbourView("never", 0.4, 0.4)


@dataclass(slots=True)
class Pressed:
    """Neighbours at their floors, and an engine that goes on suffering."""

    neighbours: Sequence[NeighbourView]
    hold: Hold = field(default_factory=Hold)
    now_ns: int = 1000 * SECOND
    freezes: list[tuple[int, Freeze]] = field(default_factory=list)

    def run(self, seconds: float, waited_cores: float = 0.5) -> None:
        end_ns = self.now_ns + seconds * SECOND
        while self.now_ns < end_ns:
            self.now_ns += TICK_NS
            waited_ns = int(waited_cores * 500 * MS)
            self.hold, actions = tighten(
                self.neighbours, CPUS, self.hold, waited_ns, 500 * MS, self.now_ns
            )
            self.freezes += [(self.now_ns, a) for a in actions if isinstance(a, Freeze)]

    def of(self, name: str) -> list[tuple[int, int]]:
        """Beginning and length of each freeze of one neighbour, in ns."""
        return [(at, f.for_ms * MS) for at, f in self.freezes if f.target == name]


def test_only_what_its_class_lets_be_frozen_is_and_for_no_longer() -> None:
    pressed = Pressed([A, B, NEVER])
    pressed.run(5, waited_cores=2)
    assert {f.target for _, f in pressed.freezes} == {"a", "b"}
    assert {f.for_ms for _, f in pressed.freezes if f.target == "a"} == {200}
    assert {f.for_ms for _, f in pressed.freezes if f.target == "b"} == {800}


@pytest.mark.parametrize("each", [A, B, replace(A, retry_ms=1, freeze_ms=5000)])
def test_between_two_freezes_it_runs_for_its_time_and_a_quarter_of_the_freeze(
    each: NeighbourView,
) -> None:
    pressed = Pressed([each])
    pressed.run(60)
    freezes = pressed.of(each.name)
    assert len(freezes) > 5
    for (at, length), (after, _) in itertools.pairwise(freezes):
        assert after - (at + length) >= max(each.retry_ms * MS, length // 4)
    frozen_ns = sum(length for _, length in freezes[:-1])
    assert frozen_ns <= MOST_FROZEN * (freezes[-1][0] - freezes[0][0])


def test_the_lowest_class_is_frozen_first_and_no_more_than_the_engine_waited_for() -> None:
    pressed = Pressed([A, B])
    pressed.run(0.05, waited_cores=0.3)
    assert [f.target for _, f in pressed.freezes] == ["b"]


def test_freezes_come_only_when_no_quota_can_be_cut_for_a_while() -> None:
    pressed = Pressed([replace(A, min_cores=0.05)], hold=Hold())
    pressed.neighbours = [replace(A, used_cores=0.8, min_cores=0.05)]
    pressed.run(0.5)
    assert pressed.hold.quotas
    assert not pressed.freezes


def test_a_class_s_share_bounds_the_first_quota() -> None:
    hold, actions = tighten(
        [NeighbourView("b", 1.8, 0.05, 0.25)], CPUS, Hold(), SECOND, 500 * MS, SECOND
    )
    assert actions == (SetQuota("b", 0.5, None),)
    assert hold.quotas == {"b": 0.5}


def test_calm_ends_freezes_one_by_one_the_most_deserving_first() -> None:
    now_ns = 1000 * SECOND
    hold = Hold(frozen={n: Frozen(now_ns, now_ns + SECOND) for n in ("a", "b")})
    neighbours = [replace(A, held_back_s=1.0), replace(B, held_back_s=9.0)]
    thawed = []
    for _ in range(3):
        now_ns += TICK_NS
        hold, actions, _ = relax(neighbours, CPUS, hold, 300 * MS, now_ns)
        thawed += [a.target for a in actions if isinstance(a, Thaw)]
    assert thawed == ["b", "a"]


def test_back_fill_gives_the_most_deserving_most() -> None:
    hold = Hold(quotas={"a": 0.2, "b": 0.2})
    neighbours = [
        replace(A, used_cores=0.2, held_back_s=1.0),
        replace(B, used_cores=0.2, held_back_s=9.0),
    ]
    hold, actions, _ = relax(neighbours, CPUS, hold, RELAX_AFTER_NS, 1000 * SECOND)
    assert all(isinstance(action, SetQuota) for action in actions)
    assert hold.quotas["b"] > hold.quotas["a"] > 0.2


class Two:
    """Two engines beside the same neighbour, deciding in turn as the loop has them do."""

    def __init__(self, used: float = 0.9) -> None:
        self.views = [CpuView(None, 0, CPUS, (NeighbourView("n", used, 0.05),))] * 2
        self.memories = [CpuMemory(), CpuMemory()]
        self.hold = Hold()
        self.now_ns = 1000 * SECOND
        self.log: list[tuple[int, Action]] = []

    def run(self, seconds: float, *causes: Cause) -> None:
        end_ns = self.now_ns + seconds * SECOND
        while self.now_ns < end_ns:
            self.now_ns += TICK_NS
            for at, cause in enumerate(causes):
                calm = window(self.now_ns, run_ns=SECOND, chunks=50, requests=2)
                signals = stolen(self.now_ns) if cause is Cause.NEIGHBOUR_CPU else calm
                memory = replace(self.memories[at], hold=self.hold)
                self.memories[at], proposal = decide_cpu(self.views[at], memory, signals, cause)
                self.hold = self.memories[at].hold
                if proposal is not None:
                    self.log += [(self.now_ns, action) for action in proposal.actions]


def test_two_engines_in_need_cut_a_neighbour_in_the_rhythm_of_one() -> None:
    two = Two()
    two.run(4, Cause.NEIGHBOUR_CPU, Cause.NEIGHBOUR_CPU)
    times = [at for at, action in two.log if isinstance(action, SetQuota)]
    assert len(times) >= 3
    assert all(b - a >= QUOTA_DWELL_NS for a, b in itertools.pairwise(times))


def test_one_engine_s_calm_lets_nothing_go_while_another_is_in_need() -> None:
    two = Two()
    two.run(3, Cause.NEIGHBOUR_CPU, Cause.NEIGHBOUR_CPU)
    held = two.hold.quotas["n"]
    two.run(20, Cause.NONE, Cause.NEIGHBOUR_CPU)
    assert two.hold.quotas["n"] <= held
    assert not [action for _, action in two.log if isinstance(action, ReleaseLimit)]


def test_once_both_are_calm_it_is_let_go_once() -> None:
    two = Two()
    two.run(3, Cause.NEIGHBOUR_CPU, Cause.NEIGHBOUR_CPU)
    two.run(40, Cause.NONE, Cause.NONE)
    assert not two.hold.quotas
    assert len([a for _, a in two.log if isinstance(a, ReleaseLimit)]) == 1


def test_a_tenant_has_its_weight_and_a_little_more_or_less_changes_nothing() -> None:
    hold, actions = weigh_tenants([replace(A, weight=50)], Hold(), SECOND)
    assert actions == (SetWeight(50, None, "a"),)
    hold, actions = weigh_tenants([replace(A, weight=48)], hold, 3 * SECOND)
    assert actions == ()
    hold, actions = weigh_tenants([replace(A, weight=35)], hold, 5 * SECOND)
    assert actions == (SetWeight(35, 50, "a"),)
    _, actions = weigh_tenants([A], hold, 7 * SECOND)
    assert actions == (ReleaseLimit("a", "cpu_weight", 35),)


@given(st.integers(1, 5000), st.integers(1, 60_000))
def test_no_class_allows_more_standing_still_than_the_bound(freeze_ms: int, retry_ms: int) -> None:
    length = freeze_ms * MS
    frozen = Frozen(0, length)
    assert length / frozen.may_again_ns(retry_ms) <= MOST_FROZEN + 1e-6
