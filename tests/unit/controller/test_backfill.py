import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.backfill import GROWTH, MOST_GROWTH, Account, HeldWork, deal, most_deserving

MS = 1_000_000
HELD = st.lists(
    st.builds(
        HeldWork,
        st.text("abcdef", min_size=1, max_size=3),
        st.floats(0.01, 8),
        st.floats(0, 8),
        st.floats(0, 100),
        st.floats(0.01, 1),
    ),
    unique_by=lambda each: each.name,
    max_size=8,
)


def pressed(name: str, held_back_s: float = 0.0, cpu_share: float = 1.0) -> HeldWork:
    return HeldWork(name, 0.4, 0.4, held_back_s, cpu_share)


def test_who_was_held_back_most_gets_most_and_everybody_gets_some() -> None:
    quotas = deal([pressed("little", 1), pressed("most", 9), pressed("some", 5)])
    assert quotas["most"] > quotas["some"]
    assert quotas["some"] == quotas["little"] > 0.4


def test_of_two_that_lost_as_much_the_higher_class_comes_first() -> None:
    quotas = deal([pressed("b", 4, 0.25), pressed("a", 4, 0.7)])
    assert quotas["a"] > quotas["b"]


def test_a_lower_class_comes_first_once_it_lost_enough_more() -> None:
    quotas = deal([pressed("b", 20, 0.25), pressed("a", 4, 0.7)])
    assert quotas["b"] > quotas["a"]


def test_one_that_does_not_press_takes_nothing_from_the_others() -> None:
    alone = deal([pressed("p", 1)])
    both = deal([pressed("p", 1), HeldWork("idle", 0.4, 0.1, 100)])
    assert both["p"] == alone["p"]
    assert both["idle"] == pytest.approx(0.4 * GROWTH)


@given(HELD)
def test_all_grow_none_beyond_twice_and_those_that_press_by_a_quarter_together(
    held: list[HeldWork],
) -> None:
    quotas = deal(held)
    assert quotas.keys() == {each.name for each in held}
    for each in held:
        assert each.quota_cores < quotas[each.name] <= each.quota_cores * MOST_GROWTH + 1e-9
    pressing = [each for each in held if each.used_cores >= 0.8 * each.quota_cores]
    before = sum(each.quota_cores for each in pressing)
    after = sum(quotas[each.name] for each in pressing)
    assert after == pytest.approx(before * GROWTH)


def test_the_most_deserving_of_nobody_is_nobody() -> None:
    assert most_deserving([], {}) is None
    assert most_deserving(["a", "b"], {"b": 1.0}) == "b"


def test_an_account_counts_what_was_used_and_what_was_lost_while_it_was_held() -> None:
    account = Account()
    account = account.take(100 * MS, 80 * MS, 0.8, held=False)
    assert account == Account()
    for _ in range(10):
        account = account.take(100 * MS, 20 * MS, 0.8, held=True)
    assert (account.held_ns, account.used_ns) == (1000 * MS, 200 * MS)
    assert account.held_back_ns == account.since_held_back_ns == 600 * MS


def test_a_new_hold_begins_with_nothing_lost_but_the_totals_go_on() -> None:
    account = Account().take(100 * MS, 0, 1.0, held=True).take(100 * MS, 100 * MS, 1.0, held=False)
    account = account.take(100 * MS, 50 * MS, 1.0, held=True)
    assert account.since_held_back_ns == 50 * MS
    assert account.held_back_ns == 150 * MS


def test_one_that_uses_all_it_would_have_loses_nothing() -> None:
    account = Account().take(100 * MS, 50 * MS, 0.5, held=True)
    assert account.held_back_ns == 0
