import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.predict.buckets import BUCKET_NS, LONGEST_PAUSE, Buckets

MS = 1_000_000


def test_the_first_reading_starts_the_first_interval() -> None:
    assert Buckets().take(5 * BUCKET_NS, 1_000_000) == ()


def test_an_interval_ends_after_a_second_and_its_rate_is_over_the_time_it_took() -> None:
    buckets = Buckets()
    assert buckets.take(0, 100) == ()
    assert buckets.take(983 * MS, 150) == ()
    assert buckets.take(1000 * MS, 160) == (60.0,)
    assert buckets.take(1500 * MS, 200) == ()
    (rate,) = buckets.take(2016 * MS, 220)
    assert rate == pytest.approx(60 / 1.016)


def test_only_the_first_interval_may_be_longer() -> None:
    buckets = Buckets(first_ns=1600 * MS)
    assert buckets.take(0, 100) == ()
    assert buckets.take(1500 * MS, 150) == ()
    assert buckets.take(1600 * MS, 180) == (50.0,)
    assert buckets.take(2600 * MS, 200) == (20.0,)


def test_a_pause_is_as_many_intervals_of_the_same_rate() -> None:
    buckets = Buckets()
    buckets.take(0, 0)
    assert buckets.take(3500 * MS, 70) == (20.0, 20.0, 20.0)


@pytest.mark.parametrize(
    ("now_ns", "total"),
    [(2 * BUCKET_NS, 50), (BUCKET_NS // 2, 200), ((LONGEST_PAUSE + 2) * BUCKET_NS, 200)],
    ids=["count fell", "clock went back", "long pause"],
)
def test_what_can_not_be_told_starts_the_series_anew(now_ns: int, total: int) -> None:
    buckets = Buckets()
    buckets.take(BUCKET_NS, 100)
    assert buckets.take(now_ns, total) == ()
    assert buckets.take(now_ns + BUCKET_NS, total + 30) == (30.0,)


@given(st.lists(st.tuples(st.integers(1, 900), st.integers(0, 1000)), max_size=200))
def test_nothing_is_lost_at_any_pace_of_reading(steps: list[tuple[int, int]]) -> None:
    buckets = Buckets()
    now_ms = total = ended_ms = told = 0
    buckets.take(0, 0)
    counted = 0.0
    for wait_ms, more in steps:
        now_ms, total = now_ms + wait_ms, total + more
        for rate in buckets.take(now_ms * MS, total):
            counted += rate * (now_ms - ended_ms) / 1e3
            ended_ms, told = now_ms, total
    assert counted == pytest.approx(told)
