from hypothesis import given
from hypothesis import strategies as st

from controller.adapters.driver import Figures
from controller.adapters.shown import MOST_SAMPLES, QueueAge, Shown
from controller.engines.page import EngineNow


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=200))
def test_the_age_of_a_fifo_queue_is_exact_when_sampled_at_every_event(
    moves: list[tuple[int, int]],
) -> None:
    age, queue, total = QueueAge(), [], 0
    for now_ns, (arrive, leave) in enumerate(moves, start=1):
        queue += [now_ns] * arrive
        total += arrive
        queue = queue[leave:]
        assert age.oldest_arrival_ns(now_ns, total, len(queue)) == (queue[0] if queue else 0)


def test_a_queue_that_never_empties_keeps_bounded_memory() -> None:
    age = QueueAge()
    for now_ns in range(1, 4 * MOST_SAMPLES):
        oldest = age.oldest_arrival_ns(now_ns, now_ns, now_ns)
    assert 1 <= oldest <= 8
    assert len(age._arrived) <= MOST_SAMPLES


def test_a_total_does_not_go_back() -> None:
    shown = Shown()
    now = shown.take(EngineNow(), Figures(requests_total=10, finished_total=8), 1)
    now = shown.take(now, Figures(requests_total=9, finished_total=9), 2)
    assert (now.requests_total, now.finished_total, now.updated_ns) == (10, 9, 2)


def test_what_the_engine_does_not_tell_is_zero() -> None:
    assert Shown().take(EngineNow(), Figures(), 7) == EngineNow(updated_ns=7)
