import pytest

from demo.client import Record
from demo.stats import Slo
from tests.bench.slo.figures import Run
from tests.bench.slo.restart import times_of

SLO = Slo(100.0, 20.0)
S = 10**9


def run(good_from_s: float, **seen: object) -> Run:
    """A request each tenth of a second for six seconds, good from then on."""
    records = [
        Record(0, sent_ns=n * S // 10, ended_ns=n * S // 10 + 1, ttft_ms=50.0, chunks=1, status=200)
        for n in range(60)
    ]
    for each in records:
        if each.sent_ns < good_from_s * S:
            each.ttft_ms = 500.0
    return Run(records, (), 6.0, SLO, dict(seen))


def test_times_count_from_the_start_and_from_when_there_was_an_engine() -> None:
    found = times_of(run(3.0, started_ns=2 * S, engine_after_s=0.4, point_after_s=0.2))
    assert found == pytest.approx(
        {
            "good_before": 0.0,
            "engine_after_s": 0.4,
            "holds_from_s": 1.0,
            "holds_with_engine_s": 0.6,
            "point_after_s": 0.2,
        }
    )


def test_what_was_there_before_the_first_request_took_no_time() -> None:
    found = times_of(run(0.0, started_ns=-3 * S, engine_after_s=0.5, point_after_s=0.1))
    assert (found["holds_from_s"], found["point_after_s"], found["good_before"]) == (0.0, 0.0, None)


def test_a_point_after_the_first_request_counts_from_it() -> None:
    found = times_of(run(0.5, started_ns=-3 * S, engine_after_s=0.5, point_after_s=2.75))
    assert (found["holds_from_s"], found["point_after_s"]) == (0.5, 0.25)


def test_an_slo_that_never_held_has_no_time() -> None:
    found = times_of(run(9.0, started_ns=S, engine_after_s=None, point_after_s=None))
    assert (found["holds_from_s"], found["holds_with_engine_s"]) == (None, None)
