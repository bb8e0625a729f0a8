"""The reference engine keeps its own contract: idle, while it serves, and over a restart."""

import json
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from agent.sitsctl import main
from controller.conformance.check import Result
from controller.conformance.suite import Report, run
from controller.engines.client import call
from tests.engines.reference_process import Client, Running, reference_engine

CLIENTS = 6


def failing(report: Report) -> dict[str, tuple[str, str, str]]:
    return {
        each.check.name: (each.sent, each.expected, each.got)
        for each in report.verdicts
        if each.result is Result.FAIL
    }


def left_out(report: Report) -> set[str]:
    return {each.check.name for each in report.verdicts if each.result is Result.NOT_APPLICABLE}


@contextmanager
def served_load(engine: Running) -> Iterator[list[int]]:
    """Clients that ask one request after another; yields how many tokens each answer had."""
    stop = threading.Event()
    answers: list[int] = []

    def ask() -> None:
        fields = {"prompt": [65] * 200, "max_tokens": 24, "stream": True, "ignore_eos": True}
        with Client(engine) as client:
            while not stop.is_set():
                answers.append(len(client.ask("/v1/completions", fields).events()))

    threads = [threading.Thread(target=ask) for _ in range(CLIENTS)]
    for thread in threads:
        thread.start()
    try:
        yield answers
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def test_an_idle_reference_engine_passes_every_check() -> None:
    with reference_engine() as engine:
        report = run(engine.admin, thorough=True)
    assert failing(report) == {}
    assert left_out(report) <= {"restart", "punctual-end"}


def test_a_reference_engine_that_serves_passes_and_serves_on() -> None:
    with reference_engine() as engine, served_load(engine) as answers:
        before = len(answers)
        report = run(engine.admin)
        assert failing(report) == {}
        assert left_out(report) <= {"restart", "punctual-end", "unread", "crowd"}
        assert call(engine.admin, "stats", 5)["now"]["steps"] > CLIENTS
    assert len(answers) > before + CLIENTS
    assert set(answers) == {24}


def test_a_restart_forgets_the_lease_and_begins_its_epochs_again(tmp_path: Path) -> None:
    admin = tmp_path / "admin.sock"
    with ExitStack() as stack:
        first = stack.enter_context(reference_engine(admin=admin))

        def restart() -> None:
            first.process.kill()
            first.process.wait()
            stack.enter_context(reference_engine(admin=admin))

        report = run(admin, only=["restart", "ids"], restart=restart)
    assert [each.result for each in report.verdicts] == [Result.PASS, Result.PASS], report


@pytest.mark.parametrize("held", [False, True])
def test_the_command_judges_a_live_engine_and_leaves_one_alone_that_is_held(held: bool) -> None:
    with reference_engine() as engine:
        if held:
            call(engine.admin, "set", 5, owner="sitsd", epoch=1, lease_ms=10_000)
        result = CliRunner().invoke(main, ["conformance", str(engine.admin), "--json"])
    if held:
        assert (result.exit_code, result.stdout) == (2, "")
        assert "its lease is held by 'sitsd'" in result.stderr
    else:
        assert result.exit_code == 0, result.stdout
        assert json.loads(result.stdout)["conforms"] is True
