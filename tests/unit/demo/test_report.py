import json
from dataclasses import replace

import pytest
from rich.console import Console

from demo.client import Lateness
from demo.report import Loop, Phase, Report, broken_claims, render
from demo.stats import Comparison, PhaseFigures, Slo, Spread
from demo.trace import LengthScale, Load, Request

SPREAD = Spread(1.0, 2.0, 3.0)
LATE = Lateness(SPREAD, SPREAD, realtime=True)
SAME = Comparison(2, 0, (0.1, 0.2), (0.3, 0.4))
FIGURES = PhaseFigures(0.99, SPREAD, SPREAD, 9.0, 100, 0)
GOOD = Phase(FIGURES, SAME, 0.5, LATE, ())
BAD = replace(GOOD, figures=replace(FIGURES, slo_attainment=0.1, goodput_rps=1.0))
REPORT = Report(
    unloaded=Slo(20.0, 3.0),
    slo=Slo(400.0, 30.0),
    capacity_rps=40.0,
    lengths=LengthScale(),
    load=Load((Request(0.0, 1, 1),) * 100, 2.0, 10.0),
    alone=GOOD,
    observe=BAD,
    control=GOOD,
    loop=Loop(100.0, 50.0, 200.0, 1.5),
    accuracy=SAME,
    accuracy_late=LATE,
    accuracy_failed=0,
    decisions=7,
    left_behind=(),
    took_s=90.0,
)


def with_failure(phase: Phase) -> Phase:
    return replace(phase, figures=replace(phase.figures, failed=1), errors=("HTTP 503: full",))


def test_claims_that_hold_are_not_mentioned() -> None:
    assert broken_claims(REPORT) == []


@pytest.mark.parametrize(
    ("report", "sentence"),
    [
        (replace(REPORT, control=with_failure(GOOD)), "1 requests failed: HTTP 503: full"),
        (replace(REPORT, observe=with_failure(BAD)), "1 requests failed: HTTP 503: full"),
        (replace(REPORT, accuracy_failed=2), "2 requests failed"),
        (replace(REPORT, accuracy=replace(SAME, mismatched=1)), "for 1 of 8 streams"),
        (
            replace(REPORT, control=replace(GOOD, comparison=replace(SAME, mismatched=3))),
            "for 3 of 8 streams",
        ),
        (replace(REPORT, observe=GOOD), "no more than observe with 99.0%"),
        (
            replace(REPORT, control=replace(GOOD, figures=replace(FIGURES, goodput_rps=0.5))),
            "goodput in control was 0.50 requests/s",
        ),
        (replace(REPORT, left_behind=("engine has a CPU weight of 1000",)), "after control engine"),
    ],
)
def test_a_claim_that_does_not_hold_is_a_sentence(report: Report, sentence: str) -> None:
    (broken,) = broken_claims(report)
    assert sentence in broken


def test_the_json_has_the_keys_it_is_known_by() -> None:
    found = json.loads(json.dumps(REPORT.as_dict(), allow_nan=False))
    for phase in ("observe", "control"):
        assert {"slo_attainment", "ttft_ms", "gap_ms", "goodput_rps", "requests"} <= set(
            found[phase]
        )
        assert {"p50", "p99"} <= set(found[phase]["ttft_ms"]) & set(found[phase]["gap_ms"])
    assert found["loop"] == {
        "collect_us_p99": 100.0,
        "decide_us_p99": 50.0,
        "actuate_us_p99": 200.0,
        "reaction_ms_p50": 1.5,
    }
    accuracy = found["accuracy"]
    assert accuracy["chunk_mismatch"] == 0
    assert (accuracy["ttft_error_ms_p99"], accuracy["gap_error_ms_p99"]) == (0.2, 0.4)
    assert (found["decisions"], found["requests_failed"]) == (7, 0)


def test_errors_under_load_are_told_apart_from_those_of_the_idle_machine() -> None:
    loaded = replace(BAD, comparison=Comparison(1, 0, (5.0,), (6.0,)))
    accuracy = replace(REPORT, observe=loaded).as_dict()["accuracy"]
    assert accuracy["ttft_error_ms_p99"] == 0.2
    assert accuracy["under_load"]["ttft_error_ms_p99"] == 5.0


def test_the_table_shows_all_three_replays() -> None:
    text = "".join(segment.text for segment in Console(width=120).render(render(REPORT)))
    assert "99.0%" in text
    assert "10.0%" in text
    assert "0 of 8 streams differ" in text


def test_a_client_without_priority_is_said() -> None:
    report = replace(REPORT, accuracy_late=replace(LATE, realtime=False))
    text = "".join(segment.text for segment in Console(width=120).render(render(report)))
    assert "no real-time priority" in text


def test_a_loop_that_told_nothing_is_empty() -> None:
    assert Loop.of({"loop": None}) == Loop(None, None, None, None)
