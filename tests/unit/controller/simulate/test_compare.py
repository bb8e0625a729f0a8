import pytest

from controller.policy_model import Engine, Match, Slo
from controller.simulate.compare import CONTROLS, Setting, best, compare, grid
from controller.simulate.virtual_engine import EngineSpec, StepTimes
from controller.simulate.workload import poisson

SPEC = EngineSpec(StepTimes(4.0, 0.04, 0.2, 1e-5))
SETTING = Setting(SPEC, Engine("e", Match("port", 1), slo=Slo(1000, 40)))
ARRIVALS = poisson(lambda _: 6.0, 5, 800, 30, seed=3)


def test_the_grid_has_sixteen_different_points_within_the_engine_s_range() -> None:
    points = grid(SPEC)
    assert len({tuple(point.items()) for point in points}) == len(points) == 16
    assert points[0] == {"max_batched_tokens": 2048, "max_running": 64}
    assert all(64 <= point["max_batched_tokens"] <= 2048 for point in points)


def test_every_control_serves_the_same_arrivals_and_says_it_is_simulated() -> None:
    outcomes = compare(ARRIVALS, SETTING)
    assert {each.control for each in outcomes} == set(CONTROLS)
    assert {run.requests for each in outcomes for run in each.runs} == {len(ARRIVALS)}
    assert {each.as_dict()["label"] for each in outcomes} == {"simulated"}


def test_relegation_is_switched_by_the_control_s_name() -> None:
    overload = poisson(lambda at: 5 if at < 5 else 60, 10, 900, 10, seed=3)
    outcomes = compare(
        overload, SETTING, ("static", "static-relegation", "sits", "sits-fcfs"), lambda _: None
    )
    found = {name: best(outcomes, name) for name in ("static", "static-relegation")}
    with_it, without = found["static-relegation"], found["static"]
    assert with_it is not None
    assert without is not None
    assert with_it.goodput_rps > without.goodput_rps
    ours, fcfs = best(outcomes, "sits"), best(outcomes, "sits-fcfs")
    assert ours is not None
    assert fcfs is not None
    assert ours.goodput_rps > fcfs.goodput_rps


def test_the_best_static_point_has_the_most_goodput() -> None:
    outcomes = compare(ARRIVALS, SETTING, ("static",))
    found = best(outcomes, "static")
    assert found is not None
    assert found.goodput_rps == max(each.goodput_rps for each in outcomes)
    assert best(outcomes, "sits") is None


def test_an_unknown_control_is_refused() -> None:
    with pytest.raises(ValueError, match="no control 'magic'"):
        compare(ARRIVALS, SETTING, ("magic",))
