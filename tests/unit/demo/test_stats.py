from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from demo.client import Record
from demo.stats import Slo, Spread, compare, is_good, percentile, phase_figures, spread

SLO = Slo(ttft_ms=100, gap_ms=20)
values = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=80)


def record(port: int = 1, sent_ns: int = 0, **fields: Any) -> Record:
    given: dict[str, Any] = {"ttft_ms": 50.0, "gaps_ms": [10.0, 12.0], "chunks": 3} | fields
    return Record(0, port=port, sent_ns=sent_ns, **given)


def seen(port: int = 1, **fields: Any) -> dict[str, Any]:
    return {"remote_port": port, "ttft_ms": 50.0, "gap_max_ms": 12.0, "chunks": 3} | fields


@given(values, st.floats(0.01, 1))
def test_a_percentile_is_the_least_value_that_covers_its_share(
    found: list[float], share: float
) -> None:
    value = percentile(found, share)
    assert value in found
    assert sum(each <= value for each in found) >= share * len(found) - 1e-9
    assert sum(each < value for each in found) < share * len(found) + 1e-9


def test_nothing_has_no_percentile() -> None:
    assert percentile([], 0.5) is None
    assert spread([]) == Spread(None, None, None)


def test_a_spread_is_median_tail_and_largest() -> None:
    assert spread(range(1, 1001)) == Spread(500, 990, 1000)


@pytest.mark.parametrize(
    ("fields", "good"),
    [
        ({}, True),
        ({"ttft_ms": 100.0, "gaps_ms": [20.0]}, True),
        ({"ttft_ms": 100.1}, False),
        ({"gaps_ms": [1.0, 20.1, 1.0]}, False),
        ({"gaps_ms": []}, True),
        ({"ttft_ms": None, "gaps_ms": []}, False),
        ({"error": "HTTP 503"}, False),
    ],
)
def test_a_request_is_good_when_it_is_whole_and_every_chunk_in_time(
    fields: dict[str, Any], good: bool
) -> None:
    assert is_good(record(**fields), SLO) is good


def test_a_phase_counts_a_failed_request_as_not_good() -> None:
    figures = phase_figures([record(), record(error="broke", ttft_ms=None, gaps_ms=[])], SLO, 4.0)
    assert (figures.slo_attainment, figures.failed, figures.requests) == (0.5, 1, 2)
    assert figures.goodput_rps == 0.25
    assert figures.ttft_ms == Spread(50, 50, 50)
    assert figures.gap_ms == Spread(10, 12, 12)


def test_a_phase_without_requests_met_nothing() -> None:
    assert phase_figures([], SLO, 1.0).slo_attainment == 0


def test_equal_views_do_not_differ() -> None:
    found = compare([record(1), record(2)], [seen(2), seen(1)])
    assert (found.streams, found.mismatched) == (2, 0)
    assert found.ttft_error_ms == (0, 0)
    assert found.gap_error_ms == (0, 0)


def test_a_difference_in_chunks_is_a_mismatch() -> None:
    assert compare([record()], [seen(chunks=4)]).mismatched == 1


def test_what_only_one_side_saw_is_a_mismatch() -> None:
    found = compare([record(1), record(2)], [seen(2), seen(3)])
    assert (found.streams, found.mismatched) == (3, 2)


def test_streams_of_one_port_are_paired_in_order() -> None:
    ours = [record(1, sent_ns=2, chunks=9), record(1, sent_ns=1, chunks=5)]
    assert compare(ours, [seen(chunks=5), seen(chunks=9)]).mismatched == 0


def test_errors_are_of_ttft_and_of_the_longest_gap() -> None:
    found = compare([record(ttft_ms=51.5, gaps_ms=[3.0, 11.0])], [seen()])
    assert found.ttft_error_ms == (1.5,)
    assert found.gap_error_ms == (1.0,)


def test_a_stream_without_a_first_chunk_has_no_error() -> None:
    found = compare([record(ttft_ms=None, gaps_ms=[])], [seen(ttft_ms=None, gap_max_ms=None)])
    assert (found.ttft_error_ms, found.gap_error_ms) == ((), ())


def test_a_request_that_never_connected_is_no_stream() -> None:
    assert compare([record(0, error="could not connect")], []).streams == 0


def test_comparisons_add_up() -> None:
    both = compare([record()], [seen()]) + compare([record(ttft_ms=51.0)], [seen(chunks=1)])
    assert (both.streams, both.mismatched, both.ttft_error_ms) == (2, 1, (0.0, 1.0))
