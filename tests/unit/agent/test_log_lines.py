"""Decisions and events in the log."""

import logging
from typing import Any

import pytest

from agent.log_lines import log_decision, log_event

DECISION: dict[str, Any] = {
    "engine": "chat",
    "cause": "neighbour_cpu",
    "mode": "control",
    "ack": "applied",
    "reason": "neighbours take 41%",
    "action": [{"target": "chat", "knob": "cpu_weight", "from": 100, "to": 1000}],
}


def record(caplog: pytest.LogCaptureFixture) -> Any:
    (found,) = caplog.records
    return found


def test_a_decision_is_told_with_its_engine_and_cause_as_fields(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    log_decision(DECISION)
    said = record(caplog)
    assert said.getMessage() == (
        "chat: neighbour_cpu: chat cpu_weight 100 → 1000 (neighbours take 41%)"
    )
    assert said.levelno == logging.INFO
    assert said.fields == {
        "SITS_ENGINE": "chat",
        "SITS_CAUSE": "neighbour_cpu",
        "SITS_MODE": "control",
        "SITS_ACK": "applied",
    }


def test_what_was_only_thought_is_for_those_who_debug(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    log_decision(DECISION | {"mode": "shadow"})
    assert caplog.records == []


@pytest.mark.parametrize(
    ("kind", "level"),
    [
        ("start", logging.INFO),
        ("policy", logging.INFO),
        ("engine_lost", logging.WARNING),
        ("foreign_write", logging.WARNING),
        ("limit_refused", logging.WARNING),
    ],
)
def test_an_event_is_told_by_how_bad_it_is(
    caplog: pytest.LogCaptureFixture, kind: str, level: int
) -> None:
    caplog.set_level(logging.DEBUG)
    log_event(kind, "chat", {"detail": "why", "n": 3})
    said = record(caplog)
    assert (said.getMessage(), said.levelno) == (f"{kind}: chat, detail why, n 3", level)
    assert said.fields == {"SITS_EVENT": kind, "SITS_SUBJECT": "chat"}
