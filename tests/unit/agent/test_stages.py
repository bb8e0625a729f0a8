from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.correlation import Series
from agent.sockets import EngineSockets
from agent.stages import (
    FLOORS,
    SAMPLE_NS,
    Flow,
    Load,
    Sample,
    Stage,
    StageReport,
    alarms,
    analyse,
    check_law,
    flow_of,
    predicted,
    rate,
    stage_reports,
)
from agent.stages_answer import stages_answer

steps = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), min_size=1, max_size=60)


def samples(n: int = 40, **fields: Any) -> list[Sample]:
    """A field is a value, or a function of the sample's number."""

    def at(i: int) -> dict[str, Any]:
        return {name: each(i) if callable(each) else each for name, each in fields.items()}

    return [
        Sample(**{"index": i, "at_ns": i * SAMPLE_NS, "looked": True} | at(i)) for i in range(n)
    ]


def report(found: Sequence[Sample], stage: Stage) -> StageReport:
    return next(each for each in stage_reports(found) if each.stage is stage)


def flow(queue: Series, entered: Series, left: Series) -> Flow:
    return Flow(queue, entered, left, [None] * len(queue))


@given(st.integers(0, 1000), st.integers(0, 1000), st.integers(0, 1000))
def test_a_queue_never_holds_less_than_nothing_and_never_more_than_came(
    queue: int, entered: int, left: int
) -> None:
    after = predicted(queue, entered, left)
    assert 0 <= after <= queue + entered
    if left <= queue + entered:
        assert after == queue + entered - left


@given(steps)
def test_a_queue_that_obeys_the_law_is_never_off(moves: list[tuple[int, int]]) -> None:
    queue, entered, left = [0.0], [0.0], [0.0]
    for came, wanted in moves:
        went = min(wanted, queue[-1] + came)
        queue.append(queue[-1] + came - went)
        entered.append(entered[-1] + came)
        left.append(left[-1] + went)
    law = check_law(flow(queue, entered, left))
    assert law is not None
    assert (law.steps, law.error_mean, law.error_max) == (len(moves), 0, 0)


@given(steps, st.integers(1, 9))
def test_what_leaves_unseen_is_what_the_law_is_off_by(
    moves: list[tuple[int, int]], leak: int
) -> None:
    entered = [0.0]
    for came, _ in moves:
        entered.append(entered[-1] + came + leak)
    queue = [total - leak * i for i, total in enumerate(entered)]
    law = check_law(flow(queue, entered, [0.0] * len(entered)))
    assert law is not None
    assert law.error_mean == law.error_max == leak


def test_steps_that_were_not_measured_are_bridged() -> None:
    law = check_law(flow([0, None, 5], [0, 3, 7], [0, 1, 2]))
    assert law is not None
    assert (law.steps, law.error_max) == (1, 0)


def test_an_engine_that_started_anew_breaks_no_law() -> None:
    law = check_law(flow([4, 0, 1], [100, 0, 1], [96, 0, 0]))
    assert law is not None
    assert (law.steps, law.error_max) == (1, 0)


def test_the_law_says_nothing_of_a_stage_that_is_not_known() -> None:
    assert check_law(flow([None, None], [0, 1], [0, 1])) is None


@pytest.mark.parametrize(
    ("queue", "fired"),
    [
        ([100, 150], 0),  # not by more than the factor
        ([100, 151], 1),
        ([60, 100], 0),  # not over the floor
        ([60, 101], 1),
        ([0, 101, 101, 160], 2),  # a full queue that stays is no growth
        ([100, None, 151], 1),
        ([], 0),
    ],
)
def test_the_detector_wants_growth_and_size(queue: Series, fired: int) -> None:
    assert alarms(queue, factor=1.5, floor=100) == fired


def test_a_rate_is_growth_over_time_and_a_restart_is_none() -> None:
    found = samples(11, requests=lambda i: 3 * i)
    assert rate([s.requests for s in found], found) == pytest.approx(30)
    assert rate([0, 5, None, 2, 4], samples(5)) == pytest.approx(7 / 0.4)
    assert rate([None, 5], samples(2)) is None


def test_little_s_law_gives_the_wait() -> None:
    found = samples(
        41, load=lambda i: Load(waiting=6, running=2, requests_total=8 + i, finished_total=i)
    )
    waiting = report(found, Stage.WAITING)
    assert waiting.out_per_s == pytest.approx(10)
    assert waiting.wait_ms == pytest.approx(600)
    running = report(found, Stage.RUNNING)
    assert running.wait_ms == pytest.approx(200)


def test_what_is_counted_in_two_units_has_no_wait_and_no_law() -> None:
    send = report(samples(writes=lambda i: i, chunks=lambda i: i, unsent=3), Stage.SEND)
    assert (send.wait_ms, send.law) == (None, None)
    assert (send.queue, send.in_per_s, send.out_per_s) == (3, 10, 10)


def test_kernels_that_see_no_reads_and_writes_leave_them_unknown() -> None:
    found = samples(requests=lambda i: i, chunks=lambda i: i)
    assert report(found, Stage.SEND).in_per_s is None
    assert report(found, Stage.RECEIVE).out_per_s is None
    said = samples(requests=lambda i: i, load=lambda i: Load(0, 0, i, i))
    assert report(said, Stage.RECEIVE).out_per_s == pytest.approx(10)


def test_an_engine_that_says_nothing_has_unknown_queues() -> None:
    found = report(samples(), Stage.WAITING)
    assert (found.queue, found.out_per_s, found.pressure) == (None, None, None)


def test_an_accept_queue_that_could_not_be_read_is_unknown_not_empty() -> None:
    assert report(samples(), Stage.ACCEPT).queue is None
    assert report(samples(backlog_limit=8), Stage.ACCEPT).queue == 0


LOADED: dict[str, Any] = {
    "backlog_limit": 128,
    "connections": 20,
    "requests": 20,
    "load": Load(waiting=0, running=4, requests_total=20, finished_total=16),
    "ended": 16,
}


@pytest.mark.parametrize(
    ("changes", "stage"),
    [
        ({}, None),
        ({"unsent": 1}, None),  # one slow client of four
        ({"unsent": 3}, Stage.SEND),
        ({"load": Load(9, 4, 29, 16)}, Stage.WAITING),
        ({"load": Load(9, 4, 29, 16), "unsent": 4}, Stage.SEND),  # what is behind it only waits
        ({"unread": 12}, Stage.RECEIVE),
        ({"backlog": 100}, Stage.ACCEPT),
        ({"backlog": 5, "connections": 0}, Stage.ACCEPT),  # nothing is accepted at all
        ({"backlog": 5}, None),
        ({"unsent": lambda i: 4 * (i % 3 == 0)}, None),  # now and then
    ],
)
def test_the_last_stage_that_only_waits_is_named(
    changes: dict[str, Any], stage: Stage | None
) -> None:
    assert analyse(samples(**LOADED | changes)).held_up_at is stage


def test_a_stage_that_follows_another_is_linked_with_its_lag() -> None:
    def waiting(i: int) -> int:
        return (i * i * 7919) % 23

    found = samples(
        300,
        load=lambda i: Load(waiting(i), waiting(i - 3) if i >= 3 else 0, 0, 0),
    )
    link = next(
        each
        for each in analyse(found).links
        if (each.cause, each.effect) == ("waiting.queue", "running.queue")
    )
    assert link.lag_ms == 300
    assert link.rho == pytest.approx(1)


def test_samples_that_came_late_keep_their_place() -> None:
    def waiting(i: int) -> int:
        return (i * i * 7919) % 23

    found = samples(300, load=lambda i: Load(waiting(i), waiting(i - 5) if i >= 5 else 0, 0, 0))
    some = [each for each in found if each.index % 11]
    link = next(e for e in analyse(some).links if e.cause == "waiting.queue")
    assert link.lag_ms == 500


@pytest.mark.parametrize("found", [[], samples(1)])
def test_less_than_two_samples_say_nothing(found: list[Sample]) -> None:
    assert analyse(found).stages == ()
    answer = stages_answer("chat", found, EngineSockets(), 1.5, None)
    assert answer["verdict"] == "nothing is known of the stages of chat yet"


def test_a_floor_that_is_given_is_every_stage_s() -> None:
    answer = stages_answer("chat", samples(), EngineSockets(), 2.0, 100.0)
    assert {each["floor"] for each in answer["stages"]} == {100.0}
    own = stages_answer("chat", samples(), EngineSockets(), 2.0, None)
    assert [each["floor"] for each in own["stages"]] == [FLOORS[stage] for stage in Stage]


@given(st.lists(st.tuples(*[st.integers(0, 2**40)] * 8, st.booleans()), min_size=2, max_size=12))
def test_whatever_was_sampled_pressures_are_between_0_and_1(
    drawn: list[tuple[int, ...]],
) -> None:
    found = [
        Sample(
            i, i * SAMPLE_NS, a, b, requests=c, ended=d, connections=e, unread=f, unsent=g,
            load=Load(h, a, b, c), looked=bool(looked),
        )
        for i, (a, b, c, d, e, f, g, h, looked) in enumerate(drawn)
    ]  # fmt: skip
    for stage in Stage:
        assert all(p is None or 0 <= p <= 1 for p in flow_of(stage, found).pressure)
    analyse(found)
