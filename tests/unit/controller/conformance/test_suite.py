"""What the suite says of right engines of several kinds, and when it does not begin."""

import re
from pathlib import Path
from typing import Any

import pytest

from controller.conformance.check import Result
from controller.conformance.suite import CHECKS, CannotCheckError, run
from controller.engines.client import call
from controller.serving.calls import Calls
from tests.unit.controller.conformance.engines import (
    TWO_KNOBS,
    CallsWithoutPrepare,
    IdleEngine,
    ReloadingEngine,
    SmallEngine,
    SteppingEngine,
    checked,
    failing,
    knob,
    serving,
)

DOCUMENT = Path(__file__).parents[4] / "docs" / "engine-protocol.md"
PROMISES = {
    "watch-promises",
    "prepare", "prepare-is-checked", "commit", "commit-repeated", "commit-of-nothing", "abort",
    "promise-holds-others", "promise-lapses", "later-replaces", "promise-outlives-lease",
    "release-drops-promise",
}  # fmt: skip
PAGE = {
    "expiry-unasked", "punctual-end", "page-layout", "page-follows", "page-sequence",
    "page-like-stats",
}  # fmt: skip


def not_applicable(report: Any) -> set[str]:
    return {
        verdict.check.name
        for verdict in report.verdicts
        if verdict.result is Result.NOT_APPLICABLE and verdict.check.name != "restart"
    }


@pytest.mark.parametrize("engine", [SmallEngine, SteppingEngine])
def test_an_engine_that_keeps_the_contract_passes_every_check(
    engine: type[SmallEngine], tmp_path: Path
) -> None:
    with serving(tmp_path, engine) as path:
        report = checked(path, thorough=True)
    assert failing(report) == {}
    assert not_applicable(report) <= {"punctual-end", "stranger"}
    assert report.conforms


def test_an_engine_whose_changes_are_reloads_passes(tmp_path: Path) -> None:
    knobs = (knob("max_running", 1, 64, 64, "reload"), knob("batch_window_ms", 0, 100, 5, "reload"))
    with serving(tmp_path, ReloadingEngine, knobs=knobs) as path:
        report = checked(path)
    assert failing(report) == {}


def test_an_idle_engine_may_leave_a_change_pending(tmp_path: Path) -> None:
    with serving(tmp_path, IdleEngine) as path:
        report = checked(path)
    assert failing(report) == {}
    assert "change-is-applied" in not_applicable(report)
    assert not_applicable(report).isdisjoint({"expiry", "release", "all-or-nothing", "held"})


def test_what_an_engine_does_not_offer_is_not_held_against_it(tmp_path: Path) -> None:
    with serving(tmp_path, calls_type=CallsWithoutPrepare, page_type=None) as path:
        report = checked(path)
    assert failing(report) == {}
    assert not_applicable(report) - {"unread", "crowd", "stranger"} == PROMISES | PAGE


@pytest.mark.parametrize(
    "knobs",
    [
        (knob("kv_cache_ratio", 0.1, 1.0, 1.0),),
        (knob("concurrency", 1, 2, 1),),
        (knob("max_running", 8, 8, 8), knob("ttft_deadline_ms", 0, 1000, 0)),
        (knob("max_queued", 0, 10, 0),),
    ],
)
def test_other_knobs_do_as_well(knobs: Any, tmp_path: Path) -> None:
    with serving(tmp_path, knobs=knobs) as path:
        report = checked(path)
    assert failing(report) == {}
    assert not_applicable(report) <= {"unread", "crowd", "punctual-end", "stranger"}


@pytest.mark.parametrize("knobs", [(), (knob("max_running", 8, 8, 8),)])
def test_an_engine_without_a_knob_to_turn_is_checked_as_far_as_that_goes(
    knobs: Any, tmp_path: Path
) -> None:
    with serving(tmp_path, knobs=knobs) as path:
        report = checked(path)
    assert failing(report) == {}
    assert "set-takes-a-lease" in not_applicable(report)
    assert report.count(Result.PASS) > 30


def test_the_engine_is_left_as_it_was_found(tmp_path: Path) -> None:
    with serving(tmp_path) as path:
        before = call(path, "get", 5)
        checked(path, thorough=True)
        after = call(path, "get", 5)
    kept = ("values", "pending", "owner", "prepared_epoch", "applied_epoch")
    assert {name: after[name] for name in kept} == {name: before[name] for name in kept}


def test_a_foreign_lease_is_not_disturbed(tmp_path: Path) -> None:
    values = {"max_running": 3}
    with serving(tmp_path) as path:
        call(path, "set", 5, owner="sitsd", epoch=1, lease_ms=10_000, values=values)
        with pytest.raises(CannotCheckError, match="its lease is held by 'sitsd'"):
            checked(path)
        assert call(path, "get", 5)["values"]["max_running"] == 3
        call(path, "release", 5, owner="sitsd")
        call(path, "prepare", 5, owner="x", epoch=2, lease_ms=9000, term_ms=9000, values=values)
        with pytest.raises(CannotCheckError, match="a change is prepared"):
            checked(path)


def test_a_lease_that_another_takes_meanwhile_ends_the_run(tmp_path: Path) -> None:
    with serving(tmp_path) as path:

        def take(_: object) -> None:
            epoch = call(path, "get", 5)["epoch"] + 1
            call(path, "set", 5, owner="sitsd", epoch=epoch, lease_ms=10_000)

        with pytest.raises(CannotCheckError, match="taken meanwhile by 'sitsd'"):
            run(path, only=["ids", "pieces"], told=take)
        assert call(path, "get", 5)["owner"] == "sitsd"


def test_nobody_there_is_no_verdict(tmp_path: Path) -> None:
    with pytest.raises(CannotCheckError, match=r"could not reach engine at '.*': no such file"):
        run(tmp_path / "none")


def test_a_hello_that_makes_no_sense_is_no_verdict(tmp_path: Path) -> None:
    class Nameless(Calls):
        def _greet(self, message: Any) -> dict[str, Any]:
            return {**super()._greet(message), "engine": 7}

    with (
        serving(tmp_path, calls_type=Nameless) as path,
        pytest.raises(CannotCheckError, match="its hello: engine must be str"),
    ):
        run(path)


def test_only_what_is_asked_for_is_checked(tmp_path: Path) -> None:
    with serving(tmp_path, knobs=TWO_KNOBS) as path:
        report = checked(path, only=["crowd", "ids"])
    assert [(each.check.name, each.result) for each in report.verdicts] == [
        ("ids", Result.PASS),
        ("crowd", Result.PASS),
    ]


def sections() -> dict[str, str]:
    """The document's parts by anchor."""
    parts = re.split(r"^## (.*)$", DOCUMENT.read_text(), flags=re.MULTILINE)
    return {
        title.lower().replace(" ", "-"): text
        for title, text in zip(parts[1::2], parts[2::2], strict=True)
    }


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
def test_a_check_proves_a_sentence_of_the_document(check: Any) -> None:
    assert check.proves in sections()[check.section]


def test_every_check_has_a_name_of_its_own_and_a_title() -> None:
    assert len({check.name for check in CHECKS}) == len(CHECKS)
    assert all(check.title for check in CHECKS)
