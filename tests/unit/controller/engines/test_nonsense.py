import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.engines.nonsense import MOST, nonsense
from controller.engines.page import EngineNow

GOOD = EngineNow(
    updated_ns=5, steps=50, running=3, kv_used=70, kv_total=100, requests_total=9, finished_total=6
)


def test_what_may_be_true_is_taken() -> None:
    assert nonsense(GOOD, None, 64) == ""
    assert nonsense(GOOD, GOOD, 64) == ""
    assert nonsense(replace(GOOD, steps=51, running=64, kv_used=100), GOOD, 64) == ""
    # an engine may not know the size of its cache, nor say how many it runs at most
    assert nonsense(replace(GOOD, kv_total=0, running=10_000), GOOD, math.inf) == ""


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"running": 2**63}, "running is 9223372036854775808"),
        ({"waiting": 10**300}, "waiting is 1000"),
        ({"oldest_arrival_ns": 2**64 - 1}, "oldest_arrival_ns is 18446744073709551615"),
        ({"kv_used": 101}, "kv_used is 101 of a kv_total of 100"),
        ({"running": 65}, "running is 65, and max_running never above 64"),
        ({"steps": 49}, "steps went back from 50 to 49"),
        ({"requests_total": 0}, "requests_total went back from 9 to 0"),
    ],
    ids=str,
)
def test_what_can_not_be_is_told_in_words(wrong: dict[str, int], why: str) -> None:
    said = nonsense(replace(GOOD, **wrong), GOOD, 64)
    assert said.startswith(why)
    assert len(said) < 100


@given(st.tuples(*(22 * [st.integers(0, 2**64 - 1)])), st.tuples(*(22 * [st.integers(0, MOST)])))
def test_what_is_taken_is_exact_in_a_float(now: tuple[int, ...], before: tuple[int, ...]) -> None:
    if not nonsense(EngineNow(*now), EngineNow(*before), math.inf):
        assert all(int(float(figure)) == figure for figure in now)
