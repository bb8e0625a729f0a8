from typing import Final

from hypothesis import given
from hypothesis import strategies as st

from bpf.layout import Counters
from controller.rollback import LONGEST_PAUSE_S, PAUSE_S, RECENT_NS, Trial, judge

SECOND: Final = 1_000_000_000
GOOD: Final = Counters(requests=10, first_chunks=10, gaps=500, chunks=510)
LATE: Final = Counters(requests=10, first_chunks=10, ttft_over=6, gaps=500, chunks=510)
JERKY: Final = Counters(requests=10, first_chunks=10, gaps=500, gaps_over=200, chunks=510)
BURST: Final = Counters(requests=30, first_chunks=10, ttft_over=6, gaps=500, chunks=510)
NOTHING: Final = Counters()


class Course:
    """A trial over seconds that pass."""

    def __init__(self) -> None:
        self.trial = Trial()
        self.now_ns = 1000 * SECOND

    def go(self, passed: Counters, seconds: int, *, holding: bool) -> "Course":
        for _ in range(seconds):
            if self.paused:
                return self
            self.now_ns += SECOND
            self.trial = judge(self.trial, passed, 1.0, holding, self.now_ns)
        return self

    @property
    def paused(self) -> bool:
        return self.now_ns < self.trial.paused_until_ns


def test_a_point_under_which_more_are_late_is_given_back() -> None:
    course = Course().go(GOOD, 10, holding=False).go(LATE, 30, holding=True)
    assert course.paused
    assert course.trial.roll_backs == 1
    assert "late" in course.trial.reason


def test_a_point_under_which_more_gaps_are_late_is_given_back() -> None:
    assert Course().go(GOOD, 10, holding=False).go(JERKY, 30, holding=True).paused


def test_a_point_that_does_no_harm_stays() -> None:
    assert not Course().go(LATE, 10, holding=False).go(LATE, 100, holding=True).paused
    assert not Course().go(LATE, 10, holding=False).go(GOOD, 100, holding=True).paused


def test_a_higher_load_explains_being_late() -> None:
    assert not Course().go(GOOD, 10, holding=False).go(BURST, 100, holding=True).paused


def test_those_who_end_late_after_a_burst_are_not_the_points_fault() -> None:
    course = Course().go(GOOD, 10, holding=False).go(BURST, 5, holding=True)
    tail = Counters(requests=8, first_chunks=14, ttft_over=6, gaps=500, chunks=510)
    assert not course.go(tail, 30, holding=True).paused


def test_nothing_is_judged_before_both_sides_were_seen() -> None:
    assert not Course().go(LATE, 100, holding=True).paused
    assert not Course().go(GOOD, 2, holding=False).go(LATE, 100, holding=True).paused


def test_what_was_long_ago_is_not_compared_with() -> None:
    course = Course().go(GOOD, 10, holding=False)
    course.now_ns += RECENT_NS
    assert not course.go(LATE, 100, holding=True).paused


def test_without_traffic_nothing_is_learnt() -> None:
    before = Course().go(GOOD, 10, holding=False)
    assert before.go(NOTHING, 100, holding=True).trial == before.trial


def test_each_roll_back_in_a_row_pauses_longer_up_to_a_bound() -> None:
    course = Course()
    pauses = []
    for _ in range(8):
        course.go(GOOD, 10, holding=False).go(LATE, 60, holding=True)
        assert course.paused
        pauses.append((course.trial.paused_until_ns - course.now_ns) / SECOND)
        course.now_ns = course.trial.paused_until_ns
    assert pauses[:3] == [PAUSE_S, 2 * PAUSE_S, 4 * PAUSE_S]
    assert pauses[-1] == LONGEST_PAUSE_S


def test_a_long_good_time_is_forgiving() -> None:
    course = Course().go(GOOD, 10, holding=False).go(LATE, 60, holding=True)
    course.now_ns = course.trial.paused_until_ns
    course.go(GOOD, 10, holding=False).go(GOOD, 200, holding=True)
    assert course.trial.pause_s == PAUSE_S


counts = st.integers(0, 10_000)


@given(
    st.lists(
        st.tuples(
            st.builds(
                Counters,
                requests=counts,
                first_chunks=counts,
                ttft_over=counts,
                gaps=counts,
                gaps_over=counts,
                chunks=counts,
            ),
            st.booleans(),
            st.floats(0, 100),
        ),
        max_size=50,
    )
)
def test_shares_stay_shares_whatever_is_counted(
    course: list[tuple[Counters, bool, float]],
) -> None:
    trial, now_ns = Trial(), 0
    for passed, holding, passed_s in course:
        now_ns += int(passed_s * SECOND)
        trial = judge(trial, passed, passed_s, holding, now_ns)
        for side in (trial.held, trial.free):
            assert side.bad >= 0
            assert side.peak_per_s >= 0
