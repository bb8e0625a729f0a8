import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bpf.layout import Counters
from controller.codec import decode, encode
from controller.engines.page import EngineNow
from controller.signals import Signals


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True, slots=True)
class Inner:
    x: float = 1.5
    flag: bool = False


@dataclass(frozen=True, slots=True)
class Outer:
    name: str
    colour: Colour
    mode: Literal["a", "b"] = "a"
    maybe: Inner | None = None
    inner: Inner = field(default_factory=Inner)
    pair: tuple[int, float] = (0, 0.0)
    many: tuple[Inner, ...] = ()
    sizes: Sequence[int] = ()
    by_name: Mapping[str, float] = field(default_factory=dict)


INNERS = st.builds(Inner, st.floats(allow_nan=False), st.booleans())
OUTERS = st.builds(
    Outer,
    st.text(),
    st.sampled_from(Colour),
    st.sampled_from(["a", "b"]),
    st.none() | INNERS,
    INNERS,
    st.tuples(st.integers(), st.floats(allow_nan=False)),
    st.lists(INNERS, max_size=3).map(tuple),
    st.lists(st.integers(), max_size=3).map(tuple),
    st.dictionaries(st.text(), st.floats(allow_nan=False), max_size=3),
)


@given(OUTERS)
def test_what_goes_through_json_comes_back(value: Outer) -> None:
    assert decode(Outer, json.loads(json.dumps(encode(value), allow_nan=False))) == value


def test_not_a_number_comes_back_as_that() -> None:
    assert math.isnan(decode(Inner, json.loads(json.dumps(encode(Inner(math.nan))))).x)


def test_what_is_at_its_default_is_left_out() -> None:
    assert encode(Outer("n", Colour.RED)) == {"name": "n", "colour": "red"}
    assert encode(Inner(2.0)) == {"x": 2.0}


def test_the_loop_s_signals_come_back() -> None:
    signals = Signals(5, 4, Counters(chunks=3), engine=EngineNow(steps=7), totals=Counters(gaps=1))
    assert decode(Signals, json.loads(json.dumps(encode(signals)))) == signals


def test_fields_of_another_version_are_passed_over_or_at_their_default() -> None:
    assert decode(Inner, {"y": 3}) == Inner()


@pytest.mark.parametrize(
    "value",
    [
        {"name": "n"},
        {"name": 5, "colour": "red"},
        {"name": "n", "colour": "green"},
        {"name": "n", "colour": "red", "mode": "c"},
        {"name": "n", "colour": "red", "pair": [1]},
        {"name": "n", "colour": "red", "pair": 1},
        {"name": "n", "colour": "red", "inner": {"x": "much"}},
        {"name": "n", "colour": "red", "by_name": {"a": "b"}},
    ],
)
def test_what_does_not_fit_is_refused(value: Any) -> None:
    with pytest.raises((ValueError, TypeError, KeyError)):
        decode(Outer, value)
