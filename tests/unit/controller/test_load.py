import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.engines.page import EngineNow
from controller.load import Load, after


def course(per_s: tuple[int, int, int, int], seconds: int, load: Load | None = None) -> Load:
    """A load that is the same in every second: requests, prompt tokens, ends, answer tokens."""
    load = load or Load()
    base = load.totals or (0, 0, 0, 0)
    for at in range(seconds + 1):
        requests, prompt, finished, generated = (
            before + at * new for before, new in zip(base, per_s, strict=True)
        )
        now = EngineNow(
            requests_total=requests,
            prompt_tokens_total=prompt,
            finished_total=finished,
            generated_tokens_total=generated,
        )
        load = after(load, now, 1.0)
    return load


def test_means_of_a_steady_load_are_what_they_are() -> None:
    load = course((4, 400, 3, 150), 120)
    assert load.known
    assert load.prompt_tokens_per_s == pytest.approx(400)
    assert load.mean_prompt == pytest.approx(100)
    assert load.mean_answer == pytest.approx(50)


def test_what_came_before_the_first_look_is_not_counted() -> None:
    load = after(Load(), EngineNow(requests_total=10_000, prompt_tokens_total=10**7), 1.0)
    assert load.prompt_tokens_per_s == 0
    assert not load.known


def test_few_seconds_or_requests_are_not_enough() -> None:
    assert not course((100, 400, 3, 150), 5).known
    assert not course((0, 0, 1, 50), 60).known


def test_lengths_are_known_before_rates_are() -> None:
    load = course((100, 40_000, 30, 1500), 3)
    assert not load.known
    assert load.lengths_known
    assert load.prompt_per_answer == pytest.approx(400 / 50)


def test_nothing_is_said_of_lengths_before_enough_requests_have_ended() -> None:
    assert not course((100, 400, 1, 50), 5).lengths_known
    assert course((100, 400, 1, 50), 5).prompt_per_answer == 0


def test_an_hour_ago_is_forgotten() -> None:
    load = course((4, 400, 4, 200), 2000, course((40, 40_000, 40, 200), 100))
    assert load.mean_prompt == pytest.approx(100, rel=0.05)


def test_an_engine_whose_totals_shrink_counts_nothing_below_zero() -> None:
    load = course((4, 400, 3, 150), 60)
    again = after(load, EngineNow(), 1.0)
    assert again.requests <= load.requests
    assert again.requests >= 0


totals = st.integers(0, 10**12)


@given(st.lists(st.tuples(totals, totals, totals, totals, st.floats(0, 1e6)), max_size=30))
def test_means_are_finite_and_not_negative(course: list[tuple[int, int, int, int, float]]) -> None:
    load = Load()
    for requests, prompt, finished, generated, passed_s in course:
        now = EngineNow(
            requests_total=requests,
            prompt_tokens_total=prompt,
            finished_total=finished,
            generated_tokens_total=generated,
        )
        load = after(load, now, passed_s)
        for mean in (load.prompt_tokens_per_s, load.mean_prompt, load.mean_answer):
            assert 0 <= mean < float("inf")
