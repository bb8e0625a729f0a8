"""`sitsctl trace`, against the real API over a recorded view."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from agent.sitsctl import main

from .recorded import RecordedView, served, stream

ID = "4bf92f3577b34da6a3ce929d0e0e4736"


@pytest.fixture
def run(tmp_path: Path) -> Iterator[object]:
    view = RecordedView()
    late = {"cause": "network", "good": False, "evidence": {"retransmits_per_s": 4.0}}
    view.ended += [stream(90, trace_id=ID, **late), stream(91, trace_id="0" * 31 + "1")]
    with served(view, tmp_path / "admin.sock") as path:

        def command(*arguments: str) -> Result:
            return CliRunner().invoke(main, ["trace", *arguments, "--socket", str(path)])

        yield command


@pytest.mark.parametrize("given", [ID, ID.upper(), f"00-{ID}-00f067aa0ba902b7-01"])
def test_a_trace_has_its_streams_and_what_they_were_due_to(run: object, given: str) -> None:
    assert callable(run)
    result = run(given)
    assert result.exit_code == 0
    assert "network" in result.stdout
    assert "retransmits_per_s 4" in result.stdout
    assert [each["seq"] for each in json.loads(run(given, "--json").stdout)["streams"]] == [90]


def test_a_trace_without_streams_says_so(run: object) -> None:
    assert callable(run)
    result = run("f" * 32)
    assert (result.exit_code, "no stream of trace" in result.stdout) == (1, True)


@pytest.mark.parametrize("given", ["", "abc", "g" * 32, "1" * 33])
def test_what_is_no_id_is_not_understood(run: object, given: str) -> None:
    assert callable(run)
    assert run(given).exit_code == 2
