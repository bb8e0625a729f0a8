import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.tenants import (
    CPU_WEIGHTS,
    attainment_ratio,
    cpu_weight,
    memory_corrected,
    tenant_weight,
    written_weight,
)

bases = st.integers(1, 10_000)
ratios = st.floats(0, 1)


@pytest.mark.parametrize(
    ("target_ms", "actual_ms", "ratio"), [(100, 50, 1), (100, 100, 1), (100, 200, 0.5), (100, 0, 1)]
)
def test_the_ratio_is_one_while_the_slo_holds(
    target_ms: float, actual_ms: float, ratio: float
) -> None:
    assert attainment_ratio(target_ms, actual_ms) == ratio


@pytest.mark.parametrize(
    ("base", "ratio", "weight"),
    [(100, 1, 100), (100, 0.5, 125), (100, 0, 150), (50, 0.33, 66), (1, 1, 1), (0, 1, 1)],
)
def test_who_is_behind_gets_more(base: int, ratio: float, weight: int) -> None:
    assert tenant_weight(base, ratio) == weight


@pytest.mark.parametrize(
    ("base", "ratio", "weight"),
    [(100, 0.9, 135), (50, 0.3334, 25), (100, 1, 150), (100, 0, 1)],
)
def test_as_written_the_text_gives_the_figures_of_its_table(
    base: int, ratio: float, weight: int
) -> None:
    assert written_weight(base, ratio) == weight


@given(bases, ratios, ratios)
def test_the_words_and_the_code_of_the_text_point_in_opposite_directions(
    base: int, one: float, other: float
) -> None:
    behind, ahead = sorted((one, other))
    assert tenant_weight(base, behind) >= tenant_weight(base, ahead)
    assert written_weight(base, behind) <= written_weight(base, ahead)


@pytest.mark.parametrize(
    ("use", "weight"), [(0, 100), (85, 100), (90, 90), (100, 70), (135, 0), (200, 0)]
)
def test_a_tenant_that_fills_the_memory_gets_less(use: float, weight: float) -> None:
    assert memory_corrected(100, use) == pytest.approx(weight)


def test_both_laws_together() -> None:
    assert cpu_weight(100, 0.5, 95) == 100  # 125·0.8


@given(st.integers(0, 1_000_000), st.floats(-1, 2), st.floats(0, 300))
def test_a_cgroup_takes_every_weight(base: int, ratio: float, use: float) -> None:
    assert CPU_WEIGHTS[0] <= cpu_weight(base, ratio, use) <= CPU_WEIGHTS[1]
