from dataclasses import replace
from typing import Final

import pytest

from controller.engines.page import EngineNow
from controller.policy_model import Controller, Engine, Match, Slo
from controller.recording import Inputs, some_of
from controller.simulate.controls import Fixed, Ours
from controller.simulate.fitting import FitError, between_ms, fit, noise_of, step_times
from controller.simulate.simulation import simulate
from controller.simulate.virtual_engine import EngineSpec, StepTimes
from controller.simulate.workload import poisson

SLO: Final = Slo(ttft_ms=1000, gap_ms=40)
CHAT: Final = Engine("chat", Match("port", 1), slo=SLO)
SPEC: Final = EngineSpec(
    StepTimes(6.0, 0.05, 0.3, 2e-5, noise=0.1, between_ms=0.7),
    40_000,
    32,
    1024,
    1024,
    500,
    (1, 2, 4, 8),
)


@pytest.fixture(scope="module")
def recorded() -> list[Inputs]:
    """A minute, sampled as the loop does it."""
    found: list[Inputs] = []

    def heard(inputs: Inputs, _: object) -> None:
        if not found or inputs.signals.now_ns - found[-1].signals.now_ns >= 1_000_000_000:
            found.append(replace(inputs, steps=some_of(ours.watch.steps)))

    ours = Ours(CHAT, Controller(), SPEC.knobs(), SPEC.graph_sizes, heard)
    simulate(poisson(lambda _: 4.0, 60, 600, 60, seed=4), SPEC, SLO, ours)
    return found


def test_the_engine_that_was_recorded_comes_back(recorded: list[Inputs]) -> None:
    spec = fit(recorded)
    assert spec.times.base_ms == pytest.approx(6.0, rel=0.2)
    assert spec.times.prefill_ms == pytest.approx(0.05, rel=0.15)
    assert spec.times.mean_ms(0, 8, 4000) == pytest.approx(SPEC.times.mean_ms(0, 8, 4000), rel=0.1)
    assert spec.times.noise == pytest.approx(0.1, rel=0.4)
    assert spec.times.between_ms == pytest.approx(0.7, abs=0.01)
    assert replace(spec, times=SPEC.times) == SPEC


def test_exact_steps_give_exact_times_and_disturbed_ones_are_left_out() -> None:
    times = StepTimes(5.0, 0.02, 0.25, 1e-4)
    loads = [(p, n, 300 * n + 70 * (n % 5) + p % 7) for n in range(1, 20) for p in (0, 0, 100, 900)]
    steps = [(round(times.mean_ms(*load) * 1e6), *load, -1) for load in loads]
    disturbed = [(400_000_000, 0, 3, 900, -1)] * 4
    found = step_times(steps + disturbed)
    assert found is not None
    for name in ("base_ms", "prefill_ms", "decode_ms", "kv_ms"):
        assert getattr(found, name) == pytest.approx(getattr(times, name), rel=1e-3)
    assert noise_of(found, steps) == pytest.approx(0, abs=1e-6)
    assert between_ms(steps) == 0


def test_the_fit_has_the_mean_of_steps_that_take_longer_now_and_then() -> None:
    times = StepTimes(5.0, 0.02, 0.25)
    loads = [(p, n, 300 * n) for n in range(1, 20) for p in (0, 0, 100, 900)]
    steps = [
        (round(factor * times.mean_ms(*load) * 1e6), *load, -1)
        for load in loads
        for factor in (1, 1, 2)
    ]
    found = step_times(steps)
    assert found is not None
    for load in loads:
        assert found.mean_ms(*load) == pytest.approx(4 / 3 * times.mean_ms(*load), rel=0.01)


def test_noise_leaves_the_mean_of_steps_where_it_is() -> None:
    arrivals = poisson(lambda _: 4.0, 100, 100, 40, seed=1)
    calm = EngineSpec(StepTimes(5.0, 0, 0))
    noisy = replace(calm, times=replace(calm.times, noise=0.5))
    means = [simulate(arrivals, each, SLO, Fixed()).figures.mean_step_ms for each in (calm, noisy)]
    assert means[1] == pytest.approx(means[0], rel=0.05)


def test_steps_all_alike_give_times_that_explain_them() -> None:
    steps = [(8_000_000, 0, 4, 1000, -1)] * 50 + [(28_000_000, 1000, 4, 2000, -1)] * 10
    found = step_times(steps)
    assert found is not None
    assert found.mean_ms(0, 4, 1000) == pytest.approx(8, rel=0.01)
    assert found.mean_ms(1000, 4, 2000) == pytest.approx(28, rel=0.01)
    assert min(found.base_ms, found.prefill_ms, found.decode_ms, found.kv_ms) >= 0


def test_too_few_steps_give_none() -> None:
    assert step_times([(8_000_000, 0, 4, 1000, -1)] * 39) is None
    assert step_times([(8_000_000, 0, 4, 1000, -1)] * 100) is None


def test_the_controller_s_own_model_stands_in_for_steps_that_were_not_kept(
    recorded: list[Inputs],
) -> None:
    bare = [replace(each, steps=()) for each in recorded]
    assert fit(bare).times.prefill_ms == pytest.approx(0.05, rel=0.15)


def test_too_little_is_said(recorded: list[Inputs]) -> None:
    with pytest.raises(FitError, match="nothing is recorded"):
        fit([])
    with pytest.raises(FitError, match="no admin socket"):
        fit([replace(recorded[0], batch_view=None)])
    first = recorded[0]
    assert first.batch_view is not None
    early = replace(first, steps=(), signals=replace(first.signals, engine=EngineNow(steps=1)))
    with pytest.raises(FitError, match="only 0 steps"):
        fit([early])
