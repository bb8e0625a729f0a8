"""The JSON Schemas in docs/schema hold for what the API answers."""

import copy
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from controller.actions import (
    Action,
    Freeze,
    Proposal,
    ReleaseKnobs,
    ReleaseLimit,
    SetKnobs,
    SetMemoryHigh,
    SetQuota,
    SetWeight,
    Thaw,
    changes_of,
)
from controller.limits.cpu import IDLE_WEIGHT
from tests.unit.agent.recorded import CANARY, UNSEEN, RecordedView
from tests.unit.docs.schemas import SCHEMAS, problems

TESTS = Path(__file__).parents[1] / "agent"

ASKED: Mapping[str, Callable[[RecordedView], Any]] = {
    "status": lambda view: view.status(),
    "engines": lambda view: view.engines(),
    "streams": lambda view: view.streams(None, None, 100),
    "explain": lambda view: view.explain("chat", 30.0),
    "stages": lambda view: view.stages("chat", 30.0, 1.5, None),
    "journal": lambda view: view.journal(20, None, None, "newest"),
    "doctor": lambda view: view.doctor(),
    "neighbours": lambda view: view.neighbours(),
    "gpu": lambda view: view.gpu(),
    "trace": lambda view: {"trace_id": 32 * "a", "streams": view.ended},
    "set": lambda view: view.changes.ask(["chat"], {"max_running": 8.0}, 120.0, "deploy"),
    "mode": lambda view: view.set_mode("shadow", "a look"),
    "inject": lambda view: view.inject(0.5, 5.0, "a try"),
    "policy": lambda view: view.policy(),
    "release": lambda view: view.changes.give_back(["chat"], "done"),
    "policy-changes": lambda view: view.policies.apply("", "new.toml", False),
    "policy-status": lambda view: view.policies.status(),
}

WITHOUT_AGENT = {
    "policy-check": "test_sitsctl.py",
    "replay": "test_offline.py",
    "simulate": "test_offline.py",
    "conformance": "test_conformance_command.py",
}
"""Those of commands that ask no agent, and which tests of theirs in tests/unit/agent hold them."""


@pytest.fixture
def view() -> RecordedView:
    made = RecordedView()
    made.state["engines"].append(copy.deepcopy(UNSEEN))
    return made


def test_every_schema_is_one_and_is_asked_for() -> None:
    names = {path.stem for path in SCHEMAS.glob("*.json")}
    assert names == ASKED.keys() | WITHOUT_AGENT.keys()
    for name, file in WITHOUT_AGENT.items():
        assert f'problems("{name}", ' in (TESTS / file).read_text()
    for name in names:
        Draft202012Validator.check_schema(json.loads((SCHEMAS / f"{name}.json").read_text()))


@pytest.mark.parametrize("name", ASKED)
def test_answers_hold(view: RecordedView, name: str) -> None:
    assert problems(name, ASKED[name](view)) == []


def test_a_status_without_controller_and_with_a_trial_holds(view: RecordedView) -> None:
    view.state |= {"loop": None, "controller": {"alive": False, "pid": None, "restarts": 1}}
    view.state["policy"]["canary"] = CANARY
    assert problems("status", view.status()) == []


def test_a_policy_that_is_tried_first_or_only_compared_holds(view: RecordedView) -> None:
    assert problems("policy-changes", view.policies.diff("", "new.toml")) == []
    assert problems("policy-changes", view.policies.try_out("", "new.toml", 180.0, None)) == []
    assert problems("policy-status", view.policies.abort("changed my mind")) == []


@pytest.mark.parametrize(
    "action",
    [
        SetKnobs({"max_running": 8.0}, {"max_running": 16.0}),
        ReleaseKnobs({"max_running": 8.0}),
        SetWeight(10_000, 100),
        SetWeight(IDLE_WEIGHT, 100, "batch"),
        SetWeight(100, IDLE_WEIGHT, "batch"),
        SetQuota("batch", 0.25, None),
        Freeze("batch", 200),
        Thaw("batch"),
        SetMemoryHigh("batch", 1 << 30, None),
        ReleaseLimit("batch", "cpu_weight", IDLE_WEIGHT),
        ReleaseLimit("batch", "cpu_quota", 0.25),
    ],
    ids=repr,
)
def test_whatever_a_decision_does_holds_in_the_journal_and_in_what_explains(
    view: RecordedView, action: Action
) -> None:
    done = [change.as_dict() for change in changes_of(Proposal((action,), "a try"), "chat")]
    assert done
    for name in ("journal", "explain"):
        answer = copy.deepcopy(ASKED[name](view))
        answer["decisions"][0]["action"] = done
        assert problems(name, answer) == []


def test_a_trial_of_words_and_lists_holds(view: RecordedView) -> None:
    changes = [
        {"key": "mode", "from": "observe", "to": "control", "live": True},
        {"key": "engines.chat.ports", "from": [8000], "to": None, "live": False},
    ]
    view.state["policy"]["canary"] = CANARY | {"changes": changes}
    assert problems("status", view.status()) == []


def test_a_change_that_is_not_decided_yet_holds() -> None:
    assert problems("set", {"state": "under way", "id": 1_764_000_000_000}) == []


@pytest.mark.parametrize(
    ("name", "spoil"),
    [
        ("status", lambda answer: answer.pop("mode")),
        ("status", lambda answer: answer["engines"][0].update(found="yes")),
        ("streams", lambda answer: answer["streams"][0].update(seq="1")),
        ("journal", lambda answer: answer["decisions"][0].pop("reason")),
        ("neighbours", lambda answer: answer["neighbours"][0].pop("quota_cores")),
        ("gpu", lambda answer: answer["devices"][0]["processes"][0].update(pid="1")),
        ("trace", lambda answer: answer["streams"][0].pop("cause")),
        ("set", lambda answer: answer["engines"]["chat"].pop("standing")),
        ("policy-changes", lambda answer: answer["changes"][0].pop("live")),
        ("policy-status", lambda answer: answer.pop("canary")),
        ("policy", lambda answer: answer["engines"]["chat"].pop("slo")),
        ("mode", lambda answer: answer.update(mode="off")),
    ],
)
def test_answers_that_lack_or_change_a_field_do_not(
    view: RecordedView, name: str, spoil: Any
) -> None:
    answer = copy.deepcopy(ASKED[name](view))
    spoil(answer)
    assert problems(name, answer)
