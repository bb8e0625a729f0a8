from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.engines.contract import ContractError, Knob
from controller.serving.leases import NS_PER_MS, Leases

KNOBS = {
    "max_running": Knob("max_running", 1, 64, 64, "requests"),
    "max_batched_tokens": Knob("max_batched_tokens", 1, 2048, 2048, "tokens"),
}
START = {"max_running": 64, "max_batched_tokens": 2048}
MAX_LEASE_MS = 1000


def fresh() -> Leases:
    return Leases(KNOBS, MAX_LEASE_MS)


def code_of(act: Callable[..., object], *arguments: object, **named: object) -> str:
    with pytest.raises(ContractError) as caught:
        act(*arguments, **named)
    return caught.value.code


owners = st.sampled_from(["a", "b"])
epochs = st.integers(-1, 12)
terms = st.integers(-1, 1200)
values = st.dictionaries(
    st.sampled_from([*KNOBS, "concurrency"]),
    st.one_of(st.integers(-5, 3000), st.floats(), st.none(), st.booleans()),
    max_size=2,
)
acts = st.one_of(
    st.tuples(st.just("set"), owners, epochs, terms, values),
    st.tuples(st.just("prepare"), owners, epochs, terms, values, terms),
    st.tuples(st.just("commit"), owners, epochs),
    st.tuples(st.just("abort"), owners, epochs),
    st.tuples(st.just("release"), owners),
    st.tuples(st.just("apply")),
    st.tuples(st.just("expire")),
)


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 600), acts), max_size=40))
def test_no_interleaving_leaves_a_value_without_a_lease_or_out_of_range(
    steps: list[tuple[int, tuple[Any, ...]]],
) -> None:
    leases = fresh()
    now_ns = 0
    taken = 0
    for ms, (name, *arguments) in steps:
        now_ns += ms * NS_PER_MS
        before = (dict(leases.values), leases.lease, leases.prepared, leases.taken_epoch)
        overdue = (deadline := leases.deadline_ns()) is not None and deadline <= now_ns
        try:
            if name == "apply":
                leases.expire(now_ns)
                leases.apply()
                assert leases.pending == {}
            elif name == "prepare":
                leases.prepare(now_ns, *arguments[:-1], term_ms=arguments[-1])
            else:
                getattr(leases, name)(now_ns, *arguments)
        except ContractError:
            after = (dict(leases.values), leases.lease, leases.prepared, leases.taken_epoch)
            assert overdue or before == after
        for at in (leases.values, leases.wanted):
            assert all(KNOBS[knob].check(value) == value for knob, value in at.items())
            assert set(at) == set(KNOBS)
        if leases.lease is None:
            assert leases.values == START
            assert leases.pending == {}
            assert leases.applied_epoch == 0
        else:
            assert now_ns < leases.lease.deadline_ns <= now_ns + MAX_LEASE_MS * NS_PER_MS
        if leases.lease and leases.prepared:
            assert leases.lease.owner == leases.prepared.owner
        assert leases.taken_epoch >= taken
        assert leases.applied_epoch <= leases.taken_epoch
        taken = leases.taken_epoch
    end_ns = now_ns + MAX_LEASE_MS * NS_PER_MS
    leases.expire(end_ns)
    assert leases.values == START
    assert leases.deadline_ns() is None


def test_a_set_is_pending_until_the_next_step() -> None:
    leases = fresh()
    leases.set(0, "a", 1, 500, {"max_running": 8})
    assert leases.values == START
    assert leases.pending == {"max_running": 8}
    assert leases.applied_epoch == 0
    leases.apply()
    assert leases.values == {**START, "max_running": 8}
    assert leases.pending == {}
    assert leases.applied_epoch == 1


def test_a_renewal_keeps_the_values_and_moves_the_deadline() -> None:
    leases = fresh()
    leases.set(0, "a", 1, 500, {"max_running": 8})
    leases.apply()
    leases.set(400 * NS_PER_MS, "a", 2, 500, {})
    assert not leases.expire(899 * NS_PER_MS)
    assert leases.values["max_running"] == 8
    assert leases.applied_epoch == 2
    assert leases.expire(900 * NS_PER_MS)
    assert leases.values == START
    assert leases.expiries == 1


def test_a_new_lease_begins_from_the_start_values() -> None:
    leases = fresh()
    leases.set(0, "a", 1, 10, {"max_running": 8})
    leases.apply()
    leases.set(20 * NS_PER_MS, "b", 2, 10, {"max_batched_tokens": 100})
    leases.apply()
    assert leases.values == {"max_running": 64, "max_batched_tokens": 100}


def test_an_expiry_drops_what_is_pending() -> None:
    leases = fresh()
    leases.set(0, "a", 1, 10, {"max_running": 8})
    leases.expire(10 * NS_PER_MS)
    leases.apply()
    assert leases.values == START


def test_another_owner_is_held_off_while_the_lease_lasts() -> None:
    leases = fresh()
    leases.set(0, "a", 1, 10, {})
    assert code_of(leases.set, 0, "b", 2, 10, {}) == "held"
    assert code_of(leases.prepare, 0, "b", 2, 10, {}, term_ms=5) == "held"
    assert code_of(leases.release, 0, "b") == "held"
    leases.set(10 * NS_PER_MS, "b", 2, 10, {})
    assert leases.lease is not None
    assert leases.lease.owner == "b"


def test_an_epoch_out_of_order_is_stale_even_after_its_lease() -> None:
    leases = fresh()
    leases.set(0, "a", 5, 10, {})
    assert code_of(leases.set, 0, "a", 5, 10, {}) == "stale_epoch"
    assert code_of(leases.set, 20 * NS_PER_MS, "b", 4, 10, {}) == "stale_epoch"


def test_one_wrong_value_refuses_the_whole_set() -> None:
    leases = fresh()
    wrong = {"max_running": 8, "max_batched_tokens": 0}
    assert code_of(leases.set, 0, "a", 1, 10, wrong) == "out_of_range"
    assert leases.lease is None
    assert leases.taken_epoch == 0
    assert leases.pending == {}


@pytest.mark.parametrize("lease_ms", [0, -1, MAX_LEASE_MS + 1])
def test_a_lease_outside_its_bounds_is_refused(lease_ms: int) -> None:
    assert code_of(fresh().set, 0, "a", 1, lease_ms, {}) == "out_of_range"


def test_a_release_reverts_at_once() -> None:
    leases = fresh()
    leases.set(0, "a", 1, 500, {"max_running": 8})
    leases.apply()
    assert leases.release(1, "a")
    assert leases.values == START
    assert leases.expiries == 0
    assert not leases.release(2, "a")


def test_a_prepared_change_waits_for_its_commit() -> None:
    leases = fresh()
    leases.prepare(0, "a", 1, 500, {"max_running": 8}, term_ms=100)
    leases.apply()
    assert leases.values == START
    leases.commit(99 * NS_PER_MS, "a", 1)
    leases.apply()
    assert leases.values["max_running"] == 8
    assert leases.lease is not None
    assert leases.lease.deadline_ns == 599 * NS_PER_MS


def test_a_commit_can_be_repeated_but_not_after_its_lease() -> None:
    leases = fresh()
    leases.prepare(0, "a", 1, 50, {"max_running": 8}, term_ms=100)
    leases.commit(0, "a", 1)
    leases.commit(1, "a", 1)
    assert leases.pending == {"max_running": 8}
    assert code_of(leases.commit, 50 * NS_PER_MS, "a", 1) == "not_prepared"


def test_a_promise_lapses_after_its_term() -> None:
    leases = fresh()
    leases.prepare(0, "a", 1, 500, {"max_running": 8}, term_ms=100)
    assert code_of(leases.set, 99 * NS_PER_MS, "b", 2, 10, {}) == "held"
    assert code_of(leases.commit, 100 * NS_PER_MS, "a", 1) == "not_prepared"
    leases.set(100 * NS_PER_MS, "b", 2, 10, {})


def test_an_aborted_change_can_not_be_committed() -> None:
    leases = fresh()
    leases.prepare(0, "a", 1, 500, {"max_running": 8}, term_ms=100)
    assert leases.abort(0, "a", 1)
    assert not leases.abort(0, "a", 1)
    assert code_of(leases.commit, 0, "a", 1) == "not_prepared"


def test_a_renewal_leaves_the_promise_and_a_set_with_values_drops_it() -> None:
    leases = fresh()
    leases.prepare(0, "a", 1, 500, {"max_running": 8}, term_ms=100)
    leases.set(0, "a", 2, 500, {})
    assert leases.prepared is not None
    leases.set(0, "a", 3, 500, {"max_running": 9})
    assert leases.prepared is None


def test_a_commit_after_a_renewal_does_not_lower_the_epoch_in_force() -> None:
    leases = fresh()
    leases.prepare(0, "a", 1, 500, {"max_running": 8}, term_ms=100)
    leases.set(0, "a", 2, 500, {})
    leases.commit(0, "a", 1)
    leases.apply()
    assert leases.applied_epoch == 2
    assert leases.values["max_running"] == 8


def test_a_renewal_while_a_change_is_pending_leaves_it_pending() -> None:
    leases = fresh()
    leases.set(0, "a", 1, 500, {"max_running": 8})
    with suppress(ContractError):
        leases.set(0, "a", 1, 500, {})
    leases.set(0, "a", 2, 500, {})
    assert leases.pending == {"max_running": 8}
    assert leases.applied_epoch == 0


def slow() -> Leases:
    return Leases(KNOBS, MAX_LEASE_MS, at_once=False)


def test_a_slow_engine_keeps_its_values_until_the_end_of_a_lease_is_done() -> None:
    leases = slow()
    leases.set(0, "a", 1, 100, {"max_running": 8})
    leases.done(*leases.begin())
    assert leases.state(0)["applied_epoch"] == 1
    leases.expire(100 * NS_PER_MS)
    ended = leases.state(100 * NS_PER_MS)
    assert (ended["owner"], ended["applied_epoch"]) == (None, 0)
    assert (ended["values"]["max_running"], ended["pending"]) == (8, {"max_running": 64})
    leases.done(*leases.begin())
    assert leases.values == START


def test_a_change_that_ends_after_its_lease_has_no_epoch() -> None:
    leases = slow()
    leases.set(0, "a", 1, 100, {"max_running": 8})
    began = leases.begin()
    leases.expire(100 * NS_PER_MS)
    leases.done(*began)
    assert leases.applied_epoch == 0
    assert leases.pending == {"max_running": 64}


def test_what_was_asked_for_again_while_it_was_made_is_in_force_under_the_later_epoch() -> None:
    leases = slow()
    leases.set(0, "a", 1, 1000, {"max_running": 8})
    began = leases.begin()
    leases.set(0, "a", 2, 1000, {"max_running": 8})
    leases.done(*began)
    assert (leases.pending, leases.applied_epoch) == ({}, 2)
    leases.set(0, "a", 3, 1000, {"max_running": 9})
    began = leases.begin()
    leases.set(0, "a", 4, 1000, {"max_running": 10})
    leases.done(*began)
    assert (leases.pending, leases.applied_epoch) == ({"max_running": 10}, 3)


def test_what_failed_is_refused_for_a_while_and_nothing_else_is() -> None:
    leases = slow()
    leases.set(0, "a", 1, 1000, {"max_running": 8})
    tried, _ = leases.begin()
    leases.fail(tried, START, "it would not", 50 * NS_PER_MS)
    assert leases.state(0)["failed"] == "it would not"
    assert leases.pending == {}
    assert code_of(leases.set, 1, "a", 2, 1000, {"max_running": 8}) == "failed"
    leases.set(1, "a", 2, 1000, {})
    leases.set(1, "a", 3, 1000, {"max_running": 9})
    leases.set(50 * NS_PER_MS, "a", 4, 1000, {"max_running": 8})
    assert "failed" not in leases.state(50 * NS_PER_MS)


def test_a_change_wanted_while_another_failed_stays_wanted() -> None:
    leases = slow()
    leases.set(0, "a", 1, 1000, {"max_running": 8})
    tried, _ = leases.begin()
    leases.set(0, "a", 2, 1000, {"max_running": 9})
    leases.fail(tried, START, "it would not", 50 * NS_PER_MS)
    assert leases.pending == {"max_running": 9}


def test_knobs_taken_by_other_means_are_nobodys_until_reclaimed() -> None:
    leases = slow()
    leases.set(0, "a", 1, 1000, {"max_running": 8})
    leases.done(*leases.begin())
    leases.yield_to("max_running is 3", {**START, "max_running": 3})
    state = leases.state(0)
    assert (state["owner"], state["values"]["max_running"]) == ("max_running is 3", 3)
    assert (state["pending"], state["applied_epoch"], leases.deadline_ns()) == ({}, 0, None)
    for act in (leases.set, leases.prepare):
        named = {"term_ms": 100} if act == leases.prepare else {}
        assert code_of(act, 0, "a", 2, 1000, {}, **named) == "held"
    assert code_of(leases.release, 0, "a") == "held"
    leases.reclaim()
    leases.set(0, "a", 2, 1000, {"max_running": 9})
    assert leases.values == START
