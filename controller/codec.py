"""Frozen records as plain values for JSON, and back; what is at its default is left out.

A record is a frozen dataclass or a named tuple. A reader of another version finds defaults for
fields it does not get and passes over those it does not know. So what is written once can be read
for a long time.
"""

import math
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Any, Final, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")

_NOT_FINITE: Final = ("inf", "-inf", "nan")
"""JSON has no word for these."""


def encode(value: Any) -> Any:
    """`value` of records, mappings, tuples and scalars, as JSON has it."""
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if value is None or isinstance(value, (int, str)):
        return value
    if isinstance(value, Mapping):
        return {name: encode(item) for name, item in value.items()}
    kind: Any = type(value)
    if isinstance(value, (tuple, list)) and not _is_named(kind):
        return [encode(item) for item in value]
    return {
        name: encode(item)
        for name, default in _defaults(kind)
        if (item := getattr(value, name)) is not default and item != default
    }


def decode(kind: type[T], value: Any) -> T:
    """What `encode` made of an instance of `kind`.

    `ValueError`, `TypeError` or `KeyError` if it does not fit.
    """
    found: T = _decode(kind, value)
    return found


def _decode(kind: Any, value: Any) -> Any:
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        if value is None:
            return None
        (other,) = (each for each in arguments if each is not NoneType)
        return _decode(other, value)
    if origin is Literal:
        if value not in arguments:
            raise ValueError(f"{value!r:.40} is none of {arguments}")
        return value
    if origin is tuple:
        if arguments[-1] is Ellipsis:
            return tuple(_decode(arguments[0], item) for item in value)
        return tuple(_decode(each, item) for each, item in zip(arguments, value, strict=True))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return {name: _decode(arguments[1], item) for name, item in value.items()}
    if origin is not None:  # a sequence
        return tuple(_decode(arguments[0], item) for item in value)
    if is_dataclass(kind) or _is_named(kind):
        made: Any = kind
        hints = _hints(made)
        return made(**{name: _decode(hints[name], value[name]) for name in hints if name in value})
    if kind is float and value in _NOT_FINITE:
        return float(value)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind(value)
    if not isinstance(value, (int, float) if kind is float else kind):
        raise TypeError(f"{value!r:.40} is no {kind.__name__}")
    return value


@cache
def _hints(kind: Any) -> Mapping[str, Any]:
    return get_type_hints(kind)


def _is_named(kind: Any) -> bool:
    """Whether it is a named tuple."""
    return hasattr(kind, "_field_defaults")


@cache
def _defaults(kind: Any) -> tuple[tuple[str, Any], ...]:
    """The names of a record's fields with their defaults; `MISSING` where there is none."""
    if _is_named(kind):
        return tuple((name, kind._field_defaults.get(name, MISSING)) for name in kind._fields)
    return tuple(
        (
            each.name,
            each.default if each.default_factory is MISSING else each.default_factory(),
        )
        for each in fields(kind)
    )
