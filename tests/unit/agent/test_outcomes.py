from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from agent.history import Moment
from agent.outcomes import AFTER_NS, MAX_OPEN, Outcomes, Span, outcome_of, span_between
from bpf.layout import Counters

SECOND = 1_000_000_000
GOOD = Span(5.0, 10, 110, 100, 0, 10, 0, 10, 10, 0)


class Lab:
    """An engine whose counters the test sets, and the outcomes written."""

    def __init__(self) -> None:
        self.now = Moment(100 * SECOND, Counters())
        self.written: list[tuple[int, Mapping[str, Any]]] = []
        self.outcomes = Outcomes(lambda tag, outcome: self.written.append((tag, outcome)))

    def passes(self, seconds: float, good: int = 0, **growth: int) -> Moment:
        counters = self.now.counters._replace(
            **{name: getattr(self.now.counters, name) + by for name, by in growth.items()},
        )
        self.now = Moment(
            self.now.at_ns + int(seconds * SECOND),
            counters,
            ended=self.now.ended + growth.get("ends_complete", 0),
            good=self.now.good + good,
        )
        self.outcomes.settle(self.now.at_ns, lambda _: self.now)
        return self.now


def test_a_decision_gets_what_happened_in_the_seconds_before_and_after_it() -> None:
    lab = Lab()
    earlier = lab.now
    lab.passes(5, requests=10, first_chunks=10, chunks=60, gaps=50, gaps_over=10, ends_complete=8)
    lab.outcomes.decided(7, "chat", lab.now, earlier)
    lab.passes(4, requests=8, first_chunks=8, ttft_over=2, chunks=58, gaps=50, gaps_over=0)
    assert lab.written == []
    lab.passes(1.1, good=3, ends_complete=4)
    ((tag, outcome),) = lab.written
    assert tag == 7
    assert outcome["score"] == pytest.approx(2 / 8 - 10 / 50)
    assert outcome["verdict"] == "worse"
    assert outcome["before"]["gaps_over"] == 10
    assert outcome["after"]["ttft_over"] == 2
    assert outcome["after"]["goodput_per_s"] == pytest.approx(3 / 5.1)
    assert outcome["after"]["requests_per_s"] == pytest.approx(8 / 5.1)


@pytest.mark.parametrize(
    ("gaps_over", "verdict"), [(0, "better"), (191, "same"), (209, "same"), (400, "worse")]
)
def test_a_change_of_the_violation_share_is_put_in_a_word(gaps_over: int, verdict: str) -> None:
    before, after = (replace(GOOD, gaps=1000, gaps_over=over) for over in (200, gaps_over))
    assert outcome_of(before, after, 0)["verdict"] == verdict


def test_streams_that_get_nothing_at_all_are_as_bad_as_it_gets() -> None:
    stopped = Span(5.0, 3, 0, 0, 0, 0, 0, 0, 0, 3)
    outcome = outcome_of(GOOD, stopped, 0)
    assert (outcome["verdict"], outcome["score"]) == ("worse", 1.0)


def test_no_traffic_says_neither_good_nor_bad() -> None:
    idle = Span(5.0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
    outcome = outcome_of(GOOD, idle, 0)
    assert (outcome["verdict"], outcome["score"]) == ("unknown", None)
    assert outcome_of(idle, GOOD, 0)["verdict"] == "unknown"
    assert outcome_of(None, GOOD, 0)["verdict"] == "unknown"


@pytest.mark.parametrize(("requests", "changed"), [(10, False), (14, False), (16, True), (3, True)])
def test_a_load_that_changed_is_told(requests: int, changed: bool) -> None:
    assert outcome_of(GOOD, replace(GOOD, requests=requests), 0)["load_changed"] is changed


def test_other_decisions_in_the_seconds_after_are_counted() -> None:
    lab = Lab()
    lab.outcomes.decided(1, "chat", lab.now, None)
    lab.passes(1)
    lab.outcomes.decided(2, "chat", lab.now, None)
    lab.outcomes.decided(3, "other", lab.now, None)
    lab.passes(4.5)
    lab.passes(1)
    assert [(tag, outcome["other_decisions"]) for tag, outcome in lab.written] == [
        (1, 1),
        (2, 0),
        (3, 0),
    ]


def test_what_came_before_is_unknown_right_after_the_start() -> None:
    lab = Lab()
    earlier = lab.now
    lab.passes(0.5, chunks=5)
    lab.outcomes.decided(1, "chat", lab.now, earlier)
    lab.passes(5, chunks=5)
    ((_, outcome),) = lab.written
    assert outcome["before"] is None


def test_an_engine_that_began_anew_gets_no_outcome() -> None:
    lab = Lab()
    lab.passes(5, chunks=50)
    lab.outcomes.decided(1, "chat", lab.now, None)
    lab.passes(5, chunks=-20)
    assert lab.written == []
    assert span_between(lab.now, lab.now) is None


def test_what_was_undone_gets_no_outcome() -> None:
    lab = Lab()
    lab.outcomes.decided(1, "chat", lab.now, None)
    lab.outcomes.forget()
    lab.passes(6, chunks=5)
    assert lab.written == []


def test_only_so_many_wait_for_their_outcome() -> None:
    lab = Lab()
    for tag in range(MAX_OPEN + 10):
        lab.outcomes.decided(tag, "chat", lab.now, None)
    lab.passes(AFTER_NS / SECOND, chunks=5)
    assert [tag for tag, _ in lab.written] == list(range(10, MAX_OPEN + 10))
