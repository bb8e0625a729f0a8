"""The canary's verdict: harm is found, equal policies are seldom blamed, noise decides nothing."""

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.canary import LEAST_STREAMS, Kind, Verdict, judge, together
from controller.measures import CLEAR_PAIRS, sign_p
from controller.pairs import Pair, Tally

from .trials import EQUAL, MOST, PLANNED, Load, Policy, histogram, run

MS = 1_000_000


def alike(count: int, bad: int, errors: int = 0, ttft_ms: float = 80, gap_ms: float = 20) -> Tally:
    """Streams of which all have the same latencies."""
    ttft, gap = [ttft_ms * MS] * count, [gap_ms * MS] * count
    return Tally(count, bad, errors, histogram(ttft), histogram(gap))


def verdict(old: Tally, new: Tally, pairs: int = PLANNED) -> Verdict:
    return judge([Pair(old, new)] * pairs, PLANNED, MOST)


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("load", [Load(), Load(per_s=0.7), Load(per_s=20), Load(unsteady=0.4)])
def test_equal_policies_are_adopted(seed: int, load: Load) -> None:
    found, _ = run(seed, load, EQUAL)
    assert found.kind.is_good, found


def test_equal_policies_are_blamed_less_than_once_in_ten_under_a_wild_load() -> None:
    """Slices differ by a factor of e, and of e² once in twenty, whatever the policy."""
    found = [run(seed, Load(unsteady=1.0), EQUAL)[0].kind for seed in range(150)]
    assert found.count(Kind.WORSE) <= 15
    assert sum(each.is_good for each in found) > 100


@settings(max_examples=15, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 40), st.integers(0, 40), st.floats(1, 900), st.floats(1, 900)),
        min_size=14,
        max_size=14,
    )
)
def test_whatever_the_load_does_few_of_its_orders_blame_an_equal_policy(
    slices: list[tuple[int, int, float, float]],
) -> None:
    """Equal policies make every order of each pair as likely as the other: all are tried.

    Each of the four measures blames it in one of 2⁷ orders, or where two pairs say nothing and so
    count for neither, in one of 2⁵.
    """
    made = [alike(n, min(n, bad), 0, ttft_ms, gap_ms) for n, bad, ttft_ms, gap_ms in slices]
    couples = list(zip(made[::2], made[1::2], strict=True))
    blamed = 0
    for order in product((False, True), repeat=len(couples)):
        pairs = [
            Pair(*(couple[::-1] if turned else couple))
            for couple, turned in zip(couples, order, strict=True)
        ]
        blamed += judge(pairs, len(pairs), len(pairs)).kind is Kind.WORSE
    assert blamed <= 4 * 2 ** len(couples) / 2**CLEAR_PAIRS


@pytest.mark.parametrize("seed", range(25))
@pytest.mark.parametrize(
    ("load", "new"),
    [
        (Load(), Policy(slower=2)),
        (Load(), Policy(errors=0.15)),
        (Load(per_s=20), Policy(slower=1.7)),
        (Load(per_s=0.7), Policy(slower=8)),
        (Load(unsteady=0.4), Policy(slower=5)),
    ],
)
def test_a_clearly_worse_policy_is_always_rolled_back(seed: int, load: Load, new: Policy) -> None:
    found, _ = run(seed, load, new)
    assert found.kind is Kind.WORSE, found


@pytest.mark.parametrize("seed", range(10))
def test_clear_harm_ends_the_trial_early(seed: int) -> None:
    found, pairs = run(seed, Load(), Policy(slower=10))
    assert (found.kind, pairs) == (Kind.WORSE, CLEAR_PAIRS)


@pytest.mark.parametrize("seed", range(20))
def test_a_better_policy_is_called_better(seed: int) -> None:
    found, pairs = run(seed, Load(), Policy(slower=0.4))
    assert (found.kind, pairs) == (Kind.BETTER, PLANNED)


def test_b16_a_p95_of_120_ms_against_80_is_rolled_back_and_one_a_little_less_is_not() -> None:
    assert verdict(alike(20, 0, gap_ms=80), alike(20, 0, gap_ms=128)).kind is Kind.WORSE
    assert verdict(alike(20, 0, ttft_ms=80), alike(20, 0, ttft_ms=128)).kind is Kind.WORSE
    assert verdict(alike(20, 0, gap_ms=80), alike(20, 0, gap_ms=104)).kind is Kind.NO_WORSE


def test_b16_errors_above_2_percent_and_the_baseline_are_rolled_back() -> None:
    assert verdict(alike(400, 0), alike(400, 10, errors=10)).kind is Kind.WORSE
    assert verdict(alike(400, 0), alike(400, 7, errors=7)).kind is Kind.NO_WORSE
    assert verdict(alike(400, 40, errors=40), alike(400, 40, errors=40)).kind is Kind.NO_WORSE


def test_a_p95_that_is_a_few_ms_longer_is_no_harm() -> None:
    assert verdict(alike(20, 0, gap_ms=2), alike(20, 0, gap_ms=6)).kind is Kind.NO_WORSE


def test_more_bad_streams_are_harm_though_every_percentile_is_the_same() -> None:
    found = verdict(alike(100, 2), alike(100, 6))
    assert found.kind is Kind.WORSE
    assert found.reason.startswith("bad streams 2.0% → 6.0%, more in 9 and fewer in 0 of 9 pairs")


def test_requests_that_never_get_a_chunk_are_seen() -> None:
    starved = Tally(6, 6, 0, histogram([9_000 * MS] * 6))
    assert verdict(alike(20, 0), starved, CLEAR_PAIRS).kind is Kind.WORSE


def test_before_its_time_only_clear_harm_decides() -> None:
    found = verdict(alike(100, 2), alike(100, 6), PLANNED - 1)
    assert (found.kind, found.reason) == (Kind.WAITING, "8 of 9 pairs of slices")
    assert verdict(alike(100, 2), alike(100, 50), CLEAR_PAIRS - 1).kind is Kind.WAITING
    assert verdict(alike(100, 2), alike(100, 50), CLEAR_PAIRS).kind is Kind.WORSE


def test_nothing_is_known_before_the_first_pair() -> None:
    assert judge([], PLANNED, MOST).kind is Kind.WAITING


def test_too_little_traffic_is_waited_for_up_to_a_bound() -> None:
    each = alike(1, 0)
    assert LEAST_STREAMS > PLANNED
    found = verdict(each, each)
    assert found.kind is Kind.WAITING
    assert found.reason == "9 streams under one of the policies, 30 are needed"
    assert verdict(each, each, MOST).kind is Kind.TOO_LITTLE
    assert verdict(each, each, LEAST_STREAMS).kind is Kind.NO_WORSE
    assert verdict(Tally(), Tally(), MOST).kind is Kind.TOO_LITTLE


def test_a_doubt_is_waited_for_and_in_the_end_ends_in_the_old_policy() -> None:
    """One slice in three is much worse: by luck, or by the policy?"""
    fine, worse = Pair(alike(20, 0), alike(20, 0)), Pair(alike(20, 0), alike(20, 14))
    doubtful = [fine, fine, worse] * 9
    assert judge(doubtful[:PLANNED], PLANNED, MOST).kind is Kind.WAITING
    assert judge(doubtful, PLANNED, MOST).kind in {Kind.UNCLEAR, Kind.WORSE}


def test_what_others_met_too_in_the_same_time_is_no_harm_of_the_policy() -> None:
    """A neighbour came whenever it was the new policy's turn."""
    old, new = alike(100, 2), alike(100, 30, ttft_ms=400, gap_ms=90)
    assert judge([Pair(old, new)] * 9, PLANNED, MOST).kind is Kind.WORSE
    assert judge([Pair(old, new, old, new)] * 9, PLANNED, MOST).kind is Kind.NO_WORSE


def test_that_others_fared_better_is_no_harm_either() -> None:
    same, better = alike(100, 10), alike(100, 1, ttft_ms=20, gap_ms=3)
    assert judge([Pair(same, same, same, better)] * 9, PLANNED, MOST).kind is Kind.NO_WORSE


def test_others_do_not_hide_the_policy_s_own_harm() -> None:
    for seed in range(10):
        found, _ = run(seed, Load(), Policy(slower=6), others=Load(per_s=3))
        assert found.kind is Kind.WORSE


def test_harm_to_one_engine_is_enough_and_one_without_traffic_has_no_voice() -> None:
    verdicts = {kind: Verdict(kind, "") for kind in Kind}

    def of(*kinds: Kind) -> Kind:
        return together([verdicts[kind] for kind in kinds]).kind

    assert of(Kind.BETTER, Kind.WORSE, Kind.WAITING) is Kind.WORSE
    assert of(Kind.BETTER, Kind.WAITING) is Kind.WAITING
    assert of(Kind.TOO_LITTLE, Kind.NO_WORSE) is Kind.NO_WORSE
    assert of(Kind.TOO_LITTLE, Kind.TOO_LITTLE) is Kind.TOO_LITTLE
    assert of(Kind.UNCLEAR, Kind.BETTER) is Kind.UNCLEAR


def test_only_better_and_no_worse_are_adopted() -> None:
    assert {kind for kind in Kind if kind.is_good} == {Kind.BETTER, Kind.NO_WORSE}


@given(st.integers(0, 40), st.integers(0, 40))
def test_the_sign_test_is_that_of_fair_coins(wins: int, losses: int) -> None:
    assert 0 < sign_p(wins, losses) <= 1
    assert sign_p(wins, 0) == 2.0**-wins
    # as many or more of one side, or more of the other: all there is
    assert sign_p(wins, losses) + sign_p(losses + 1, wins - 1) == pytest.approx(1) or not wins
