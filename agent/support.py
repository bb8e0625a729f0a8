"""What a report of a problem needs, and nothing that is nobody's business.

Prompts and answers are never in sits, and secrets of the policy are hidden by the agent. What is
taken out here besides: request paths that are no known call, clients' addresses, whatever follows
a secret's name.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from agent.client import AgentClient, ClientError
from agent.routes import route_of

HIDDEN: Final = "(removed)"
_SECRET: Final = re.compile(
    r"(?i)(\b[\w-]*(?:authorization|password|passwd|secret|token|api[-_]?key)[\"']?\s*[=:]\s*)"
    r"(?:bearer\s+|basic\s+)?[^\s,;]+"
)
_BEARER: Final = re.compile(r"(?i)\b(bearer\s+)[^\s,;]+")
_ADDRESS: Final = re.compile(r"\b\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?\b|\[[0-9a-fA-F:]+\]:\d+")
_GONE: Final = frozenset({"remote", "remote_port", "connection"})


def questions(agent: AgentClient) -> Mapping[str, Callable[[], Any]]:
    """Every file of a bundle, and what is asked for it."""
    return {
        "status.json": agent.status,
        "doctor.json": agent.doctor,
        "policy.json": agent.policy,
        "policy-status.json": agent.policy_status,
        "journal.json": lambda: agent.journal(200),
        "worst.json": lambda: agent.journal(50, order="worst"),
        "streams.json": lambda: agent.streams(limit=200),
        "explain.json": lambda: _each(agent, lambda name: agent.explain(name, 300)),
        "stages.json": lambda: _each(agent, lambda name: agent.stages(name, 60)),
    }


def ask(question: Callable[[], Any]) -> Any:
    """An answer without what is not to leave the machine; or why there is none."""
    try:
        return cleaned(question())
    except ClientError as error:
        return {"error": cleaned(str(error))}


def cleaned(answer: Any) -> Any:
    """`answer` without paths, addresses and secrets, in names too."""
    match answer:
        case str():
            return text_without_secrets(answer)
        case Mapping():
            return {
                text_without_secrets(name): _field(name, value) for name, value in answer.items()
            }
        case list() | tuple():
            return [cleaned(each) for each in answer]
        case _:
            return answer


def text_without_secrets(text: str) -> str:
    """`text` without addresses, and without the word after a secret's name."""
    for pattern in (_SECRET, _BEARER):
        text = pattern.sub(rf"\1{HIDDEN}", text)
    return _ADDRESS.sub(HIDDEN, text)


def _field(name: str, value: Any) -> Any:
    if name in _GONE:
        return HIDDEN
    if name == "path" and isinstance(value, str):
        route = route_of(value)
        return route.path if route is not None else HIDDEN
    return cleaned(value)


def _each(agent: AgentClient, one: Callable[[str], Any]) -> dict[str, Any]:
    """An answer for every engine."""
    answers = {}
    for engine in agent.engines()["engines"]:
        try:
            answers[engine["name"]] = one(engine["name"])
        except ClientError as error:
            answers[engine["name"]] = {"error": str(error)}
    return answers
