"""How well each predictor foresees the load of two real traces: `python -m tests.bench.predict`.

Prints a table and writes build/predict.json. No engine and no kernel take part: the traces are
replayed second by second, and nothing is known of the seconds to come.
"""

import json
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import click

from controller.predict.chooser import PREDICTORS, Chooser
from controller.predict.predictor import Predictor
from tests.bench.ground import ROOT
from tests.bench.seconds import read_seconds

OUT: Final = ROOT / "build" / "predict.json"
TRACES: Final = {
    "code": ROOT / "tests" / "bench" / "traces" / "azure_code_seconds.csv",
    "conv": ROOT / "tests" / "bench" / "traces" / "azure_conv_seconds.csv",
}
HORIZONS_S: Final = (1, 5, 15)
Q: Final = 0.9
WARM_UP_S: Final = 120
"""Judged from then on; learning goes on throughout."""

CHOOSER: Final = "chooser"

Scores = dict[str, float]


def judge(values: Sequence[float], horizon: int, only: str | None, warm_up: int) -> Scores:
    """What came in the `horizon` seconds after each second, against what was foreseen.

    `only` is the predictor that is asked; None leaves the choice to the chooser. `mae` and
    `pinball` are in the values' unit, `coverage` is the share of plans that were enough.
    """
    chooser = Chooser(horizon, Q, PREDICTORS if only is None else {only: PREDICTORS[only]})
    promised: deque[tuple[float, float]] = deque()
    recent: deque[float] = deque(maxlen=horizon)
    count = 0
    off = loss = enough = 0.0
    for second, value in enumerate(values):
        recent.append(value)
        if len(promised) == horizon:
            forecast, plan = promised.popleft()
            if second >= warm_up + horizon:
                came = sum(recent) / horizon
                count += 1
                off += abs(came - forecast)
                loss += max(Q * (came - plan), (Q - 1) * (came - plan))
                enough += came <= plan
        chooser.observe(value)
        promised.append((chooser.outlook.forecast, chooser.outlook.plan))
    return {"mae": off / count, "pinball": loss / count, "coverage": enough / count}


def update_us(make: Callable[[], Predictor], values: Sequence[float], rounds: int = 3) -> float:
    """CPU time that one value and the forecast after it cost, in µs; the best of `rounds`."""
    costs = []
    for _ in range(rounds):
        predictor = make()
        begun_ns = time.process_time_ns()
        for value in values:
            predictor.observe(value)
            predictor.forecast()
        costs.append((time.process_time_ns() - begun_ns) / 1e3 / len(values))
    return min(costs)


class _AsPredictor:
    """The chooser, for its cost."""

    def __init__(self, horizon: int) -> None:
        self._chooser = Chooser(horizon, Q)

    def observe(self, value: float) -> None:
        self._chooser.observe(value)

    def forecast(self) -> float:
        return self._chooser.outlook.forecast


def compare(values: Sequence[float], horizon: int, warm_up: int = WARM_UP_S) -> dict[str, Scores]:
    """Every predictor's scores on one series, and what is better or worse than the last value."""
    found: dict[str, Scores] = {}
    for name in (*PREDICTORS, CHOOSER):
        scores = judge(values, horizon, None if name == CHOOSER else name, warm_up)
        base = found.get("last", scores)
        make = _AsPredictor if name == CHOOSER else PREDICTORS[name]
        found[name] = scores | {
            "mae_ratio": scores["mae"] / base["mae"],
            "pinball_ratio": scores["pinball"] / base["pinball"],
            "update_us": update_us(partial(make, horizon), values[:1000]),
        }
    return found


def table(found: Mapping[str, Mapping[str, Mapping[int, Mapping[str, Scores]]]]) -> str:
    """A line for each trace, series and predictor; a column for each horizon."""
    horizons = "".join(f"{f'next {horizon} s':>26}" for horizon in HORIZONS_S)
    lines = [
        f"MAE and pinball loss at {Q} as ratios to the last value's; coverage of the plan",
        f"{'trace':6}{'series':10}{'predictor':11}{horizons}{'µs':>7}",
    ]
    for trace, by_series in found.items():
        for series, by_horizon in by_series.items():
            for name in (*PREDICTORS, CHOOSER):
                cells = "".join(
                    f"{each['mae_ratio']:10.3f}{each['pinball_ratio']:8.3f}{each['coverage']:8.3f}"
                    for each in (by_horizon[horizon][name] for horizon in HORIZONS_S)
                )
                cost_us = max(by_horizon[horizon][name]["update_us"] for horizon in HORIZONS_S)
                lines.append(f"{trace:6}{series:10}{name:11}{cells}{cost_us:7.1f}")
    return "\n".join(lines)


@click.command()
@click.option("--out", type=click.Path(path_type=Path), default=OUT)
def main(out: Path) -> None:
    """Replay both traces, write --out, print a table."""
    found: dict[str, dict[str, dict[int, dict[str, Scores]]]] = {}
    for trace, path in TRACES.items():
        seconds = read_seconds(path)
        for series, values in (("tokens", seconds.tokens), ("requests", seconds.requests)):
            found.setdefault(trace, {})[series] = {
                horizon: compare(values, horizon) for horizon in HORIZONS_S
            }
            click.echo(f"{trace} {series}: {len(values)} s replayed", err=True)
    out.parent.mkdir(exist_ok=True)
    out.write_text(json.dumps(found, indent=2) + "\n")
    click.echo(table(found))


if __name__ == "__main__":
    main()
