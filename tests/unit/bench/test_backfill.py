import pytest

from tests.bench.backfill import Run, next_total, oracle_of, verdict


def run(attainment: float, cores: float, total: float | None = None) -> Run:
    return Run(total, attainment, 1.0, 1.0, 1.0, cores, 100, 0)


@pytest.mark.parametrize(("largest", "wanted"), [(0.0, 0.05), (0.1, 0.2), (0.3, 0.4), (0.9, 0.95)])
def test_what_is_tried_next_lies_beside_the_largest_that_holds(
    largest: float, wanted: float
) -> None:
    sweep = [run(float(total <= largest), total, total) for total in (0.1, 0.3, 0.9, 0.5)]
    assert next_total(sweep) == pytest.approx(wanted)


def test_a_few_halvings_find_what_holds() -> None:
    sweep = [run(float(total <= 0.37), total, total) for total in (0.1, 0.3, 0.5, 0.7, 0.9)]
    for _ in range(3):
        total = next_total(sweep)
        sweep.append(run(float(total <= 0.37), total, total))
    oracle = oracle_of(sweep)
    assert oracle is not None
    assert 0.345 <= oracle.neighbour_cores <= 0.37


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
