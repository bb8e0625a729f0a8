from hypothesis import given
from hypothesis import strategies as st

from controller.engines.page import Step
from tests.bench.slo.aimd import CUT, LEAST_GAPS, RAISE, Budget, following, p99_gap_ms

MS = 1_000_000


def steps_of(lengths_ms: list[int], seqs: int = 5) -> list[Step]:
    made = []
    end_ns = 0
    for index, length_ms in enumerate(lengths_ms):
        end_ns += length_ms * MS
        made.append(Step(index + 1, end_ns, length_ms * MS, 0, seqs, 0))
    return made


def test_each_sequence_that_generates_has_the_gap_of_its_step() -> None:
    steps = steps_of([1] + [10] * 198 + [50, 50], seqs=2)
    assert p99_gap_ms(steps, 0) == 10
    assert p99_gap_ms(steps_of([1] + [10] * 190 + [50] * 10, seqs=2), 0) == 50


def test_a_step_counts_by_how_many_wait_for_it() -> None:
    few = [Step(1, 1 * MS, MS, 0, 1, 0), Step(2, 11 * MS, 10 * MS, 0, 97, 0)]
    assert p99_gap_ms([*few, Step(3, 91 * MS, 80 * MS, 0, 3, 0)], 0) == 80
    assert p99_gap_ms([*few, Step(3, 91 * MS, 80 * MS, 0, 0, 0)], 0) == 10


def test_what_began_before_the_last_change_is_not_blamed_on_it() -> None:
    steps = steps_of([10, 90] + [10] * 30)
    assert p99_gap_ms(steps, 0) == 90
    assert p99_gap_ms(steps, 100 * MS) == 10


def test_steps_that_were_missed_make_no_gap() -> None:
    steps = steps_of([10] * 40)
    del steps[10:20]
    assert p99_gap_ms(steps, 0) == 10


def test_few_gaps_say_nothing() -> None:
    assert p99_gap_ms(steps_of([10] * 3, seqs=LEAST_GAPS // 2 - 1), 0) is None
    assert p99_gap_ms([], 0) is None


def test_a_gap_over_the_slo_cuts_and_forgets_what_was_before() -> None:
    assert following(Budget(1000, 0), 21.0, 20.0, 77, 64, 2048) == Budget(1000 * CUT, 77)


def test_a_gap_within_the_slo_adds_a_little() -> None:
    assert following(Budget(1000, 5), 20.0, 20.0, 77, 64, 2048) == Budget(1000 + RAISE, 5)


def test_without_a_gap_nothing_changes() -> None:
    assert following(Budget(1000, 5), None, 20.0, 77, 64, 2048) == Budget(1000, 5)


@given(st.floats(64, 2048), st.floats(0, 100))
def test_a_budget_stays_within_its_range(tokens: float, p99_ms: float) -> None:
    assert 64 <= following(Budget(tokens, 0), p99_ms, 20.0, 1, 64, 2048).tokens <= 2048
