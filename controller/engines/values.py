"""Knob values on their way to an engine and back."""

from collections.abc import Mapping
from typing import Final

MOST: Final = 2**53
"""The contract's largest number; what is beyond it is nonsense and would not stay exact."""


def whole(values: Mapping[str, float]) -> dict[str, float]:
    """Whole numbers as such: every unit but ratio takes only those."""
    return {
        name: int(value) if float(value).is_integer() else value for name, value in values.items()
    }


def numbers(values: Mapping[object, object]) -> dict[str, float]:
    """What of an engine's values are numbers that can be kept exact."""
    return {
        str(name): float(value)
        for name, value in values.items()
        if isinstance(value, int | float) and type(value) is not bool and abs(value) <= MOST
    }
