"""Reads bpf/layout.h as text, so that tests can hold layout.py against it field by field."""

import ctypes
import re
from pathlib import Path
from typing import Any, Final

HEADER: Final = (Path(__file__).parents[3] / "bpf" / "layout.h").read_text()

_SCALARS: Final[dict[str, Any]] = {
    "u64": ctypes.c_uint64,
    "u32": ctypes.c_uint32,
    "u16": ctypes.c_uint16,
    "u8": ctypes.c_uint8,
    "char": ctypes.c_uint8,
}


def defines() -> dict[str, int]:
    """Every #define with a value, computed."""
    found: dict[str, int] = {}
    for name, expression in re.findall(r"^#define (\w+) +(.+)$", HEADER, re.MULTILINE):
        found[name] = _value(expression, found)
    return found


def enums() -> dict[str, dict[str, int]]:
    """Every enum: its members and their values."""
    return {
        name: {member: int(value) for member, value in re.findall(r"(\w+) = (\d+),", body)}
        for name, body in re.findall(r"^enum (\w+) \{(.*?)^\};", HEADER, re.MULTILINE | re.DOTALL)
    }


def structs() -> dict[str, type[ctypes.Structure]]:
    """Every struct, as ctypes lays it out: by C's own rules of alignment."""
    constants, found = defines(), dict[str, type[ctypes.Structure]]()
    for name, body in re.findall(r"^struct (\w+) \{(.*?)^\};", HEADER, re.MULTILINE | re.DOTALL):
        fields: list[tuple[str, Any]] = []
        text = re.sub(r"/\*.*?\*/", "", body, flags=re.DOTALL)
        for kind, field, count in re.findall(r"([\w ]+) (\w+)(?:\[(.+?)\])?;", text):
            of = kind.strip().removeprefix("struct ")
            c_type = _SCALARS[of] if of in _SCALARS else found[of]
            fields.append((field, c_type * _value(count, constants) if count else c_type))
        found[name] = type(name, (ctypes.Structure,), {"_fields_": fields})
    return found


def field_names(struct: type[ctypes.Structure]) -> list[str]:
    """The struct's fields in order."""
    return [field[0] for field in struct._fields_]


def _value(expression: str, names: dict[str, int]) -> int:
    """The value of a sum or product of numbers and names: all that the header uses."""
    value = eval(expression, {"__builtins__": {}}, names)
    assert isinstance(value, int)
    return value
