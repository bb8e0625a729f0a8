"""The policy: what to watch, what each engine owes its users, and what may be done about it.

A TOML file; `docs/policy.md` has every key. It is checked as a whole: a policy either holds in full
or is refused with everything that is wrong with it.
"""

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, cast

from controller.plain import plain
from controller.policy_checks import cross_problems
from controller.policy_classes import BUILT_IN, Discovery, ServiceClass
from controller.policy_model import (
    Adapter,
    Agent,
    Controller,
    Engine,
    KnobFloors,
    Limits,
    Match,
    MatchKind,
    Mode,
    MpsDaemon,
    Neighbour,
    Otel,
    Policy,
    Relegation,
    Slo,
)
from controller.policy_rules import NAME, Rule, cgroup, choice, pattern, slice_name, unit, whole
from controller.policy_tables import (
    KeyInfo,
    Problem,
    key_infos,
    key_name,
    read_fields,
    read_table,
    read_value,
)
from controller.policy_text import KeyPath, key_lines, line_of

__all__ = [
    "Adapter",
    "Agent",
    "Controller",
    "Discovery",
    "Engine",
    "KnobFloors",
    "Limits",
    "Match",
    "MatchKind",
    "Mode",
    "MpsDaemon",
    "Neighbour",
    "Otel",
    "Policy",
    "PolicyError",
    "Relegation",
    "ServiceClass",
    "Slo",
    "load_policy",
    "parse_policy",
    "policy_from_json",
    "policy_keys",
    "policy_text",
    "policy_to_json",
]

MAX_POLICY_BYTES: Final = 1 << 20

_ENGINE_MATCHES: Final[Mapping[str, Rule]] = {
    "cgroup": cgroup(children=False),
    "unit": unit(),
    "command": pattern(),
    "port": whole(1, 65_535),
}
_NEIGHBOUR_MATCHES: Final[Mapping[str, Rule]] = {
    **_ENGINE_MATCHES,
    "cgroup": cgroup(children=True),
    "slice": slice_name(),
    "qos": choice("besteffort", "burstable"),
}
_NAMED: Final = ("classes", "engines", "neighbours", "mps")
"""Tables of tables, whose names are the user's."""

_MATCH_MEANINGS: Final[Mapping[str, str]] = {
    "cgroup": "The cgroup it runs in.",
    "unit": "The systemd unit it runs in.",
    "command": "Searched for in the command lines of processes.",
    "port": "The TCP port it listens on.",
    "slice": "A systemd slice: each unit in it is a neighbour of its own.",
    "qos": "A QoS class of Kubernetes: each pod of it is a neighbour of its own.",
}


class PolicyError(ValueError):
    """A policy that can't be used. The message has one line for each problem."""


def load_policy(path: Path) -> Policy:
    """The policy in the file at `path`; `PolicyError` if it can't be read or does not hold."""
    return parse_policy(policy_text(path), str(path))


def policy_text(path: Path) -> str:
    """The text of the policy file at `path`; `PolicyError` if it can't be read."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_POLICY_BYTES + 1)
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise PolicyError(plain(f"could not load policy '{path}': {why}")) from None
    if len(content) > MAX_POLICY_BYTES:
        raise PolicyError(plain(f"could not load policy '{path}': over {MAX_POLICY_BYTES} bytes"))
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        byte = content[error.start]
        raise PolicyError(plain(f"{path}:{line}: not UTF-8: byte 0x{byte:02x}")) from None


def parse_policy(text: str, source: str) -> Policy:
    """The policy in TOML `text`; `PolicyError` names `source`, line and key of every problem."""
    try:
        raw = tomllib.loads(text)
    except RecursionError:
        raise PolicyError(f"{source}: not TOML: nested too deeply") from None
    except ValueError as error:
        raise PolicyError(plain(_syntax_error(text, source, str(error)))) from None
    return _build(raw, source, key_lines(text))


def policy_to_json(policy: Policy) -> str:
    """The policy as one line of JSON, for another process; its secrets are in it."""
    return json.dumps(policy.as_dict(secrets=True), separators=(",", ":"), allow_nan=False)


def policy_from_json(text: str | bytes, source: str = "policy") -> Policy:
    """What `policy_to_json` wrote, checked like a file; `PolicyError` if it does not hold."""
    try:
        raw = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise PolicyError(f"{source}: not JSON: {error}") from None
    if not isinstance(raw, dict):
        raise PolicyError(f"{source}: must be a JSON object")
    return _build(raw, source, {})


def policy_keys() -> list[KeyInfo]:
    """Every key of the schema, for the documentation."""
    infos = [*key_infos(Policy), *key_infos(ServiceClass, "classes.NAME.")]
    for prefix, kind, matches in (
        ("engines.NAME.", Engine, _ENGINE_MATCHES),
        ("neighbours.NAME.", Neighbour, _NEIGHBOUR_MATCHES),
    ):
        infos += [
            KeyInfo(prefix + name, rule.unit, rule.allowed, None, _MATCH_MEANINGS[name])
            for name, rule in matches.items()
        ]
        infos += key_infos(kind, prefix)
    return [*infos, *key_infos(MpsDaemon, "mps.NAME.")]


def _build(raw: Mapping[str, object], source: str, lines: Mapping[KeyPath, int]) -> Policy:
    problems: list[Problem] = []
    policy = Policy(
        **read_fields(Policy, raw, (), problems, also=_NAMED),
        classes=tuple(_classes(raw, problems)),
        engines=tuple(_targets(Engine, _ENGINE_MATCHES, "engines", raw, problems)),
        neighbours=tuple(_targets(Neighbour, _NEIGHBOUR_MATCHES, "neighbours", raw, problems)),
        mps=tuple(_mps(raw, problems)),
    )
    # A key that is wrong stands at its default here; what follows from that is no news.
    wrong = {problem.path for problem in problems}
    problems += [
        problem
        for problem in cross_problems(policy)
        if not any(
            path[:length] in wrong
            for path in (problem.path, *problem.also)
            for length in range(1, len(path) + 1)
        )
    ]
    if problems:
        located = sorted(
            ((_line(problem, lines), problem) for problem in problems),
            key=lambda pair: pair[0] or 0,
        )
        raise PolicyError("\n".join(_message(problem, source, line) for line, problem in located))
    return policy


def _classes(raw: Mapping[str, object], problems: list[Problem]) -> Iterator[ServiceClass]:
    """The classes of the file; what a table leaves out is as built in, where the name is."""
    for name, path, value in _named(raw, "classes", problems):
        table = read_table(value, path, problems)
        fields = read_fields(ServiceClass, table, path, problems)
        yield replace(BUILT_IN.get(name, ServiceClass(name)), **fields)


def _mps(raw: Mapping[str, object], problems: list[Problem]) -> Iterator[MpsDaemon]:
    """The MPS daemons of the file that are said in full; the problems of all are added."""
    for name, path, value in _named(raw, "mps", problems):
        table = read_table(value, path, problems)
        arguments = read_fields(MpsDaemon, table, path, problems)
        missing = [info.name for info in key_infos(MpsDaemon) if info.name not in table]
        if isinstance(value, dict) and missing:
            problems.append(Problem(path, f"needs {' and '.join(missing)}"))
        if len(arguments) == len(list(key_infos(MpsDaemon))):
            yield MpsDaemon(name=name, **arguments)


def _named(
    raw: Mapping[str, object], section: str, problems: list[Problem]
) -> Iterator[tuple[str, KeyPath, object]]:
    """What a section has under each name, and where; a name that is none is a problem."""
    for name, value in read_table(raw.get(section, {}), (section,), problems).items():
        path = (section, name)
        if not NAME.fullmatch(name):
            problems.append(
                Problem(path, "a name is 1 to 63 of a-z, 0-9, - and _, and starts with a-z or 0-9")
            )
        yield name, path, value


def _targets(
    kind: type[Any],
    matches: Mapping[str, Rule],
    section: str,
    raw: Mapping[str, object],
    problems: list[Problem],
) -> Iterator[Any]:
    """The targets of one section that have a match; the problems of all of them are added."""
    for name, path, value in _named(raw, section, problems):
        if not isinstance(value, dict):
            read_table(value, path, problems)
            continue
        arguments = read_fields(kind, value, path, problems, also=matches)
        match = _match(matches, value, path, problems)
        if match is not None:
            yield kind(name=name, match=match, **arguments)


def _match(
    matches: Mapping[str, Rule],
    fields: Mapping[str, object],
    path: KeyPath,
    problems: list[Problem],
) -> Match | None:
    values = {
        kind: read_value(rule, fields[kind], (*path, kind), problems)
        for kind, rule in matches.items()
        if kind in fields
    }
    if len(values) != 1:
        has = " and ".join(values) or "none"
        problems.append(Problem(path, f"needs exactly one of {', '.join(matches)}, has {has}"))
        return None
    ((kind, value),) = values.items()
    return None if value is None else Match(cast(MatchKind, kind), value)


def _line(problem: Problem, lines: Mapping[KeyPath, int]) -> int | None:
    """The line to look at: the key's own, else of a key it rests on, else of what encloses it."""
    for path in (problem.path, *problem.also):
        if path in lines:
            return lines[path]
    return line_of(lines, problem.path)


def _message(problem: Problem, source: str, line: int | None) -> str:
    where = source if line is None else f"{source}:{line}"
    return plain(f"{where}: {key_name(problem.path)}: {problem.message}")


def _syntax_error(text: str, source: str, error: str) -> str:
    """What tomllib says, which ends in where it is, in the form of ours, which starts with it."""
    found = re.fullmatch(
        r"(.*) \(at (?:line (\d+), column (\d+)|end of document)\)", error, re.DOTALL
    )
    if found is None:
        return f"{source}: not TOML: {error}"
    what, line, column = found.groups()
    if line is None:
        lines = text.replace("\r\n", "\n").split("\n")
        line, column = len(lines), len(lines[-1]) + 1
    return f"{source}:{line}:{column}: not TOML: {what[:1].lower()}{what[1:]}"
