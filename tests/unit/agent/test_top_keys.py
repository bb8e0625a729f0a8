import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.top_keys import ORDERS, Choice, ordered

from .recorded import ENGINE, UNSEEN


def engines() -> list[dict[str, object]]:
    calm = copy.deepcopy(ENGINE) | {
        "name": "a-calm",
        "attainment": 1.0,
        "waiting": 0,
        "ttft_ms": {"p50": 1.0, "p99": 1.0},
        "gap_ms": {"p50": 1.0, "p99": 1.0},
        "backpressure": {"value": 0.0},
    }
    return [UNSEEN, calm, ENGINE]


@pytest.mark.parametrize("by", ORDERS[2:])
def test_the_worst_comes_first_and_the_unknown_last(by: str) -> None:
    assert [item["name"] for item in ordered(engines(), by)] == ["chat", "a-calm", "draft"]


def test_engines_can_be_sorted_by_name_or_left_as_in_the_policy() -> None:
    assert [item["name"] for item in ordered(engines(), "name")] == ["a-calm", "chat", "draft"]
    assert [item["name"] for item in ordered(engines(), "policy")] == ["draft", "a-calm", "chat"]


def test_s_goes_through_every_order_and_ends_where_it_began() -> None:
    choice = Choice()
    seen = [(choice := choice.press("s")).by for _ in ORDERS]
    assert seen == [*ORDERS[1:], ORDERS[0]]


@given(st.integers(0, 30))
def test_capital_s_goes_back(times: int) -> None:
    assert Choice().press("s" * times).press("S" * times) == Choice()


def test_space_holds_and_lets_go() -> None:
    assert Choice().press(" ").said == "held"
    assert Choice().press("  ") == Choice()


@given(st.text(st.characters(exclude_characters="sS ")))
def test_other_keys_change_nothing(keys: str) -> None:
    assert Choice().press(keys) == Choice()
