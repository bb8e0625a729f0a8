from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from demo.trace import LengthScale, Request, TraceError, fit, mean_prompt_tokens, read_trace

HEADER = "arrival_s,context_tokens,generated_tokens\n"

requests = st.builds(
    Request,
    st.floats(0, 1e4, allow_nan=False),
    st.integers(1, 10_000),
    st.integers(1, 2_000),
)
traces = st.lists(requests, min_size=2, max_size=60).map(
    lambda found: sorted(found, key=lambda each: each.arrival_s)
)
scales = st.builds(LengthScale, st.floats(0.5, 50), st.integers(1, 4096), st.integers(1, 512))


def test_the_excerpt_is_a_bursty_stretch_with_its_attribution() -> None:
    trace = read_trace()
    assert trace[0].arrival_s == 0
    seconds = [int(each.arrival_s) for each in trace]
    mean = len(trace) / (trace[-1].arrival_s + 1)
    assert max(map(seconds.count, set(seconds))) > 5 * mean


def test_the_excerpt_says_where_it_is_from() -> None:
    head = (Path(__file__).parents[3] / "demo/trace/azure_code_excerpt.csv").read_text()[:700]
    assert all(word in head for word in ("Microsoft", "CC-BY-4.0", "ISCA 2024", "Changed:"))


@given(traces, scales, st.floats(0.1, 100), st.floats(1, 100))
def test_a_load_keeps_order_and_the_shape_of_bursts(
    trace: list[Request], lengths: LengthScale, rate: float, window_s: float
) -> None:
    assume(trace[-1].arrival_s - trace[0].arrival_s > 1e-3)
    load = fit(trace, lengths, rate, window_s)
    for ours, theirs in zip(load.requests, trace, strict=False):
        expected = (theirs.arrival_s - trace[0].arrival_s) / load.speed
        assert ours.arrival_s == pytest.approx(expected)
    assert all(a.arrival_s <= b.arrival_s for a, b in pairwise(load.requests))


@given(traces, scales, st.floats(0.1, 100), st.floats(1, 100))
def test_a_load_lies_in_its_window(
    trace: list[Request], lengths: LengthScale, rate: float, window_s: float
) -> None:
    assume(trace[-1].arrival_s - trace[0].arrival_s > 1e-3)
    load = fit(trace, lengths, rate, window_s)
    assert load.requests[-1].arrival_s <= window_s * (1 + 1e-9)


@given(st.floats(0.5, 20), st.floats(3, 40))
def test_a_load_comes_at_the_rate_that_was_asked_for(rate: float, window_s: float) -> None:
    trace = read_trace()
    assume(3 <= rate * window_s < len(trace))
    load = fit(trace, LengthScale(), rate, window_s)
    assert len(load.requests) == int(rate * window_s)


def test_a_trace_that_is_too_short_is_taken_whole() -> None:
    trace = [Request(float(at), 10, 10) for at in range(5)]
    assert len(fit(trace, LengthScale(), 100, 10).requests) == 5


@given(requests, scales)
def test_lengths_are_divided_and_capped_and_never_nothing(
    request: Request, lengths: LengthScale
) -> None:
    scaled = lengths.apply(request)
    assert 1 <= scaled.prompt_tokens <= max(1, lengths.max_prompt_tokens)
    assert 1 <= scaled.answer_tokens <= max(1, lengths.max_answer_tokens)
    if 1 < scaled.prompt_tokens < lengths.max_prompt_tokens:
        assert scaled.prompt_tokens == round(request.prompt_tokens / lengths.divisor)


def test_a_trace_at_one_moment_cannot_be_fitted() -> None:
    with pytest.raises(TraceError, match="at one time"):
        fit([Request(1.0, 1, 1)] * 3, LengthScale(), 1, 1)


def test_the_mean_prompt_is_that_of_all_requests() -> None:
    assert mean_prompt_tokens([Request(0, 10, 1), Request(1, 30, 1)]) == 20


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b,c\n", "not its header"),
        ("# only a comment\n", "not its header"),
        ("# note\n" + HEADER + "0.0,5,5\n1.0,x,5\n", ":4: not a request"),
        (HEADER + "0.0,5\n", ":2: not a request"),
        (HEADER + "2.0,5,5\n1.0,5,5\n", ":3: earlier than"),
    ],
)
def test_a_bad_trace_is_named_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "trace.csv"
    file.write_text(text)
    with pytest.raises(TraceError, match=message):
        read_trace(file)


def test_a_missing_trace_is_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"could not load trace .*no such file"):
        read_trace(tmp_path / "none.csv")
