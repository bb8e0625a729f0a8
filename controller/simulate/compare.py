"""The same arrivals under several controls: engine defaults, static points, AIMD, ours."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

from controller.admission import relegation_point
from controller.batching import BUDGET, RUNNING
from controller.policy_model import Controller, Engine, Relegation
from controller.simulate.controls import Aimd, Control, Fixed, Ours
from controller.simulate.simulation import Figures, simulate
from controller.simulate.virtual_engine import EngineSpec
from controller.simulate.workload import Arrival

LABEL: Final = "simulated"
"""Stands with every figure that comes from here."""

CONTROLS: Final = ("default", "static", "static-relegation", "aimd", "sits", "sits-fcfs")
"""`static-relegation` are the static points with the engine's relegation switched on; `sits-fcfs`
is the controller without it: first come, first served."""

GRIDS: Final = ("static", "static-relegation")
BUDGET_POINTS: Final = 8
RUNNING_SHARES: Final = (1.0, 0.25)
LEAST_BUDGET: Final = 64


@dataclass(frozen=True, slots=True)
class Outcome:
    """One control's figures, a run for each seed; `point` is of a static one."""

    control: str
    point: Mapping[str, float]
    runs: tuple[Figures, ...]

    @property
    def goodput_rps(self) -> float:
        """Mean over the seeds."""
        return sum(run.goodput_rps for run in self.runs) / len(self.runs)

    @property
    def attainment(self) -> float:
        """Mean over the seeds."""
        return sum(run.attainment for run in self.runs) / len(self.runs)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "label": LABEL,
            "control": self.control,
            "point": dict(self.point),
            "goodput_rps": self.goodput_rps,
            "attainment": self.attainment,
            "runs": [run.as_dict() for run in self.runs],
        }


@dataclass(frozen=True, slots=True)
class Setting:
    """What all runs of a comparison share: engine, policy of it, the controller's, and seeds."""

    spec: EngineSpec
    policy: Engine
    controller: Controller = field(default_factory=Controller)
    seeds: tuple[int, ...] = (0,)


def plain_setting(setting: Setting) -> dict[str, Any]:
    """A setting for JSON: the engine, and what it owes."""
    return {
        **asdict(setting.spec),
        "slo": asdict(setting.policy.slo),
        "max_deferral_ms": setting.policy.relegation.max_deferral_ms,
        "seeds": list(setting.seeds),
    }


def grid(spec: EngineSpec) -> tuple[dict[str, float], ...]:
    """Static points: budgets from the start value down to `LEAST_BUDGET`, and caps.

    Budgets are in equal ratios. The first point is the engine's defaults.
    """
    least = min(LEAST_BUDGET, spec.max_batched_tokens)
    ratio = (least / spec.max_batched_tokens) ** (1 / (BUDGET_POINTS - 1))
    budgets = sorted(
        {round(spec.max_batched_tokens * ratio**i) for i in range(BUDGET_POINTS)}, reverse=True
    )
    caps = sorted({max(1, round(spec.max_running * share)) for share in RUNNING_SHARES})[::-1]
    return tuple({BUDGET: float(b), RUNNING: float(cap)} for cap in caps for b in budgets)


def compare(
    arrivals: Sequence[Arrival],
    setting: Setting,
    controls: Iterable[str] = CONTROLS,
    told: Callable[[Outcome], None] = lambda _: None,
) -> list[Outcome]:
    """An outcome for each of `controls`; `static` gives one for each point of the grid.

    `told` hears each as soon as it is known.
    """
    outcomes = []
    for name in controls:
        points = grid(setting.spec) if name in GRIDS else ({},)
        for point in points:
            runs = tuple(
                simulate(
                    arrivals, setting.spec, setting.policy.slo, control(name, setting, point), seed
                ).figures
                for seed in setting.seeds
            )
            outcomes.append(Outcome(name, point, runs))
            told(outcomes[-1])
    return outcomes


def relegation(setting: Setting) -> dict[str, float]:
    """The knobs of relegation as set once and for all; the engine measures its own rate."""
    knobs, deferral_ms = setting.spec.knobs(), setting.policy.relegation.max_deferral_ms
    return relegation_point(knobs, setting.policy.slo, deferral_ms)


def best(outcomes: Iterable[Outcome], name: str) -> Outcome | None:
    """The outcome of that control with the highest goodput; None without one."""
    return max(
        (each for each in outcomes if each.control == name),
        key=lambda each: each.goodput_rps,
        default=None,
    )


def control(name: str, setting: Setting, point: Mapping[str, float]) -> Control:
    """A control by its name; `ValueError` if there is none of it."""
    knobs = setting.spec.knobs()
    match name:
        case "default":
            return Fixed()
        case "static":
            return Fixed(point)
        case "static-relegation":
            return Fixed({**point, **relegation(setting)})
        case "aimd":
            return Aimd(int(setting.policy.slo.gap_ms * 1e6), knobs[BUDGET])
        case "sits":
            return Ours(setting.policy, setting.controller, knobs, setting.spec.graph_sizes)
        case "sits-fcfs":
            policy = replace(setting.policy, relegation=Relegation(max_deferral_ms=0))
            return Ours(policy, setting.controller, knobs, setting.spec.graph_sizes)
    raise ValueError(f"no control {name!r}: there is {', '.join(CONTROLS)}")
