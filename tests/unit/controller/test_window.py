import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.window import (
    HIGHEST_MS,
    LOWEST_MS,
    BatchTime,
    Window,
    allowed_window_ms,
    batch_window,
    needed_window_ms,
)

# 20 ms a batch and 2 ms a request
ENGINE = BatchTime(20, 2)

times = st.builds(BatchTime, st.floats(0, 300), st.floats(0, 50))
rates = st.floats(0, 100_000)
slos = st.floats(1, 10_000)
batches = st.one_of(st.just(math.inf), st.integers(1, 512).map(float))


@pytest.mark.parametrize(
    ("arrival_rps", "needed_ms"),
    [
        (0, -math.inf),
        (40, (22 - 25) / (1 - 0.08)),  # alone in 22 ms, one comes every 25
        (100, (22 - 10) / (1 - 0.2)),
        (250, (22 - 4) / (1 - 0.5)),
        (400, (22 - 2.5) / (1 - 0.8)),
        (500, math.inf),  # 2 ms a request take all the time
        (900, math.inf),
    ],
)
def test_the_window_that_is_needed(arrival_rps: float, needed_ms: float) -> None:
    assert needed_window_ms(ENGINE, arrival_rps) == pytest.approx(needed_ms)


def test_a_batch_of_the_needed_window_takes_as_long_as_the_next_one_gathers() -> None:
    window_ms = needed_window_ms(ENGINE, 250)
    assert ENGINE.of(1 + 0.25 * window_ms) == pytest.approx(window_ms + 4)


def test_the_window_that_the_slo_allows() -> None:
    # 0.85·200 − 22 = 148 ms, of which each ms of waiting brings 0.5 ms of work
    assert allowed_window_ms(ENGINE, 250, 200, 0.85) == pytest.approx(148 / 1.5)
    assert allowed_window_ms(ENGINE, 0, 200, 0.85) == pytest.approx(148)
    assert allowed_window_ms(ENGINE, 250, 20, 0.85) < 0


@pytest.mark.parametrize(
    ("arrival_rps", "slo_ms", "largest", "window"),
    [
        (0, 200, math.inf, Window(5, True, True)),
        (40, 200, math.inf, Window(5, True, True)),
        (100, 200, math.inf, Window(15, True, True)),
        (250, 200, math.inf, Window(36, True, True)),
        (400, 300, math.inf, Window(98, True, True)),
        (400, 200, math.inf, Window(82, False, True)),  # the SLO allows no 98 ms
        (900, 2000, math.inf, Window(200, False, True)),
        (250, 200, 8, Window(28, False, True)),  # 7 more have come after 28 ms
        (250, 200, 1, Window(5, False, True)),
        (100, 20, math.inf, Window(5, False, False)),  # a batch alone takes longer
    ],
)
def test_the_window(arrival_rps: float, slo_ms: float, largest: float, window: Window) -> None:
    assert batch_window(ENGINE, arrival_rps, slo_ms, 0.85, largest) == window


def test_a_rate_that_is_no_number_counts_as_none() -> None:
    assert batch_window(ENGINE, math.nan, 200) == batch_window(ENGINE, 0, 200)
    assert batch_window(ENGINE, math.inf, 200).keeps_up is False


@given(times, rates, slos, st.floats(0.5, 1), batches)
def test_a_window_is_of_whole_milliseconds_in_its_range(
    engine: BatchTime, rate: float, slo_ms: float, margin: float, largest: float
) -> None:
    window = batch_window(engine, rate, slo_ms, margin, largest)
    assert LOWEST_MS <= window.ms <= HIGHEST_MS
    assert window.meets_slo or window.ms == LOWEST_MS


@given(times, rates, slos, batches)
def test_no_shorter_window_keeps_up(
    engine: BatchTime, rate: float, slo_ms: float, largest: float
) -> None:
    window = batch_window(engine, rate, slo_ms, 0.85, largest)
    for shorter_ms in range(LOWEST_MS, window.ms):
        reached = min(largest, 1 + rate * shorter_ms / 1e3)
        assert rate / 1e3 * engine.of(reached) > reached * (1 - 1e-9)


@given(times, rates, slos, st.floats(1, 3))
def test_more_arrivals_never_shorten_the_window_while_the_slo_allows_it(
    engine: BatchTime, rate: float, slo_ms: float, more: float
) -> None:
    less_load = batch_window(engine, rate, slo_ms)
    more_load = batch_window(engine, rate * more, slo_ms)
    if more_load.keeps_up:
        assert less_load.keeps_up
        assert more_load.ms >= less_load.ms


def took_ms(engine: BatchTime, rate: float, window_ms: float, seconds: int) -> list[float]:
    """How long each request took; arrivals at random, a batch is what came in its window."""
    chance = random.Random(1)
    arrivals, now = [], 0.0
    while now < 1e3 * seconds:
        now += chance.expovariate(rate / 1e3)
        arrivals.append(now)
    took: list[float] = []
    free_ms, first = 0.0, 0
    while first < len(arrivals):
        closes_ms = arrivals[first] + window_ms
        last = first
        while last < len(arrivals) and arrivals[last] <= closes_ms:
            last += 1
        free_ms = max(closes_ms, free_ms) + engine.of(last - first)
        took += [free_ms - arrival for arrival in arrivals[first:last]]
        first = last
    return took


@pytest.mark.parametrize("rate", [100, 250, 350])
def test_with_random_arrivals_the_slo_holds_with_the_window_chosen(rate: float) -> None:
    # planned for more than comes on average, as a planning quantile is
    window = batch_window(ENGINE, 1.15 * rate, 400)
    assert window.keeps_up
    took = sorted(took_ms(ENGINE, rate, window.ms, 120))
    assert took[int(0.99 * len(took))] <= 400


@pytest.mark.parametrize("rate", [250, 350])
def test_with_half_the_window_needed_the_engine_falls_behind(rate: float) -> None:
    took = took_ms(ENGINE, rate, needed_window_ms(ENGINE, rate) / 2, 120)
    assert took[-1] > 10_000
