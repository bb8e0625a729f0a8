import pytest

from demo.client import Record
from demo.stats import Slo
from tests.bench.slo.figures import SPAN_NS, Run, figures, holds_from_s, mostly_good

SLO = Slo(100.0, 20.0)
GOOD = {"ttft_ms": 50.0, "gaps_ms": [5.0] * 10, "chunks": 11, "status": 200, "ended_ns": 10**9}


def record(**fields: object) -> Record:
    return Record(0, **{**GOOD, **fields})  # type: ignore[arg-type]


def run(*records: Record, window_s: float = 2.0) -> Run:
    return Run(records, (record(ttft_ms=12.0),), window_s, SLO)


def test_goodput_counts_requests_with_first_chunk_and_every_gap_in_time() -> None:
    found = figures(
        [run(record(), record(), record(ttft_ms=101.0), record(gaps_ms=[5.0] * 9 + [21.0]))]
    )
    assert found.goodput_rps == 1.0
    assert found.attainment == 0.5
    assert (found.ttft_attainment, found.gap_attainment) == (0.75, 0.75)


def test_the_milder_figure_lets_one_gap_in_a_hundred_be_late() -> None:
    assert mostly_good(record(gaps_ms=[5.0] * 99 + [21.0]), SLO)
    assert not mostly_good(record(gaps_ms=[5.0] * 98 + [21.0]), SLO)
    assert not mostly_good(record(ttft_ms=101.0), SLO)
    assert not mostly_good(record(error="cut off"), SLO)


def test_a_refusal_is_no_failure_and_not_good() -> None:
    found = figures(
        [
            run(
                record(),
                record(status=503, error="HTTP 503", ttft_ms=None, gaps_ms=[]),
                record(status=None, error="reset", ttft_ms=None, gaps_ms=[]),
            )
        ]
    )
    assert (found.requests, found.refused, found.failed) == (3, 1, 1)
    assert found.goodput_rps == 0.5


def test_runs_are_counted_together() -> None:
    found = figures([run(record()), run(record(), record(ttft_ms=900.0), window_s=6.0)])
    assert found.goodput_rps == 2 / 8
    assert found.attainment == pytest.approx(2 / 3)
    assert found.longest_wait_ms == 900.0
    assert found.unloaded_ttft_ms == 12.0


def test_tokens_a_second_are_over_the_time_to_the_last_answers_end() -> None:
    late = record(sent_ns=10**9, ended_ns=4 * 10**9, chunks=29)
    assert figures([run(record(sent_ns=0), late)]).tokens_per_s == 10.0


def test_no_requests_have_no_figures_and_no_error() -> None:
    found = figures([Run((), (), 2.0, SLO)])
    assert (found.requests, found.goodput_rps, found.ttft_ms.p99) == (0, 0.0, None)


def every_tenth(seconds: float, good_from_s: float) -> list[Record]:
    """A request every tenth of a second, good from then on."""
    return [
        record(sent_ns=at * 10**8, ttft_ms=50.0 if at >= good_from_s * 10 else 500.0)
        for at in range(int(seconds * 10))
    ]


def test_the_slo_holds_from_when_the_next_two_seconds_reach_the_target() -> None:
    records = every_tenth(10, good_from_s=3)
    assert holds_from_s(records, SLO, 0, 10 * 10**9, 1.0) == 3.0
    assert holds_from_s(records, SLO, 0, 10 * 10**9, 0.9) == 2.8
    assert holds_from_s(records, SLO, 2 * 10**9, 10 * 10**9, 1.0) == 1.0


def test_an_slo_that_always_held_did_so_from_the_start() -> None:
    assert holds_from_s(every_tenth(5, good_from_s=0), SLO, 0, 5 * 10**9, 1.0) == 0.0


def test_an_slo_that_held_for_too_short_never_did() -> None:
    assert SPAN_NS == 2 * 10**9
    assert holds_from_s(every_tenth(5, good_from_s=3.5), SLO, 0, 5 * 10**9, 1.0) is None
    assert holds_from_s([], SLO, 0, 10**9, 1.0) is None
