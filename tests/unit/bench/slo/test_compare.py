import pytest

from tests.bench.slo.compare import DEADLINE, relegating_points, static_points
from tests.bench.slo.engines import engine_named
from tests.bench.slo.extent import FULL, QUICK
from tests.bench.slo.summary import all_loops, loop_of, ratio


def test_the_full_sweep_has_sixteen_points_or_more_and_three_seeds() -> None:
    assert len(static_points(FULL)) >= 16
    assert len(FULL.seeds) >= 3
    assert len({tuple(point.knobs.items()) for point in static_points(FULL)}) == len(
        static_points(FULL)
    )


def test_points_with_relegation_keep_the_others_knobs() -> None:
    points = static_points(QUICK)
    late = relegating_points(points, FULL, 400.0)
    assert len(late) == len(points) * len(FULL.deadline_shares)
    assert {point.knobs[DEADLINE] for point in late} == {300, 380}
    assert all(point.knobs.items() >= points[0].knobs.items() for point in late[:2])


def test_a_ratio_to_nothing_is_none() -> None:
    assert ratio({"goodput_rps": 3.0}, {"goodput_rps": 2.0}) == 1.5
    assert ratio({"goodput_rps": 3.0}, {"goodput_rps": 0.0}) is None


def test_loops_are_told_together_by_median_and_worst() -> None:
    loops = [
        {
            "ticks": 100,
            "late_ticks": late,
            "reaction_ms": {"p50": p50, "p99": p99},
            "decide_us": {"p50": 10.0, "p99": 50.0},
        }
        for late, p50, p99 in ((1, 1.0, 3.0), (2, 2.0, 9.0), (0, 5.0, None))
    ]
    found = loop_of(loops)
    assert found["reaction_ms"] == {"p50": 2.0, "p99": 9.0}
    assert (found["ticks"], found["late_ticks"]) == (300, 3)


def test_the_loops_of_all_scenarios_and_levels_are_found() -> None:
    loop = {
        "ticks": 10,
        "late_ticks": 1,
        "reaction_ms": {"p50": 1.0, "p99": 2.0},
        "decide_us": {"p50": 1.0, "p99": 2.0},
    }
    result = {
        "setup": {"slo": {"ttft_multiple": 15.0}},
        "bursty": {"default": {}, "sits": {"loop": loop}, "goodput_ratio_vs_best_static": 1.0},
        "overload": {"sits": {"levels": {"1.5": {"loop": loop}}}},
    }
    assert all_loops(result)["ticks"] == 20
    assert all_loops({})["reaction_ms"] == {"p50": None, "p99": None}


def test_an_engine_that_is_not_there_is_named_with_those_that_are() -> None:
    with pytest.raises(ValueError, match=r"no engine 'triton' yet; it has: reference, vllm"):
        engine_named("triton")
