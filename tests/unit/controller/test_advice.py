import math
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.advice import (
    CALM_S,
    ROOM,
    UTILISATION,
    Advice,
    Held,
    Observed,
    advise,
    band,
    banded_factor,
    fires,
    latency_factor,
    load_ratio,
    settle,
    text_instances,
    warm_replicas,
)

positive = st.floats(0.01, 1e6)


@pytest.mark.parametrize(
    ("rps", "l99_ms", "slo_ms", "base_rps", "instances"),
    [
        (520, 100, 200, 50, 10),  # below the SLO latency does not count
        (520, 200, 200, 50, 10),
        (520, 240, 200, 50, 14),  # 1.2^1.5 = 1.31
        (520, 400, 200, 50, 29),  # 2^1.5 = 2.83
        (520, 800, 200, 50, 83),  # 4^1.5 = 8
        (10, 100, 200, 50, 1),
        (0, 100, 200, 50, 1),
        (74, 100, 200, 50, 1),
        (76, 100, 200, 50, 2),
    ],
)
def test_the_texts_formula(
    rps: float, l99_ms: float, slo_ms: float, base_rps: float, instances: int
) -> None:
    assert text_instances(rps, l99_ms, slo_ms, base_rps) == instances


@pytest.mark.parametrize("base_rps", [0, -1, math.nan, math.inf, 1e-320])
def test_without_a_base_the_text_says_nothing(base_rps: float) -> None:
    assert text_instances(10, 100, 200, base_rps) is None


@pytest.mark.parametrize(
    ("l99_ms", "least", "most"),
    [(0, 0.8, 0.8), (149, 0.8, 0.8), (150, 1, 1), (199, 1, 1), (200, 1.3, 2.1), (999, 1.3, 2.1)],
)
def test_the_texts_bands(l99_ms: float, least: float, most: float) -> None:
    assert band(l99_ms, 200) == (least, most)
    assert band(10 * l99_ms, 2000) == (least, most)


@pytest.mark.parametrize(
    ("l99_ms", "factor"),
    [(100, 0.8), (160, 1.0), (200, 1.3), (260, 1.3 * 1.3**0.5), (400, 2.1)],
)
def test_within_its_band_the_formula_counts(l99_ms: float, factor: float) -> None:
    assert banded_factor(l99_ms, 200) == pytest.approx(factor)


def test_the_formula_does_not_shrink_where_the_band_does() -> None:
    assert latency_factor(100, 200) == 1
    assert banded_factor(100, 200) == 0.8


@given(positive, positive, positive, positive, st.floats(1, 10))
def test_the_text_never_advises_fewer_for_more_load_or_latency(
    rps: float, l99_ms: float, slo_ms: float, base_rps: float, more: float
) -> None:
    wanted = text_instances(rps, l99_ms, slo_ms, base_rps)
    busier = text_instances(rps * more, l99_ms, slo_ms, base_rps)
    later = text_instances(rps, l99_ms * more, slo_ms, base_rps)
    assert wanted is not None
    assert busier is not None
    assert later is not None
    assert min(busier, later) >= wanted >= 1


def test_engines_are_loaded_to_their_utilisation() -> None:
    assert load_ratio(UTILISATION * 10, 10) == 1
    assert load_ratio(24, 10) == pytest.approx(3)


@pytest.mark.parametrize("capacity_rps", [0, -1, math.inf, math.nan, 1e-320])
def test_a_capacity_that_is_not_known_gives_no_ratio(capacity_rps: float) -> None:
    assert load_ratio(10, capacity_rps) is None


def test_more_engines_are_advised_at_once() -> None:
    assert settle(None, 2, 2, 0) == Held(2)
    assert settle(Held(2), 5, 6, 0) == Held(5)


def test_fewer_only_after_they_would_have_done_for_long() -> None:
    held = Held(3)
    for second in range(int(CALM_S)):
        held = settle(held, 2, 2, second)
        assert held.instances == 3
    assert settle(held, 2, 2, CALM_S) == Held(2)


def test_a_moment_of_need_starts_the_wait_anew() -> None:
    held = settle(settle(Held(3), 2, 2, 0), 3, 3, 100)
    assert settle(held, 2, 2, CALM_S + 1) == Held(3, CALM_S + 1)


def test_fewer_are_not_advised_while_they_would_not_do_for_a_little_more() -> None:
    assert settle(Held(3, 0), 2, 3, 10 * CALM_S) == Held(3)


def test_a_clock_that_goes_back_starts_the_wait_anew() -> None:
    assert settle(Held(3, 500.0), 2, 2, 10.0) == Held(3, 10.0)


def test_a_load_that_swings_about_a_threshold_does_not_flap() -> None:
    chance = random.Random(1)
    advice = Advice()
    numbers = []
    for second in range(4 * 3600):
        # between 1.9 and 2.1 engines' worth
        planned = UTILISATION * 10 * (2 + 0.1 * math.sin(second / 40) + chance.gauss(0, 0.02))
        advice = advise(advice, Observed(float(second), 500, planned, planned, 10.0))
        numbers.append(advice.instances["capacity"])
    assert set(numbers[60:]) == {3}


def test_going_from_n_to_fewer_is_done_once() -> None:
    chance = random.Random(1)
    advice = Advice()
    numbers = []
    for second in range(2 * 3600):
        level = 2.6 if second < 1800 else 1.6
        planned = UTILISATION * 10 * (level + chance.gauss(0, 0.05))
        advice = advise(advice, Observed(float(second), 500, planned, planned, 10.0))
        numbers.append(advice.instances["capacity"])
    changes = [second for second in range(1, 7200) if numbers[second] != numbers[second - 1]]
    assert changes == [pytest.approx(1800 + CALM_S, abs=2)]
    assert numbers[-1] == 2


@given(st.lists(st.tuples(st.floats(0, 1000), st.floats(0, 100)), max_size=60))
def test_what_is_advised_is_never_less_than_what_is_needed_now(
    steps: list[tuple[float, float]],
) -> None:
    held: Held | None = None
    now_s = 0.0
    for need, wait_s in steps:
        now_s += wait_s
        wanted, with_room = (max(1, math.ceil(n)) for n in (need, need * (1 + ROOM)))
        held = settle(held, wanted, with_room, now_s)
        assert held.instances >= wanted


@pytest.mark.parametrize(
    ("on", "figure", "fired"),
    [(False, 0.99, False), (False, 1.0, True), (True, 0.8, True), (True, 0.79, False)],
)
def test_a_trigger_goes_off_below_where_it_fires(on: bool, figure: float, fired: bool) -> None:
    assert fires(on, figure, 1.0) == fired


@pytest.mark.parametrize(
    ("triggers", "replicas"),
    [
        ({}, 0),
        ({"queue": True}, 0),
        ({"queue": True, "p95": False}, 0),
        ({"queue": False, "p95": True}, 0),
        ({"queue": True, "p95": True}, 1),
        ({"queue": True, "p95": True, "kv_hits": False}, 0),
        ({"queue": True, "p95": True, "kv_hits": True}, 1),
        ({"p95": True, "kv_hits": True}, 0),
    ],
)
def test_a_replica_is_warmed_up_when_the_whole_chain_fired(
    triggers: dict[str, bool], replicas: int
) -> None:
    assert warm_replicas(triggers) == replicas


BUSY = Observed(
    now_s=100,
    slo_ttft_ms=500,
    rps=20,
    planned_rps=24,
    capacity_rps=10,
    ttft_p95_ms=600,
    ttft_p99_ms=2000,
    waiting=40,
    running=20,
    kv_hit_rate=0.5,
)


def test_both_formulas_and_the_triggers_stand_side_by_side() -> None:
    advice = advise(Advice(), BUSY)
    assert advice.instances == {"text": 16, "capacity": 3}  # 20·4^1.5/10 and 24/(0.8·10)
    assert advice.load_ratio == pytest.approx(3)
    assert advice.triggers == {"queue": True, "p95": True, "kv_hits": False}
    assert advice.warm_replicas == 0


def test_a_drop_of_the_hit_rate_completes_the_chain() -> None:
    advice = Advice()
    for second in range(100, 700):
        advice = advise(advice, replace(BUSY, now_s=second))
    advice = advise(advice, replace(BUSY, now_s=700, kv_hit_rate=0.35))
    assert advice.triggers["kv_hits"]
    assert advice.warm_replicas == 1


def test_a_hit_rate_that_stays_low_becomes_the_usual_one() -> None:
    advice = advise(Advice(), BUSY)
    for second in range(101, 4000):
        advice = advise(advice, replace(BUSY, now_s=second, kv_hit_rate=0.35))
    assert not advice.triggers["kv_hits"]


def test_what_is_not_known_is_not_advised() -> None:
    advice = advise(Advice(), Observed(1, 500, 20, 24))
    assert advice.instances == {}
    assert advice.load_ratio is None
    assert advice.warm_replicas is None


def test_without_traffic_one_engine_is_enough_and_none_is_warmed_up() -> None:
    advice = advise(Advice(), Observed(1, 500, 0, 0, 10, None, None, 0, 0))
    assert advice.instances == {"text": 1, "capacity": 1}
    assert advice.triggers == {"queue": False, "p95": False}
    assert advice.warm_replicas == 0


def test_a_capacity_that_is_lost_takes_the_advice_with_it() -> None:
    advice = advise(advise(Advice(), BUSY), replace(BUSY, capacity_rps=None))
    assert advice.instances == {}
