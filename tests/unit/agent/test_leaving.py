from agent.discovery import Found, Surroundings
from agent.leaving import Leaving

THERE = Found("chat", frozenset([7]), "/chat")
GONE = Found("chat", detail="no process in cgroup /chat")


def look(leaving: Leaving, found: Found, under_way: int) -> Found:
    (engine,) = leaving.hold(Surroundings((found,)), lambda _: under_way).engines
    return engine


def test_an_engine_that_leaves_streams_behind_is_held_for_one_look() -> None:
    leaving = Leaving()
    assert look(leaving, THERE, 3) is THERE
    assert look(leaving, GONE, 3) is THERE
    assert look(leaving, GONE, 3) is GONE
    assert look(leaving, GONE, 3) is GONE


def test_one_without_streams_is_gone_at_once() -> None:
    leaving = Leaving()
    look(leaving, THERE, 0)
    assert look(leaving, GONE, 0) is GONE


def test_one_that_was_never_there_is_not_held() -> None:
    assert look(Leaving(), GONE, 3) is GONE


def test_one_that_comes_back_is_held_again_when_it_leaves_again() -> None:
    leaving = Leaving()
    for _ in range(2):
        assert look(leaving, THERE, 1) is THERE
        assert look(leaving, GONE, 1) is THERE
        assert look(leaving, GONE, 0) is GONE


def test_neighbours_are_as_they_were_found() -> None:
    neighbour = Found("batch")
    assert Leaving().hold(Surroundings((), (neighbour,)), lambda _: 1).neighbours == (neighbour,)
