from hypothesis import given
from hypothesis import strategies as st

from agent.backoff import LAST_S, SETTLED_S, Backoff

NEW = Backoff(first_s=0.5, factor=2)


def ended(backoff: Backoff, times: int, *, ran_s: float | None) -> list[float]:
    """How long each wait is; a process that could not be started has no `ran_s`."""
    waits, now_s = [], 100.0
    for _ in range(times):
        if ran_s is not None:
            backoff = backoff.started(now_s)
            now_s += ran_s
        backoff = backoff.ended(now_s)
        waits.append(backoff.due_s - now_s)
        now_s = backoff.due_s
    return waits


def test_the_first_start_is_due_at_once() -> None:
    assert NEW.due_s <= 0


def test_one_that_ends_again_and_again_is_started_later_each_time() -> None:
    assert ended(NEW, 4, ran_s=1) == [0.5, 1, 2, 4]


def test_one_that_cannot_be_started_is_tried_later_each_time_too() -> None:
    assert ended(NEW, 4, ran_s=None) == [0.5, 1, 2, 4]


def test_one_that_ran_for_long_begins_anew() -> None:
    assert ended(NEW, 3, ran_s=SETTLED_S + 1) == [0.5, 0.5, 0.5]


@given(st.floats(0.01, LAST_S), st.floats(1, 10), st.integers(1, 50))
def test_no_wait_is_shorter_than_the_first_or_longer_than_the_last(
    first_s: float, factor: float, times: int
) -> None:
    for wait_s in ended(Backoff(first_s, factor), times, ran_s=0):
        assert first_s - 1e-6 <= wait_s <= LAST_S + 1e-6
