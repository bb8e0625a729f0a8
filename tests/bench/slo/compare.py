"""Every contender on the same arrivals, and the best of a sweep among them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, Final

from controller.policy_model import Relegation
from demo.trace import Load

from .bench import Bench, Spec
from .contenders import AIMD, BUDGET, DEFAULT, SITS, Contender
from .extent import Extent
from .figures import Run, figures
from .material import Material
from .summary import ratio, summary

RUNNING: Final = "max_running"
DEADLINE: Final = "ttft_deadline_ms"
DEFERRAL: Final = "max_deferral_ms"
MAX_DEFERRAL_MS: Final = Relegation().max_deferral_ms
"""Of the static points with relegation, as in sitsd's default policy; the engine measures its
prefill rate itself."""

SWEEP_WARM_UP: Final = 1
"""Requests: a fixed point has nothing to learn."""


def compare(
    bench: Bench,
    extent: Extent,
    name: str,
    material: Material,
    share: float,
    load: Callable[[int, float], Load],
) -> dict[str, Any]:
    """The entry of one scenario; `load` makes the load of a seed for a window of seconds.

    What is compared runs seed by seed, sitsd between the fixed points: a machine that is shared is
    another one ten minutes later.
    """
    field = _Field(bench, extent, name, material, load)
    sweep = field.sweep(static_points(extent))
    kinds = {"best_static": [point for point, _ in sweep[: extent.finalists]]}
    if DEADLINE in bench.knobs:
        points = relegating_points(kinds["best_static"], extent, material.slo.ttft_ms)
        late = field.sweep(points)
        kinds["best_static_relegation"] = [point for point, _ in late[: extent.finalists]]
        sweep += late
    first, *others = kinds.values()
    made = field.in_turn([DEFAULT, AIMD, *first, SITS, *chain(*others)])
    runs = {each.name: made[each.name] for each in (DEFAULT, SITS, AIMD)}
    best = {kind: best_of(points, made) for kind, points in kinds.items()}
    found = {
        **material.as_dict(),
        "share_of_capacity": share,
        "time_factor": {seed: plan.speed for seed, plan in field.plans.items()},
        **{contender: summary(each) for contender, each in runs.items()},
        **{
            kind: {**summary(made[point.name]), "knobs": dict(point.knobs)}
            for kind, point in best.items()
        },
        "sweep": [{"knobs": dict(point.knobs), "goodput_rps": rps} for point, rps in sweep],
    }
    for contender in best:
        found[f"goodput_ratio_vs_{contender}"] = ratio(found["sits"], found[contender])
    return found


def best_of(points: Sequence[Contender], made: Mapping[str, Sequence[Run]]) -> Contender:
    """The point with the most goodput over all seeds."""
    return max(points, key=lambda point: figures(made[point.name]).goodput_rps)


def static_points(extent: Extent) -> list[Contender]:
    """The grid of token budgets and running caps."""
    return [
        Contender(f"{budget} × {running}", "static", {BUDGET: budget, RUNNING: running})
        for budget in extent.budgets
        for running in extent.running
    ]


def relegating_points(
    points: Iterable[Contender], extent: Extent, slo_ttft_ms: float
) -> list[Contender]:
    """These points, with the engine putting behind others what can't be on time any more."""
    return [
        Contender(
            f"{point.name}, deadline {share:g} × SLO",
            "static",
            {**point.knobs, DEADLINE: round(slo_ttft_ms * share), DEFERRAL: MAX_DEFERRAL_MS},
        )
        for point in points
        for share in extent.deadline_shares
    ]


class _Field:
    """The loads of one scenario, and runs on them."""

    def __init__(
        self,
        bench: Bench,
        extent: Extent,
        name: str,
        material: Material,
        load: Callable[[int, float], Load],
    ) -> None:
        self._bench = bench
        self._name = name
        self._slo = material.slo
        self._first = material.plan(load(extent.seeds[0], extent.sweep_window_s), SWEEP_WARM_UP)
        self.plans = {seed: material.plan(load(seed, extent.window_s)) for seed in extent.seeds}

    def sweep(self, points: Iterable[Contender]) -> list[tuple[Contender, float]]:
        """The goodput of each point on the first seed's shorter window, the best first."""
        found = []
        for point in points:
            spec = Spec(point, self._first, self._slo)
            run = self._bench.run(f"{self._name}, sweep, {point.name}", spec)
            found.append((point, figures([run]).goodput_rps))
        return sorted(found, key=lambda each: -each[1])

    def in_turn(self, contenders: Sequence[Contender]) -> dict[str, list[Run]]:
        """Each one's run for each seed, by name; all run on a seed before the next."""
        made: dict[str, list[Run]] = {each.name: [] for each in contenders}
        for seed, plan in self.plans.items():
            for each in contenders:
                label = f"{self._name}, seed {seed}, {each.name}"
                made[each.name].append(self._bench.run(label, Spec(each, plan, self._slo)))
        return made
