import json

from hypothesis import given
from hypothesis import strategies as st

from bpf.histogram import SLOTS, slot_of
from controller.timing import Timing, histogram_of


def timing_of(durations: list[int]) -> Timing:
    timing = Timing()
    for duration_ns in durations:
        timing.add(duration_ns)
    return timing


def test_without_durations_the_message_is_empty() -> None:
    assert Timing().as_message() == {"slots": {}, "sum_ns": 0}
    assert sum(histogram_of(Timing().as_message()).slots) == 0


@given(st.lists(st.integers(0, 10**12)))
def test_every_duration_is_counted_in_its_slot_over_the_wire(durations: list[int]) -> None:
    message = json.loads(json.dumps(timing_of(durations).as_message()))
    found = histogram_of(message)
    counts = [0] * SLOTS
    for duration_ns in durations:
        counts[slot_of(duration_ns)] += 1
    assert list(found.slots) == counts
    assert found.sum_ns == sum(durations)


def test_a_clock_that_went_back_counts_as_nothing() -> None:
    assert timing_of([-5]).as_message() == timing_of([0]).as_message()
