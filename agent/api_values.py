"""The parameters of a request of the admin API, checked; `ApiError` says what is wrong."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import TypeVar
from urllib.parse import parse_qsl
from wsgiref.types import WSGIEnvironment

from agent.agent_view import ApiError
from controller.plain import plain

_Value = TypeVar("_Value")


def query_of(text: str) -> dict[str, str]:
    """The parameters of a query string, each given once."""
    try:
        pairs = parse_qsl(
            text,
            keep_blank_values=True,
            strict_parsing=bool(text),
            errors="strict",
            max_num_fields=20,
        )
    except ValueError:
        raise ApiError(400, "the query is not name=value&name=value in UTF-8") from None
    values = dict(pairs)
    if len(values) != len(pairs):
        twice = next(name for name, _ in pairs if [key for key, _ in pairs].count(name) > 1)
        raise ApiError(400, f"parameter {shown(twice)} is given twice")
    return values


def body_of(environ: WSGIEnvironment, max_bytes: int) -> dict[str, str]:
    """The request's body, a JSON object of strings."""
    length_text = str(environ.get("CONTENT_LENGTH") or "")
    if not re.fullmatch(r"[0-9]{1,18}", length_text):
        raise ApiError(411, "the request needs a body with its Content-Length")
    length = int(length_text)
    if length > max_bytes:
        raise ApiError(413, f"the body is over {max_bytes} bytes")
    content = environ["wsgi.input"].read(length)
    if len(content) < length:
        raise ApiError(400, "the body is shorter than its Content-Length")
    try:
        values = json.loads(content)
    except (ValueError, RecursionError):
        raise ApiError(400, "the body is not JSON") from None
    if not isinstance(values, dict) or not all(isinstance(item, str) for item in values.values()):
        raise ApiError(400, "the body is not a JSON object of strings")
    return values


def known(values: Mapping[str, str], allowed: Sequence[str], path: str) -> Mapping[str, str]:
    """`values`, if `path` takes all of them."""
    for name in values:
        if name not in allowed:
            takes = ", ".join(allowed) or "none"
            raise ApiError(400, f"{path} takes no parameter {shown(name)}; it takes {takes}")
    return values


def whole(
    values: Mapping[str, str], name: str, default: _Value, low: int, high: int
) -> int | _Value:
    """A whole number within `low` and `high`, or `default` where none is given."""
    text = values.get(name)
    if text is None:
        return default
    if not re.fullmatch(r"[0-9]{1,19}", text) or not low <= int(text) <= high:
        raise ApiError(
            400, f"parameter {name} is a whole number from {low} to {high}, not {shown(text)}"
        )
    return int(text)


def number(
    values: Mapping[str, str], name: str, default: _Value, low: float, high: float
) -> float | _Value:
    """A number within `low` and `high`, or `default` where none is given."""
    text = values.get(name)
    if text is None:
        return default
    if not re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,17})?", text) or not low <= float(text) <= high:
        raise ApiError(
            400, f"parameter {name} is a number from {low:g} to {high:g}, not {shown(text)}"
        )
    return float(text)


def switch(values: Mapping[str, str], name: str) -> bool:
    """A parameter that is true or false; false where it is not given."""
    value = values.get(name, "false")
    if value not in {"true", "false"}:
        raise ApiError(400, f"parameter {name} is true or false, not {shown(value)}")
    return value == "true"


def shown(text: str) -> str:
    """What a client sent, short and printable, in quotes."""
    return f"'{plain(text if len(text) <= 60 else text[:59] + '…')}'"
