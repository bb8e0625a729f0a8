from pathlib import Path

import pytest

from controller.predict.chooser import PREDICTORS
from tests.bench.predict import CHOOSER, HORIZONS_S, TRACES, compare, judge, table
from tests.bench.seconds import read_seconds

NAMES = (*PREDICTORS, CHOOSER)


@pytest.mark.parametrize("path", TRACES.values(), ids=TRACES)
def test_a_trace_says_where_it_is_from(path: Path) -> None:
    head = path.read_text()[:700]
    assert all(word in head for word in ("Microsoft", "CC-BY-4.0", "ISCA 2024", "Changed:"))


@pytest.mark.parametrize(("name", "requests"), [("code", 8819), ("conv", 19366)])
def test_a_trace_is_whole(name: str, requests: int) -> None:
    seconds = read_seconds(TRACES[name])
    assert sum(seconds.requests) == requests
    assert len(seconds.tokens) == len(seconds.requests) > 3400
    assert all(
        (tokens > 0) == (count > 0)
        for tokens, count in zip(seconds.tokens, seconds.requests, strict=True)
    )


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("# a comment\narrival_s,tokens\n0,1\n")
    with pytest.raises(ValueError, match=r"could not load trace '.*trace.csv': not its header"):
        read_seconds(path)


def test_the_last_value_is_off_by_what_the_next_one_differs() -> None:
    scores = judge([0.0, 10.0] * 20, 1, "last", 0)
    assert scores["mae"] == 10


def test_a_forecast_is_held_against_the_mean_over_its_horizon() -> None:
    # after 6 come 0 and 0, after the first 0 come 0 and 6, after the second 6 and 0
    assert judge([6.0, 0.0, 0.0] * 20, 2, "last", 0)["mae"] == pytest.approx(4, abs=0.1)


def test_a_constant_load_is_always_planned_right() -> None:
    assert judge([7.0] * 50, 5, None, 10) == {"mae": 0, "pinball": 0, "coverage": 1}


def test_the_table_has_every_predictor_against_the_last_value() -> None:
    values = [float(n * n % 17) for n in range(60)]
    found = {"made": {"up": {horizon: compare(values, horizon, 5) for horizon in HORIZONS_S}}}
    lines = table(found).splitlines()
    assert [line.split()[2] for line in lines[2:]] == list(NAMES)
    last = lines[2].split()
    assert last[3:5] == last[6:8] == ["1.000", "1.000"]
