from dataclasses import dataclass, replace

from controller.engines.page import EngineNow
from controller.figures import ANEW_NS, CALM_NS, STALE_NS, STUCK_NS, Figures

from .situations import MS, SECOND

TICK_NS = 20 * MS
RENEWED_NS = 160 * MS


@dataclass
class Link:
    """What an engine's link shows; the test writes it."""

    now: EngineNow | None
    nonsense: str = ""
    writes: int = 0
    can_set: bool = True


class Course:
    """Figures over time: each tick the engine is asked what it does."""

    def __init__(self, now: EngineNow | None) -> None:
        self.figures, self.link = Figures(), Link(now)
        self.now_ns = 1000 * SECOND
        self.told: list[tuple[str, str]] = []

    def run(self, for_ns: int, moves: bool = True, steps: bool = False, held: bool = False) -> None:
        """As long as that: the page is rewritten, steps end, a lease is renewed."""
        end_ns = self.now_ns + for_ns
        while self.now_ns < end_ns:
            self.now_ns += TICK_NS
            renewed = held and self.now_ns % RENEWED_NS < TICK_NS
            self.link.writes += renewed
            now = self.link.now
            if now is not None and (moves and (renewed or steps)):
                self.link.now = replace(now, updated_ns=self.now_ns, steps=now.steps + steps)
            self.taken = self.figures.take(self.now_ns, self.link)
            self.told += [(n.kind, n.detail) for n in self.figures.take_notices()]

    @property
    def kinds(self) -> list[str]:
        return [kind for kind, _ in self.told]


IDLE = EngineNow(updated_ns=1, steps=9)
BUSY = EngineNow(updated_ns=1, steps=9, running=2, waiting=1)


def test_an_idle_engine_that_nobody_sets_may_show_the_same_for_ever() -> None:
    course = Course(IDLE)
    course.run(600 * SECOND)
    assert course.taken == IDLE
    assert course.told == []


def test_a_page_that_shows_no_renewal_of_the_lease_stands_still() -> None:
    course = Course(IDLE)
    course.run(5 * SECOND, held=True)
    assert course.taken is not None
    course.run(STALE_NS, moves=False, held=True)
    assert course.told == []
    course.run(2 * RENEWED_NS + 2 * TICK_NS, moves=False, held=True)
    assert course.taken is None
    assert course.kinds == ["stats_stale"]
    assert "though knobs were set since" in course.told[0][1]


def test_the_last_set_before_a_release_is_owed_nothing_more() -> None:
    course = Course(IDLE)
    course.run(5 * SECOND, held=True)
    course.link.writes += 1
    course.run(60 * SECOND)
    assert course.told == []


def test_a_long_step_is_no_doubt_but_none_for_half_a_minute_is() -> None:
    course = Course(BUSY)
    course.run(STUCK_NS - SECOND, held=True)
    assert course.told == []
    course.run(2 * SECOND, held=True)
    assert course.told == [("stats_stale", "no step for 30 s, with 2 running and 1 waiting")]


def test_an_engine_that_counts_no_steps_is_not_late_with_one() -> None:
    course = Course(replace(BUSY, steps=0))
    course.run(10 * STUCK_NS, held=True)
    assert course.told == []


def test_a_page_that_is_never_whole_is_told_of() -> None:
    course = Course(None)
    course.run(STALE_NS + 2 * TICK_NS)
    assert course.kinds == ["stats_stale"]
    assert "could not be read" in course.told[0][1]


def test_without_a_connection_nothing_is_in_doubt() -> None:
    course = Course(None)
    course.link.can_set = False
    course.run(10 * STALE_NS)
    assert course.told == []


def test_nonsense_counts_from_the_first_and_until_none_came_for_a_while() -> None:
    course = Course(BUSY)
    course.run(SECOND, steps=True)
    course.link.nonsense = "running is 9"
    course.run(TICK_NS, steps=True)
    course.link.nonsense = ""
    course.run(CALM_NS - 2 * TICK_NS, steps=True)
    assert course.taken is None
    assert course.told == [("stats_nonsense", "running is 9")]
    course.run(4 * TICK_NS, steps=True)
    assert course.taken is not None
    assert course.told[1:] == [("stats_back", "good again, after 5 s")]


def test_figures_that_are_good_now_and_then_stay_in_doubt() -> None:
    course = Course(BUSY)
    for _ in range(60):
        course.link.nonsense = "running is 9"
        course.run(TICK_NS)
        course.link.nonsense = ""
        course.run(SECOND, steps=True)
    assert course.kinds == ["stats_nonsense"]


def test_while_in_doubt_the_page_is_opened_anew_now_and_then() -> None:
    course = Course(BUSY)
    assert not course.figures.wants_anew(course.now_ns)
    course.link.nonsense = "running is 9"
    asked = 0
    for _ in range(60 * SECOND // TICK_NS):
        course.run(TICK_NS)
        asked += course.figures.wants_anew(course.now_ns)
    assert asked == 60 * SECOND // ANEW_NS - 1


def test_the_time_of_doubt_counts_from_its_beginning() -> None:
    course = Course(BUSY)
    assert course.figures.doubted_ns(course.now_ns) == 0
    course.link.nonsense = "running is 9"
    course.run(TICK_NS)
    began_ns = course.now_ns
    course.run(7 * SECOND)
    assert course.figures.doubted_ns(course.now_ns) == course.now_ns - began_ns


def test_after_a_pause_of_ours_nothing_is_late_yet() -> None:
    course = Course(BUSY)
    course.run(SECOND, held=True, steps=True)
    course.run(STALE_NS - SECOND, held=True, moves=False)
    course.now_ns += 600 * SECOND
    course.figures.resume(course.now_ns)
    course.run(STALE_NS - SECOND, held=True, moves=False)
    assert course.told == []
