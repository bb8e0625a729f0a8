import pytest

from agent.gpu import Owner
from agent.gpu_budget import Worth, gpu_shares
from agent.gpu_model import Device, GpuProcess

ENGINES = {"chat": Worth(0.7), "code": Worth(0.25)}
OWNERS = {
    1: Owner("chat", "engine", "vllm", "/chat"),
    2: Owner("code", "engine", "vllm", "/code"),
    3: Owner("code", "engine", "vllm", "/code"),
    4: Owner("train", "neighbour", "python", "/train"),
    5: Owner(None, "", "python", "/else"),
}


def device(*use: tuple[int, float | None]) -> Device:
    return Device("0", processes=tuple(GpuProcess(pid, 1, percent) for pid, percent in use))


@pytest.mark.parametrize(
    "use",
    [
        [(1, 90.0), (4, 10.0), (5, 90.0)],
        [(1, 40.0), (2, 30.0), (3, 20.0)],
        [(1, None), (2, 90.0)],
        [],
    ],
    ids=["one engine alone", "enough for both", "use unknown", "nobody"],
)
def test_where_nothing_is_short_or_known_nothing_is_divided(
    use: list[tuple[int, float | None]],
) -> None:
    assert gpu_shares(device(*use), OWNERS, ENGINES) == {}


def test_whose_slo_is_worth_more_has_what_it_wants_and_the_other_what_is_left() -> None:
    loaded = ENGINES | {"chat": Worth(0.7, load_ratio=1.5)}
    shares = gpu_shares(device((1, 50.0), (2, 30.0), (3, 20.0)), OWNERS, loaded)
    assert shares == {"chat": pytest.approx(0.75), "code": pytest.approx(0.25)}


def test_an_engine_that_does_less_than_it_could_wants_no_more_than_it_uses() -> None:
    idle = {"chat": Worth(0.7, load_ratio=0.2), "code": Worth(0.25, load_ratio=3.0)}
    shares = gpu_shares(device((1, 20.0), (2, 80.0)), OWNERS, idle)
    assert shares == {"chat": pytest.approx(0.2), "code": pytest.approx(0.8)}
