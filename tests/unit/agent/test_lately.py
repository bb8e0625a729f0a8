import pytest

from agent.lately import KEPT_S, Lately


def test_the_share_is_of_the_seconds_asked_for() -> None:
    lately = Lately()
    for second, good in ((10, False), (20, True), (20, True), (21, False)):
        lately.take(second + 0.5, good)
    assert lately.good_share(22.0, 5) == pytest.approx(2 / 3)
    assert lately.good_share(22.0, 60) == 0.5


@pytest.mark.parametrize("seconds", [0, 10])
def test_without_a_stream_in_that_time_there_is_no_share(seconds: float) -> None:
    lately = Lately()
    assert lately.good_share(100.0, seconds) is None
    lately.take(50.0, True)
    assert lately.good_share(100.0, seconds) is None


def test_any_number_of_streams_takes_no_more_than_a_second_each() -> None:
    lately = Lately()
    for stream in range(20 * KEPT_S):
        lately.take(stream / 10, stream % 2 == 0)
    assert len(lately._seconds) == KEPT_S
    assert lately.good_share(2 * KEPT_S, KEPT_S) == 0.5
