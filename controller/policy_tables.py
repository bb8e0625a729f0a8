"""Frozen dataclasses as the schema of a policy's tables: how they are declared, read and listed."""

import difflib
import json
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, Final, get_type_hints

from controller.policy_rules import Rule, shown
from controller.policy_text import KeyPath

HIDDEN: Final = "(hidden)"
"""What stands for a secret."""


@dataclass(frozen=True, slots=True)
class Key:
    """Marks a dataclass field as a key, as in `gap_ms: Annotated[float, Key(rule, meaning)] = 200`.

    `meaning` is what the documentation says of it. A field whose type is itself such a dataclass
    is a table; other fields are none of the schema's business. A key with the default None is
    optional. A `secret` key holds a table whose values are kept from view. `name` is what the file
    calls it where the field can't have that name.
    """

    rule: Rule
    meaning: str
    secret: bool = False
    name: str = ""


@dataclass(frozen=True, slots=True)
class Problem:
    """Something wrong with the key at `path`; `also` are other keys that it depends on."""

    path: KeyPath
    message: str
    also: tuple[KeyPath, ...] = ()


@dataclass(frozen=True, slots=True)
class KeyInfo:
    """One key of the schema, for the documentation. `default` is TOML text, None if there is none.

    `name` is dotted from the root, with NAME for what the user names.
    """

    name: str
    unit: str
    allowed: str
    default: str | None
    meaning: str


def read_fields(
    kind: type[Any],
    raw: Mapping[str, object],
    path: KeyPath,
    problems: list[Problem],
    also: Collection[str] = (),
) -> dict[str, Any]:
    """The arguments for `kind` out of a raw table; what is wrong is added to `problems`.

    A field that is absent or wrong is left out. Keys in `also` are read elsewhere.
    """
    schema = {name: (field, item) for field, name, item in _schema(kind)}
    known = [*schema, *also]
    values: dict[str, Any] = {}
    for name, value in raw.items():
        where = (*path, name)
        if name in schema:
            field, item = schema[name]
            before = len(problems)
            read = _read(item, value, where, problems)
            if len(problems) == before:
                values[field] = read
        elif name not in also:
            problems.append(Problem(where, f"unknown key{_suggestion(name, known)}"))
    return values


def read_value(rule: Rule, value: object, path: KeyPath, problems: list[Problem]) -> Any:
    """`value` as `rule` takes it, or None and a problem."""
    try:
        return rule.read(value)
    except ValueError as error:
        why = f": {error}" if str(error) else ""
        held = shown(value) if rule.quoted else "what it is"
        problems.append(Problem(path, f"must be {rule.allowed}, not {held}{why}"))
        return None


def read_table(value: object, path: KeyPath, problems: list[Problem]) -> dict[str, object]:
    """`value` if it is a table, else an empty one and a problem."""
    if isinstance(value, dict):
        return value
    problems.append(Problem(path, f"must be a table, not {shown(value)}"))
    return {}


def key_infos(kind: type[Any], prefix: str = "") -> Iterator[KeyInfo]:
    """Every key of `kind` and of the tables in it, in order of declaration."""
    defaults = {item.name: item.default for item in fields(kind)}
    for field, name, item in _schema(kind):
        if isinstance(item, Key):
            default = defaults[field]
            yield KeyInfo(
                name=prefix + name,
                unit=item.rule.unit,
                allowed=item.rule.allowed,
                default=None if default in (MISSING, None) else shown(default),
                meaning=item.meaning,
            )
        else:
            yield from key_infos(item, f"{prefix}{name}.")


def plain_fields(value: Any, *, secrets: bool = False) -> dict[str, Any]:
    """A dataclass of keys and tables as what JSON and TOML can hold; what is None is left out.

    Without `secrets`, the values of secret tables are replaced.
    """
    result: dict[str, Any] = {}
    for field, name, item in _schema(type(value)):
        held = getattr(value, field)
        if not isinstance(item, Key):
            result[name] = plain_fields(held, secrets=secrets)
        elif item.secret and not secrets:
            result[name] = dict.fromkeys(held, HIDDEN)
        elif held is not None:
            result[name] = str(held) if isinstance(held, Path) else held
    return result


def key_name(path: KeyPath) -> str:
    """A key as TOML writes it, such as `engines.chat.slo` or `engines."a b"`."""
    name = ""
    for part in path:
        if isinstance(part, int):
            name += f"[{part}]"
            continue
        bare = re.fullmatch(r"[A-Za-z0-9_-]+", part)
        name += ("." if name else "") + (part if bare else json.dumps(part, ensure_ascii=False))
    return name


def _schema(kind: type[Any]) -> list[tuple[str, str, Key | type[Any]]]:
    """The keys and tables of `kind`: field, name in the file, and what it is."""
    schema: list[tuple[str, str, Key | type[Any]]] = []
    for field, hint in get_type_hints(kind, include_extras=True).items():
        marks = [mark for mark in getattr(hint, "__metadata__", ()) if isinstance(mark, Key)]
        if marks:
            schema.append((field, marks[0].name or field, marks[0]))
        elif isinstance(hint, type) and is_dataclass(hint) and _schema(hint):
            schema.append((field, field, hint))
    return schema


def _read(item: Key | type[Any], value: object, path: KeyPath, problems: list[Problem]) -> Any:
    if isinstance(item, Key):
        return read_value(item.rule, value, path, problems)
    return item(**read_fields(item, read_table(value, path, problems), path, problems))


def _suggestion(name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    if near:
        return f', did you mean "{near[0]}"?'
    return ", known here: " + ", ".join(known)
