from dataclasses import replace

import pytest

from controller.actions import ReleaseLimit, SetMemoryHigh
from controller.memory_sentinel import (
    CAP_DWELL_NS,
    OVER_AFTER_NS,
    RAISE_AFTER_NS,
    Bound,
    Cappable,
    MemoryView,
    NeighbourMemory,
    SentinelMemory,
    danger_of,
    decide_memory,
)

MIB = 1 << 20
SECOND = 1_000_000_000
NOW = 100 * SECOND

ROOMY = Bound("/engine", 1000 * MIB, 600 * MIB)
FILLING = Bound("/engine", 1000 * MIB, 200 * MIB, growth=50 * MIB)
MACHINE = Bound("", 1000 * MIB, 200 * MIB, growth=50 * MIB)
HOG = NeighbourMemory("batch", "/batch", 300 * MIB, 64 * MIB)
ENGINE = Cappable(value=64, least=1, running=20)


def view(*bounds: Bound, **more: object) -> MemoryView:
    return replace(MemoryView(bounds), **more)  # type: ignore[arg-type]


def test_memory_that_lasts_is_no_danger() -> None:
    assert danger_of(view(ROOMY)) is None
    assert danger_of(view()) is None


def test_growth_with_plenty_left_is_no_danger() -> None:
    assert danger_of(view(replace(ROOMY, growth=61 * MIB))) is None


def test_what_will_be_used_up_in_ten_seconds_is_one() -> None:
    danger = danger_of(view(ROOMY, FILLING))
    assert danger is not None
    assert danger.bound is FILLING
    assert "200 MiB of 1000 MiB in cgroup /engine are left and last 4.0 s" in danger.why


def test_an_engine_close_under_its_limit_that_takes_no_more_is_in_none() -> None:
    assert danger_of(view(Bound("/engine", 1000 * MIB, 20 * MIB))) is None
    slowly = Bound("/engine", 1000 * MIB, 20 * MIB, growth=1 * MIB)
    assert danger_of(view(slowly)) is not None


def test_a_sudden_rise_is_one_however_much_is_left() -> None:
    assert danger_of(view(replace(ROOMY, sudden=400 * MIB))) is not None
    assert danger_of(view(replace(ROOMY, sudden=200 * MIB))) is None


@pytest.mark.parametrize(
    ("most", "name"), [(5, "low_events"), (2, "high_events"), (0.1, "full"), (0.4, "some")]
)
def test_what_the_kernel_says_is_a_danger_above_its_threshold(most: float, name: str) -> None:
    assert danger_of(view(ROOMY, **{name: most})) is None
    assert danger_of(view(ROOMY, **{name: most * 1.5})) is not None


def test_neighbours_in_the_same_memory_are_held_to_what_they_have_first() -> None:
    memory, proposal = decide_memory(
        view(MACHINE, neighbours=(HOG,)), SentinelMemory(), NOW, ENGINE
    )
    assert proposal is not None
    assert proposal.actions == (SetMemoryHigh("batch", 303 * MIB, None),)
    assert memory.cap is None


def test_when_that_does_not_help_the_engine_takes_no_more_in() -> None:
    seen = view(MACHINE, neighbours=(HOG,))
    memory, _ = decide_memory(seen, SentinelMemory(), NOW, ENGINE)
    memory, _ = decide_memory(seen, memory, NOW + SECOND // 2, ENGINE)
    assert (memory.cap, memory.saved) == (20, 64)


def test_what_a_held_neighbour_gives_back_it_does_not_get_again() -> None:
    machine = replace(MACHINE, limit=64 * HOG.least, left=64 * HOG.least // 5, growth=500 * MIB)
    memory, _ = decide_memory(view(machine, neighbours=(HOG,)), SentinelMemory(), NOW, None)
    for used, high in ((303, None), (280, None), (200, 202), (203, None), (10, 64)):
        seen = view(machine, neighbours=(replace(HOG, used=used * MIB),))
        memory, proposal = decide_memory(seen, memory, NOW, None)
        asked = [each.high for each in proposal.actions] if proposal else []  # type: ignore[union-attr]
        assert asked == ([high * MIB] if high is not None else [])


@pytest.mark.parametrize(("limit", "floor"), [(100_000 * MIB, HOG.least), (512 * MIB, 8 * MIB)])
def test_a_neighbour_that_has_no_more_than_its_floor_is_not_held(limit: int, floor: int) -> None:
    """On a small machine the floor is a 64th of it: so many neighbours there may be."""
    short = replace(MACHINE, limit=limit, left=limit // 10, growth=limit / 20)
    held = []
    for used in (floor, floor + MIB):
        small = replace(HOG, used=used)
        seen = view(short, neighbours=(small,))
        held.append(decide_memory(seen, SentinelMemory(), NOW, None)[1] is not None)
    assert held == [False, True]


def test_neighbours_elsewhere_are_left_alone_and_the_engine_is_capped_at_once() -> None:
    memory, proposal = decide_memory(
        view(FILLING, neighbours=(HOG,)), SentinelMemory(), NOW, ENGINE
    )
    assert proposal is None
    assert memory.cap == 20


def test_a_neighbour_below_the_same_limit_is_in_the_same_memory() -> None:
    pod = replace(FILLING, path="/pods/a")
    sidecar = replace(HOG, cgroup="/pods/a/sidecar")
    other = replace(HOG, name="other", cgroup="/pods/ab")
    _, proposal = decide_memory(view(pod, neighbours=(sidecar, other)), SentinelMemory(), NOW, None)
    assert proposal is not None
    assert [each.target for each in proposal.actions] == ["batch"]  # type: ignore[union-attr]


def test_more_run_than_there_is_memory_for_the_cap_says_how_many_may() -> None:
    # 200 MiB left, 50 are kept free, and each of ten more takes 60
    small = replace(FILLING, left=20 * MIB)
    memory, _ = decide_memory(view(small, per_request=6.0 * MIB), SentinelMemory(), NOW, ENGINE)
    assert memory.cap == 15


def test_a_danger_that_goes_on_cuts_further_to_the_floor_but_not_while_requests_still_end() -> None:
    memory, _ = decide_memory(view(FILLING), SentinelMemory(), NOW, ENGINE)
    still = replace(ENGINE, running=30)
    unchanged, _ = decide_memory(view(FILLING), memory, NOW + CAP_DWELL_NS, still)
    assert unchanged.cap == 20
    now = NOW
    caps = []
    for _ in range(20):
        now += CAP_DWELL_NS
        running = int(memory.cap or 0)
        memory, _ = decide_memory(view(FILLING), memory, now, replace(ENGINE, running=running))
        caps.append(memory.cap)
    assert caps[0] == 15
    assert caps[-1] == ENGINE.least
    assert memory.saved == 64


def test_pressure_without_growth_stops_more_from_coming_and_cuts_nobody() -> None:
    memory, now = SentinelMemory(), NOW
    for _ in range(20):
        memory, _ = decide_memory(view(ROOMY, full=0.2), memory, now, ENGINE)
        now += CAP_DWELL_NS
    assert memory.cap == 20


def test_after_ten_calm_seconds_the_cap_is_back_at_what_it_was_and_neighbours_are_free() -> None:
    filling = replace(FILLING, path="")
    seen = view(filling, neighbours=(HOG,))
    memory, _ = decide_memory(seen, SentinelMemory(), NOW, ENGINE)
    memory, _ = decide_memory(seen, memory, NOW + SECOND, ENGINE)
    calm = view(ROOMY, neighbours=(HOG,))
    memory, _ = decide_memory(calm, memory, NOW + 2 * SECOND, ENGINE)
    memory, proposal = decide_memory(calm, memory, NOW + 2 * SECOND + OVER_AFTER_NS - 1, ENGINE)
    assert proposal is None
    assert memory.restore is None
    memory, proposal = decide_memory(calm, memory, NOW + 2 * SECOND + OVER_AFTER_NS, ENGINE)
    assert proposal is not None
    assert isinstance(proposal.actions[0], ReleaseLimit)
    assert (memory.restore, memory.cap, memory.saved, memory.holds) == (64, None, None, {})
    assert decide_memory(calm, memory, NOW + 3 * OVER_AFTER_NS, ENGINE) == (
        SentinelMemory(capped_ns=memory.capped_ns),
        None,
    )


def test_what_is_put_back_has_to_fit() -> None:
    seen = view(FILLING, per_request=10.0 * MIB)
    memory, _ = decide_memory(seen, SentinelMemory(), NOW, ENGINE)
    assert memory.cap == 20
    # 150 more MiB can be planned with: room for fifteen more than the twenty that run, not for 64
    calm = view(replace(FILLING, growth=0.0), per_request=10.0 * MIB)
    now = NOW
    for _ in range(200):
        now += SECOND // 4
        memory, _ = decide_memory(calm, memory, now, ENGINE)
    assert memory.cap == 35
    assert memory.restore is None


def test_a_cap_is_raised_in_steps_and_not_before_three_calm_seconds() -> None:
    memory, _ = decide_memory(view(FILLING, per_request=1.0), SentinelMemory(), NOW, ENGINE)
    calm = view(replace(FILLING, growth=0.0), per_request=1.0)
    memory, _ = decide_memory(calm, memory, NOW, ENGINE)
    early, _ = decide_memory(calm, memory, NOW + RAISE_AFTER_NS - 1, ENGINE)
    assert early.cap == 20
    raised, _ = decide_memory(calm, memory, NOW + RAISE_AFTER_NS, ENGINE)
    assert raised.cap == 25


def test_a_hold_that_another_engine_has_too_stays() -> None:
    memory, _ = decide_memory(view(MACHINE, neighbours=(HOG,)), SentinelMemory(), NOW, None)
    calm = view(ROOMY, neighbours=(replace(HOG, shared=True),))
    memory, _ = decide_memory(calm, memory, NOW, None)
    memory, proposal = decide_memory(calm, memory, NOW + OVER_AFTER_NS, None)
    assert (memory.holds, proposal) == ({}, None)


def test_an_engine_that_can_no_longer_be_set_has_no_cap() -> None:
    memory, _ = decide_memory(view(FILLING), SentinelMemory(), NOW, ENGINE)
    memory, _ = decide_memory(view(FILLING), memory, NOW, None)
    assert (memory.cap, memory.saved, memory.restore) == (None, None, None)


def test_an_engine_that_does_not_say_how_many_run_is_cut_by_a_quarter() -> None:
    memory, _ = decide_memory(view(FILLING), SentinelMemory(), NOW, replace(ENGINE, running=None))
    assert memory.cap == 48
