from hypothesis import given
from hypothesis import strategies as st

from controller.turn import A_TICK, Turn


@given(st.integers(0, 20))
def test_all_have_their_turn_once_in_so_many_ticks(count: int) -> None:
    turn, every = Turn(), list(range(count))
    for _ in range(3):
        taken = [turn.take(every) for _ in range(Turn.ticks(count))]
        assert sorted(each for some in taken for each in some) == every


@given(st.lists(st.integers(0, 9), max_size=30))
def test_no_tick_is_about_many_whoever_comes_and_goes(counts: list[int]) -> None:
    turn = Turn()
    for count in counts:
        taken = turn.take(range(count))
        assert len(taken) <= A_TICK
        assert bool(taken) == (count > 0)
