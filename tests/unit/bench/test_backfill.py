import pytest

from tests.bench.backfill import Run, oracle_of, verdict


def run(attainment: float, cores: float) -> Run:
    return Run(None, attainment, 1.0, 1.0, 1.0, cores, 100, 0)


def test_the_oracle_leaves_most_of_those_that_meet_the_slo() -> None:
    sweep = [run(1.0, 0.1), run(0.99, 0.3), run(0.98, 0.6)]
    assert oracle_of(sweep) is sweep[1]
    assert oracle_of([run(0.5, 0.9)]) is None


@pytest.mark.parametrize(("cores", "enough"), [(0.17, False), (0.19, True), (0.5, True)])
def test_sits_is_held_against_what_the_oracle_left(cores: float, enough: bool) -> None:
    found = verdict(run(1.0, 0.3), run(0.995, cores))
    assert found["ratio"] == pytest.approx(cores / 0.3)
    assert (found["enough"], found["slo_holds"]) == (enough, True)


def test_without_an_oracle_there_is_no_ratio_but_the_slo_counts() -> None:
    found = verdict(None, run(0.9, 0.1))
    assert (found["ratio"], found["enough"], found["slo_holds"]) == (None, True, False)
