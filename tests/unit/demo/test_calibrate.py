import pytest
from hypothesis import given
from hypothesis import strategies as st

from demo.calibrate import (
    GAP_MULTIPLE,
    TTFT_MULTIPLE,
    WARM_UP_REQUESTS,
    capacity_plan,
    capacity_rps,
    slo_of,
    unloaded_figures,
    unloaded_plan,
)
from demo.client import Record
from demo.run import LEAST_WINDOW_S, timing
from demo.stats import Slo
from demo.trace import LengthScale, read_trace

LENGTHS = LengthScale()


def test_unloaded_figures_are_medians_without_the_warm_up() -> None:
    cold = [Record(0, ttft_ms=900.0, gaps_ms=[90.0]) for _ in range(WARM_UP_REQUESTS)]
    warm = [Record(0, ttft_ms=ttft, gaps_ms=[3.0, 4.0, 5.0]) for ttft in (10.0, 30.0, 20.0)]
    assert unloaded_figures([*cold, *warm]) == Slo(20.0, 4.0)


def test_an_engine_that_answers_nothing_has_no_figures() -> None:
    with pytest.raises(ValueError, match="answered nothing"):
        unloaded_figures([Record(0, error="refused")] * 8)


@given(st.floats(1, 1e4), st.floats(1, 1e3))
def test_slos_are_multiples_of_the_unloaded_figures(ttft_ms: float, gap_ms: float) -> None:
    slo = slo_of(Slo(ttft_ms, gap_ms))
    assert slo.ttft_ms == pytest.approx(ttft_ms * TTFT_MULTIPLE, abs=0.1)
    assert slo.gap_ms == pytest.approx(gap_ms * GAP_MULTIPLE, abs=0.1)


def test_unloaded_requests_come_one_after_the_other() -> None:
    plan = unloaded_plan(read_trace(), LENGTHS, 5)
    times = [each.arrival_s for each in plan]
    assert times == sorted(set(times))
    assert len(plan) == WARM_UP_REQUESTS + 5


def test_capacity_is_probed_with_requests_from_all_over_the_trace() -> None:
    trace = read_trace()
    plan = capacity_plan(trace, LENGTHS, 48)
    assert len(plan) == 48
    assert {each.arrival_s for each in plan} == {0.0}
    last = LENGTHS.apply(trace[len(trace) // 48 * 47])
    assert (plan[-1].prompt_tokens, plan[-1].answer_tokens) == (
        last.prompt_tokens,
        last.answer_tokens,
    )


def test_capacity_is_requests_over_the_time_they_took_together() -> None:
    records = [Record(0, sent_ns=0, ended_ns=ended) for ended in (10**9, 2 * 10**9)]
    assert capacity_rps(records) == 1.0


@given(st.floats(20, 3600))
def test_more_time_goes_to_the_windows(seconds: float) -> None:
    assert LEAST_WINDOW_S <= timing(seconds).window_s < seconds / 3
