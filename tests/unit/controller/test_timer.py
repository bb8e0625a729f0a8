"""The timer that the loop waits for."""

import selectors
import time
from collections.abc import Iterator

import pytest

from controller.timer import Timer

MS = 1_000_000


@pytest.fixture
def timer() -> Iterator[Timer]:
    made = Timer()
    yield made
    made.close()


def ready(timer: Timer, within_s: float) -> bool:
    with selectors.DefaultSelector() as selector:
        selector.register(timer, selectors.EVENT_READ)
        return bool(selector.select(within_s))


def test_it_is_readable_when_its_time_has_passed_and_not_before(timer: Timer) -> None:
    began_ns = time.monotonic_ns()
    timer.set(3 * MS)
    assert ready(timer, 10)
    assert time.monotonic_ns() - began_ns >= 3 * MS


@pytest.mark.parametrize("in_ns", [0, -5 * MS])
def test_a_time_that_has_passed_is_ready_at_once(timer: Timer, in_ns: int) -> None:
    timer.set(in_ns)
    assert ready(timer, 10)


def test_cleared_it_is_ready_only_when_set_again(timer: Timer) -> None:
    timer.set(0)
    assert ready(timer, 10)
    timer.clear()
    assert not ready(timer, 0)
    timer.clear()
    timer.set(MS)
    assert ready(timer, 10)


def test_set_again_the_time_before_is_forgotten(timer: Timer) -> None:
    timer.set(MS)
    timer.set(3600 * 1000 * MS)
    assert not ready(timer, 0.02)
