"""What counts as growth of a service under a steady load."""

import pytest

from tests.bench.growth import LEAST_SAMPLES, Allowance, growth

FDS = {"fds": Allowance(more=2)}
KIB = {"kib": Allowance(share=0.05, more=100)}


def test_what_goes_up_and_down_has_not_grown() -> None:
    (found,) = growth([{"fds": 10 + number % 3} for number in range(100)], FDS)
    assert (found.first, found.last, found.too_much) == (11, 11, False)


def test_a_descriptor_lost_now_and_then_is_found() -> None:
    (found,) = growth([{"fds": 10 + number // 10} for number in range(100)], FDS)
    assert found.too_much


def test_what_fills_up_at_the_beginning_and_then_stays_is_no_growth() -> None:
    samples = [{"kib": min(50_000.0, 20_000.0 + 2_000 * number)} for number in range(100)]
    assert not growth(samples, KIB)[0].too_much


@pytest.mark.parametrize(("last", "too_much"), [(1_150, False), (1_151, True)])
def test_a_share_and_so_much_more_are_allowed(last: float, too_much: bool) -> None:
    samples = [{"kib": 1_000.0}] * 60 + [{"kib": last}] * 40
    assert growth(samples, KIB)[0].too_much == too_much


def test_one_large_sample_is_no_growth() -> None:
    samples = [{"kib": 1_000.0}] * 99 + [{"kib": 90_000.0}]
    assert not growth(samples, KIB)[0].too_much


def test_too_few_samples_say_nothing() -> None:
    with pytest.raises(ValueError, match="too few"):
        growth([{"fds": 1}] * (LEAST_SAMPLES - 1), FDS)
