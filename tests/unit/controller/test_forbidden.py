"""What a policy forbids of what is held."""

import pytest

from controller.forbidden import forbidden_knobs, forbids_weight
from controller.policy_model import Engine, KnobFloors, Limits, Match, Relegation

ENGINE = Engine(
    "chat",
    Match("port", 1),
    limits=Limits(cpu_weight_max=500),
    knobs=KnobFloors(min_batched_tokens=100, min_running=4),
    relegation=Relegation(max_deferral_ms=1000),
)


@pytest.mark.parametrize(
    ("point", "forbidden"),
    [
        ({}, ()),
        ({"max_batched_tokens": 100, "max_running": 4}, ()),
        ({"max_batched_tokens": 99, "max_running": 3}, ("max_batched_tokens", "max_running")),
        ({"ttft_deadline_ms": 900, "max_deferral_ms": 1000}, ()),
        ({"ttft_deadline_ms": 900, "max_deferral_ms": 1001}, ("max_deferral_ms",)),
        ({"max_queued": 1}, ()),
    ],
)
def test_knobs_below_their_floor_or_deferring_too_long_are_forbidden(
    point: dict[str, float], forbidden: tuple[str, ...]
) -> None:
    assert forbidden_knobs(ENGINE, point) == forbidden


def test_a_deadline_is_forbidden_where_nobody_may_be_passed_over() -> None:
    engine = Engine("chat", Match("port", 1), relegation=Relegation(max_deferral_ms=0))
    assert forbidden_knobs(engine, {"ttft_deadline_ms": 900}) == ("ttft_deadline_ms",)


@pytest.mark.parametrize(("weight", "forbids"), [(None, False), (500, False), (501, True)])
def test_a_weight_above_the_highest_is_forbidden(weight: int | None, forbids: bool) -> None:
    assert forbids_weight(ENGINE, weight) is forbids
