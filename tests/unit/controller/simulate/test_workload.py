from pathlib import Path

import pytest

from controller.simulate.workload import Arrival, Scale, TraceError, poisson, read_trace

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:03.9799600,4808,10
2023-11-16 18:17:04.0319600,3180,8
"""
MOONCAKE = """{"timestamp": 500, "input_length": 6758, "output_length": 500, "hash_ids": [0]}
{"timestamp": 3500, "input_length": 100, "output_length": 7, "hash_ids": [1]}
"""


def written(directory: Path, text: str) -> Path:
    path = directory / "trace"
    path.write_text(text)
    return path


def test_an_azure_trace_begins_at_zero_and_keeps_its_gaps(tmp_path: Path) -> None:
    first, second = read_trace(written(tmp_path, AZURE))
    assert first == Arrival(0.0, 4808, 10)
    assert (second.prompt_tokens, second.answer_tokens) == (3180, 8)
    assert second.arrival_s == pytest.approx(0.052)


def test_a_mooncake_trace_is_read_in_seconds(tmp_path: Path) -> None:
    assert read_trace(written(tmp_path, MOONCAKE)) == (Arrival(0, 6758, 500), Arrival(3, 100, 7))


def test_a_plain_trace_may_have_notes_and_come_out_of_order(tmp_path: Path) -> None:
    text = "# made up\narrival_s,prompt_tokens,answer_tokens\n1,5,6\n2,7,8\n1.5,1,2\n"
    assert read_trace(written(tmp_path, text)) == (
        Arrival(0, 5, 6),
        Arrival(0.5, 1, 2),
        Arrival(1, 7, 8),
    )


def test_only_so_many_requests_are_read_as_were_asked_for(tmp_path: Path) -> None:
    assert len(read_trace(written(tmp_path, AZURE), 1)) == 1


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "unknown header"),
        ("a,b,c\n1,2,3\n", "unknown header 'a,b,c'"),
        ("arrival_s,prompt_tokens,answer_tokens\n", "it has no requests"),
        ("arrival_s,prompt_tokens,answer_tokens\n1,x,2\n", "invalid literal"),
        ('{"timestamp": 1}\n', "input_length"),
    ],
)
def test_a_trace_that_is_none_is_refused_with_its_name(tmp_path: Path, text: str, why: str) -> None:
    with pytest.raises(TraceError, match=why) as refused:
        read_trace(written(tmp_path, text))
    assert str(tmp_path / "trace") in str(refused.value)


def test_a_missing_trace_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="no such file"):
        read_trace(tmp_path / "none")


def test_scaling_divides_time_and_lengths_and_caps_them() -> None:
    scale = Scale(speed=2, divisor=4, max_prompt_tokens=100, max_answer_tokens=50)
    assert scale.apply((Arrival(3, 40, 1), Arrival(5, 4000, 4000))) == (
        Arrival(0, 10, 1),
        Arrival(1, 100, 50),
    )


def test_poisson_arrivals_follow_the_rate() -> None:
    arrivals = poisson(lambda at: 10 if at < 100 else 40, 200, 100, 20, seed=1)
    early = sum(each.arrival_s < 100 for each in arrivals)
    assert early == pytest.approx(1000, rel=0.15)
    assert len(arrivals) - early == pytest.approx(4000, rel=0.1)
    assert all(50 <= each.prompt_tokens <= 150 for each in arrivals)
