import math
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.admission import (
    DEADLINE,
    DEFERRAL,
    LEAST_QUEUED,
    QUEUE_BAND,
    QUEUE_GROWTH,
    QUEUED,
    can_relegate,
    is_pressed,
    queue_point,
    relegation_point,
)
from controller.engines.contract import Knob
from controller.engines.page import EngineNow
from controller.policy_model import Slo

from .situations import MS, SECOND, window

SLO: Final = Slo(ttft_ms=2000, gap_ms=60)
KNOBS: Final = {
    DEADLINE: Knob(DEADLINE, 0, 600_000, 0, "ms"),
    DEFERRAL: Knob(DEFERRAL, 0, 3_600_000, 60_000, "ms"),
}
NOW_NS: Final = 100 * SECOND


def pressed(engine: EngineNow, rate: float = 10_000) -> bool:
    return is_pressed(window(NOW_NS, engine=engine), engine, SLO, rate)


def test_only_an_engine_with_the_knob_relegates() -> None:
    assert can_relegate(KNOBS, 60_000)
    assert not can_relegate({DEFERRAL: KNOBS[DEFERRAL]}, 60_000)


def test_the_policy_can_forbid_it() -> None:
    assert not can_relegate(KNOBS, 0)


def test_an_empty_queue_is_not_pressed() -> None:
    assert not pressed(EngineNow(waiting=0, waiting_tokens=1_000_000))


def test_an_old_queue_is_pressed() -> None:
    assert pressed(EngineNow(waiting=1, oldest_arrival_ns=NOW_NS - 500 * MS))
    assert not pressed(EngineNow(waiting=1, oldest_arrival_ns=NOW_NS - 499 * MS))


def test_a_queue_that_will_take_long_is_pressed() -> None:
    # 5,000 tokens at 10,000 a second are a quarter of the target of 2 s
    assert pressed(EngineNow(waiting=1, waiting_tokens=5_000))
    assert not pressed(EngineNow(waiting=1, waiting_tokens=4_999))


def test_without_a_rate_only_the_age_counts() -> None:
    assert not pressed(EngineNow(waiting=1, waiting_tokens=10**9), rate=0)


def test_requests_are_given_up_before_they_are_late() -> None:
    assert relegation_point(KNOBS, SLO, 60_000) == {DEADLINE: 1900, DEFERRAL: 60_000}


QUEUE: Final = {QUEUED: Knob(QUEUED, 1, 1000, 1000, "requests")}


def test_the_queue_is_capped() -> None:
    assert queue_point(QUEUE, {}, 70.5) == {QUEUED: 70}
    assert queue_point(QUEUE, {}, 0) == {QUEUED: LEAST_QUEUED}


@pytest.mark.parametrize("most", [1000, 1e9, math.inf])
def test_a_queue_that_may_be_as_long_as_it_can_be_is_left_alone(most: float) -> None:
    assert queue_point(QUEUE, {QUEUED: 70.0}, most) == {QUEUED: 1000}


def test_a_cap_that_hardly_changed_is_not_written() -> None:
    held = {QUEUED: 100.0}
    assert queue_point(QUEUE, held, 100 * (1 - QUEUE_BAND)) == held
    assert queue_point(QUEUE, held, 100 * (0.98 - QUEUE_BAND)) == {QUEUED: 83}
    assert queue_point(QUEUE, held, 100 * (1 + QUEUE_GROWTH)) == held
    assert queue_point(QUEUE, held, 100 * (1.02 + QUEUE_GROWTH)) == {QUEUED: 152}


def test_an_engine_without_the_knob_or_without_a_figure_is_not_capped() -> None:
    assert queue_point({}, {}, 10) == {}
    assert queue_point(QUEUE, {}, math.nan) == {}


@given(st.floats(1, 600_000), st.integers(1, 3_600_000), st.floats(), st.data())
def test_no_value_leaves_the_engines_range(
    ttft_ms: float, deferral_ms: int, most_queued: float, data: st.DataObject
) -> None:
    knobs = {}
    for name in (DEADLINE, DEFERRAL, QUEUED):
        low, high = sorted(data.draw(st.tuples(*2 * [st.integers(0, 10**6)])))
        knobs[name] = Knob(name, low, high, high if name == QUEUED else low, "")
    point = relegation_point(knobs, Slo(ttft_ms=ttft_ms), deferral_ms)
    for name, value in (point | queue_point(knobs, {}, most_queued)).items():
        assert knobs[name].minimum <= value <= knobs[name].maximum
        assert value == int(value)
