"""The tracing document names every attribute and event there is, and no other."""

import re
from pathlib import Path

from agent.request_head import SpanRef, read_head
from agent.spans import Beginning, Meanwhile, decision_span, injection_span, request_span
from agent.streams import StreamLog
from controller.policy import parse_policy
from controller.policy_model import Slo
from tests.unit.agent.made import end, start

TEXT = (Path(__file__).parents[3] / "docs/tracing.md").read_text()
REF = SpanRef(1, 2)


def documented(heading: str) -> list[str]:
    part = TEXT.split(f"## {heading}\n")[1].split("\n## ")[0]
    return re.findall(r"(?m)^\| `([^`]+)` \|", part)


def test_the_attributes_of_a_request_are_those_of_the_code() -> None:
    log = StreamLog()
    log.started("chat", start(), "canary")
    ended = log.ended("chat", end(None, at_ns=5, status=500), Slo(), "batch")
    head = read_head(b"POST /v1/completions HTTP/1.1\r\n\r\n")
    span = request_span(ended, Beginning(REF, head, 0), "slow", Meanwhile(1, 1))
    assert documented("The span of a request") == list(span.attributes)
    assert span.events
    assert all(f"`{each.name}`" in TEXT for each in span.events)


def test_the_attributes_of_a_decision_are_those_of_the_code() -> None:
    message = {
        "mono_ns": 1,
        "engine": "chat",
        "mode": "shadow",
        "cause": "batch",
        "action": [],
        "signals": {"NAME": 1},
        "reason": "",
    }
    span = decision_span(message, "applied", 1, REF, 0, ())
    assert documented("The span of a decision") == list(span.attributes)


def test_the_attributes_of_an_injection_are_those_of_the_code() -> None:
    span = injection_span(0.8, 5, "why", REF, 0)
    assert documented("The span of an injection") == list(span.attributes)


def test_the_example_is_a_policy() -> None:
    (example,) = re.findall(r"```toml\n(.*?)```", TEXT, re.DOTALL)
    assert parse_policy(example, "docs/tracing.md").otel.endpoint
