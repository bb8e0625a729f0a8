import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.starting_point import (
    INTERACTIVE,
    LEAST_BATCH,
    MOST_BATCH,
    THROUGHPUT,
    kv_cache_ratio,
    noise_step,
    starting_point,
)


@pytest.mark.parametrize(
    ("batch", "variance", "target", "after"),
    [
        (100, 0.01, 0.01, 100),
        (100, 0.02, 0.01, 97.5),  # half the target: 1 + 0.05·(0.5 − 1)
        (100, 0.10, 0.01, 97.5),  # no more than that
        (100, 0.005, 0.01, 105),
        (100, 0.0, 0.01, 105),
        (100, 0.0, 0.0, 97.5),  # no target is the strictest
        (100, 0.01 / 1.5, 0.01, 102.5),
        (510, 0.001, 0.01, 512),
        (1.01, 1.0, 0.01, 1),
    ],
)
def test_the_step_by_noise(batch: float, variance: float, target: float, after: float) -> None:
    assert noise_step(batch, variance, target) == pytest.approx(after, rel=1e-3)


def test_a_small_batch_grows_where_the_texts_code_truncates_it() -> None:
    batch = written = 10.0
    for _ in range(50):
        batch = noise_step(batch, 0.001, 0.01)
        written = int(noise_step(written, 0.001, 0.01))
    assert batch > 100
    assert written == 10


@given(
    st.floats(LEAST_BATCH, MOST_BATCH),
    st.floats(-1, 1e9),
    st.floats(0, 1e9),
    st.floats(0, 1),
)
def test_a_step_stays_within_the_range_and_moves_by_its_rate_at_most(
    batch: float, variance: float, target: float, rate: float
) -> None:
    after = noise_step(batch, variance, target, rate)
    assert LEAST_BATCH <= after <= MOST_BATCH
    assert batch * (1 - rate / 2) - 1e-9 <= after <= batch * (1 + rate) + 1e-9


@pytest.mark.parametrize(
    ("batch", "chunk", "ratio"),
    [
        (4, 512, 0.4),  # the text's table: 0.6
        (32, 2048, 0.95),  # the text's table: 0.9
        (4, 1024, 0.75),
        (16, 1024, 0.9),
        (64, 1024, 0.9),
        (16, 768, 0.675),
        (1, 1, 0.4),
    ],
)
def test_the_coupled_share_of_the_cache(batch: float, chunk: float, ratio: float) -> None:
    assert kv_cache_ratio(batch, chunk) == pytest.approx(ratio)


def test_the_texts_table_and_formula_disagree() -> None:
    for point in (INTERACTIVE, THROUGHPUT):
        by_formula = kv_cache_ratio(point.max_running, point.long_prefill_tokens)
        assert abs(by_formula - point.kv_cache_ratio) > 0.04


@pytest.mark.parametrize(
    ("gap_slo_ms", "point"), [(30, INTERACTIVE), (120, INTERACTIVE), (200, THROUGHPUT)]
)
def test_a_tight_slo_starts_small(gap_slo_ms: float, point: object) -> None:
    assert starting_point(gap_slo_ms) == point
