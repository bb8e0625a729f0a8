import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.node_budget import (
    LEAST_SHARE,
    LEAST_WEIGHT,
    Claim,
    divide,
    groups,
    is_off,
    weight_caps,
)

ONE = frozenset({0})
CLAIMS = st.lists(
    st.builds(
        Claim,
        st.text("abcdefgh", min_size=1, max_size=3),
        st.floats(0.01, 1),
        st.floats(0, 4),
        st.frozensets(st.integers(0, 3), min_size=1, max_size=4),
    ),
    unique_by=lambda each: each.name,
    max_size=11,
)


def claim(name: str, value: float, cores: float, cpus: frozenset[int] = ONE) -> Claim:
    return Claim(name, value, cores, cpus)


def test_what_fits_is_given_in_full() -> None:
    assert divide([claim("a", 0.1, 0.4), claim("b", 0.9, 0.5)], 1.0) == {"a": 0.4, "b": 0.5}


def test_where_only_one_slo_can_be_met_it_is_the_one_worth_more() -> None:
    grants = divide([claim("a", 0.7, 0.8), claim("b", 0.25, 0.8)], 1.0)
    assert grants["a"] == 0.8
    assert grants["b"] == pytest.approx(0.2)


def test_two_that_fit_are_worth_more_than_one_that_is_worth_more_than_either() -> None:
    claims = [claim("big", 0.7, 0.9), claim("x", 0.4, 0.4), claim("y", 0.4, 0.4)]
    grants = divide(claims, 1.0)
    assert (grants["x"], grants["y"]) == (0.4, 0.4)
    assert grants["big"] == pytest.approx(0.2)


def test_one_that_was_not_chosen_has_its_least() -> None:
    grants = divide([claim("a", 1, 0.95), claim("b", 0.1, 0.95)], 1.0)
    assert grants["b"] == pytest.approx(LEAST_SHARE)


@given(CLAIMS, st.floats(0.1, 8))
def test_no_more_is_given_than_is_there_nor_than_is_wanted(
    claims: list[Claim], capacity: float
) -> None:
    grants = divide(claims, capacity)
    assert grants.keys() == {each.name for each in claims}
    assert sum(grants.values()) <= capacity * (1 + 1e-9) + 1e-9
    for each in claims:
        assert grants[each.name] <= each.cores + 1e-9


@given(CLAIMS)
def test_engines_that_share_no_cpu_are_in_no_group_and_all_are_in_one(claims: list[Claim]) -> None:
    found = groups(claims)
    assert sorted(c.name for group in found for c in group) == sorted(c.name for c in claims)
    for at, group in enumerate(found):
        for other in found[at + 1 :]:
            assert not {x for c in group for x in c.cpus} & {x for c in other for x in c.cpus}


@given(CLAIMS)
def test_the_largest_grant_of_a_group_has_the_highest_weight(claims: list[Claim]) -> None:
    caps = weight_caps(claims, 10_000)
    assert all(LEAST_WEIGHT <= weight <= 10_000 for weight in caps.values())
    for group in groups(claims):
        assert max(caps[each.name] for each in group) == 10_000


def test_engines_that_want_less_than_there_is_are_not_capped() -> None:
    assert weight_caps([claim("a", 1, 0.3), claim("b", 1, 0.4)], 10_000) == {
        "a": 10_000,
        "b": 10_000,
    }


def test_two_in_trouble_on_one_core_are_not_both_given_the_highest_weight() -> None:
    caps = weight_caps([claim("a", 0.7, 0.9), claim("b", 0.25, 0.9)], 10_000)
    assert caps["a"] == 10_000
    assert caps["b"] == pytest.approx(10_000 / 9, rel=0.01)


def test_a_small_change_is_no_reason_to_divide_anew() -> None:
    assert not is_off({"a": 1000}, {"a": 1200})
    assert is_off({"a": 1000}, {"a": 1300})
    assert is_off({"a": 1000}, {"a": 1000, "b": 1})
