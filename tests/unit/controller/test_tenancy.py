import pytest

from controller.memory_reader import Level, Reading
from controller.tenancy import attainment_of, memory_use_percent

from .situations import window


@pytest.mark.parametrize(
    ("reading", "percent"),
    [
        (Reading((Level("/t", 1000, 900), Level("", 4000, 1000)), used=900), 90),
        (Reading((Level("", 4000, 3000),), used=1000), 25),
        (Reading((), used=1000), 0),
        (Reading((Level("", 4000, 3000),), used=None), 0),
    ],
)
def test_memory_is_measured_by_the_tenants_own_limit_or_the_machine(
    reading: Reading, percent: float
) -> None:
    assert memory_use_percent(reading) == pytest.approx(percent)


def test_attainment_is_the_share_in_time_and_nothing_without_traffic() -> None:
    late = window(gaps=18, first_chunks=2, gaps_over=3, ttft_over=1)
    assert attainment_of(late) == pytest.approx(0.8)
    assert attainment_of(window()) is None
