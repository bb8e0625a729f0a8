from collections import Counter

import pytest

from controller.neighbour_watch import MOST_A_TICK, NeighbourWatch, in_turn
from controller.wire import NeighbourTarget

from .situations import MS, SECOND


def watches(count: int) -> list[NeighbourWatch]:
    targets = (NeighbourTarget(f"n{n}", n, f"/n{n}", True, 0.1) for n in range(1, count + 1))
    return [NeighbourWatch(target) for target in targets]


@pytest.mark.parametrize("count", [0, 1, MOST_A_TICK])
def test_few_neighbours_are_all_read_at_every_tick(count: int) -> None:
    made = watches(count)
    assert all(in_turn(made, turn) == made for turn in range(3))


@pytest.mark.parametrize("count", [MOST_A_TICK + 1, 200, 1000, 1024])
def test_many_take_turns_and_each_gets_as_many(count: int) -> None:
    made, turns = watches(count), 3 * count
    read = [in_turn(made, turn) for turn in range(turns)]
    assert {len(each) for each in read} == {MOST_A_TICK}
    times = Counter(watch.target.name for each in read for watch in each)
    assert set(times.values()) == {3 * MOST_A_TICK}


def test_none_waits_longer_than_a_round() -> None:
    made = watches(1000)
    at: dict[str, int] = {}
    for turn in range(100):
        for watch in in_turn(made, turn):
            assert turn - at.get(watch.target.name, turn) <= 1000 // MOST_A_TICK + 1
            at[watch.target.name] = turn


def test_what_it_uses_is_the_same_however_often_it_is_read() -> None:
    (often,), (seldom,) = watches(1), watches(1)
    for tick in range(240):
        now_ns = 100 * SECOND + tick * 17 * MS
        often.take(now_ns, tick * 17 * MS // 2, held=False)
        if tick % 16 == 0:
            seldom.take(now_ns, tick * 17 * MS // 2, held=False)
    assert often.used_cores == pytest.approx(0.5)
    assert seldom.used_cores == pytest.approx(0.5)


def test_the_view_follows_what_is_read() -> None:
    (watch,) = watches(1)
    watch.take(100 * SECOND, 0, held=False)
    assert watch.view().used_cores == 0
    watch.take(101 * SECOND, SECOND // 4, held=False)
    assert watch.view().used_cores == pytest.approx(0.25)
    assert watch.view(7).weight == 7
