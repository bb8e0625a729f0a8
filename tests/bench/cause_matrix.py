"""Is the cause named right? Troubles of every kind, one after the other, against sitsd's word.

Each is injected for a few seconds, with a strength drawn at random, into a light load on a real
engine. The verdict is the worst cause of `explain` over that time. Prints the confusion matrix,
and that of the slow streams; writes build/causes.json, with the seed, from which the same strengths
and order are drawn again. `--add` makes one matrix of several short runs.
"""

import json
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import click

from controller.attribution import Cause
from demo.rig import RigError

from .cause_injections import KINDS, Kind
from .cause_rig import ENGINE, CauseRig

GOAL: Final = 0.95
GAP_MS: Final = 40.0
"""Ten steps of the engine without a prompt; one with a long prompt takes several times as long."""

TTFT_MS: Final = 1_500.0
INJECTION_S: Final = (1.5, 2.5)
SETTLE_S: Final = 0.8
"""Until the controller's window is past it and has been told of."""

CALM_S: Final = 2.0
"""What explain tells may begin a moment before what it is asked for."""

CALM_WITHIN_S: Final = 10.0
MOMENT_S: Final = 1.0
"""sitsd keeps what explain tells from once a second."""

NETWORK: Final = frozenset({Cause.NETWORK, Cause.SLOW_READER})


@dataclass(frozen=True, slots=True)
class Trial:
    """One injection and what was said of it: the engine's worst cause and its slow streams'."""

    kind: str
    expected: str
    said: str
    seconds: float
    strength: dict[str, float]
    shares: dict[str, float]
    streams: dict[str, int] = field(default_factory=dict)
    evidence: dict[str, float] = field(default_factory=dict)

    @property
    def right(self) -> bool:
        """Whether it was named right."""
        return self.said == self.expected


def run(
    rig: CauseRig,
    kinds: Sequence[Kind],
    count: int,
    seed: int,
    tell: Callable[[Trial], None] = lambda _: None,
) -> list[Trial]:
    """Inject every kind `count` times, in random order."""
    draw = random.Random(seed)
    order = [kind for kind in kinds for _ in range(count)]
    draw.shuffle(order)
    trials = []
    time.sleep(2 * CALM_S)
    for kind in order:
        trial = _try(rig, kind, draw)
        tell(trial)
        trials.append(trial)
    return trials


def _try(rig: CauseRig, kind: Kind, draw: random.Random) -> Trial:
    _wait_for_calm(rig)
    _, last = _streams(rig, 0)
    began = time.monotonic()
    seconds = round(draw.uniform(*INJECTION_S), 2)
    strength = kind.inject(rig, draw, seconds)
    seconds = time.monotonic() - began
    # the next moment holds all of it, and what it looks back on begins before it, in a calm
    time.sleep(SETTLE_S + MOMENT_S)
    told = rig.explain(round(time.monotonic() - began, 1))
    causes = {each["cause"]: each["share"] for each in told["causes"]}
    slow, _ = _streams(rig, last)
    return Trial(
        kind.name,
        str(kind.cause),
        max(causes, key=lambda cause: causes[cause], default=str(Cause.NONE)),
        round(seconds, 2),
        dict(strength),
        {cause: round(share, 3) for cause, share in causes.items()},
        dict(Counter(each["cause"] for each in slow)),
        told["evidence"],
    )


def _wait_for_calm(rig: CauseRig) -> None:
    """What the last injection left behind (a sender that backs off, a queue) is not the next's."""
    until = time.monotonic() + CALM_WITHIN_S
    while rig.explain(CALM_S)["causes"] and time.monotonic() < until:
        time.sleep(0.2)


def _streams(rig: CauseRig, after: int) -> tuple[list[dict[str, Any]], int]:
    """The slow streams after that one, and the last one there is."""
    slow: list[dict[str, Any]] = []
    while True:
        answer = rig.api.streams(ENGINE, after, 1000)
        slow += [each for each in answer["streams"] if each["cause"] != Cause.NONE]
        if not answer["streams"]:
            return slow, after
        after = answer["next"]


@dataclass(frozen=True, slots=True)
class Row:
    """All trials of one kind."""

    kind: str
    expected: str
    said: dict[str, int]
    streams: dict[str, int]

    @property
    def count(self) -> int:
        """How many there were."""
        return sum(self.said.values())

    @property
    def right(self) -> float:
        """The share that was named right."""
        return self.said.get(self.expected, 0) / self.count


def rows(trials: Iterable[Trial]) -> list[Row]:
    """The confusion matrix."""
    made: dict[str, Row] = {}
    for trial in trials:
        row = made.setdefault(trial.kind, Row(trial.kind, trial.expected, {}, {}))
        row.said[trial.said] = row.said.get(trial.said, 0) + 1
        for cause, count in trial.streams.items():
            row.streams[cause] = row.streams.get(cause, 0) + count
    return list(made.values())


def faults(matrix: Sequence[Row]) -> list[str]:
    """What falls short of the goal."""
    found = [f"{row.kind}: {row.right:.0%} named right" for row in matrix if row.right < GOAL]
    found += [
        f"{row.kind}: blamed on the batch"
        for row in matrix
        if row.expected in NETWORK and Cause.BATCH in row.said
    ]
    return found


def table(matrix: Sequence[Row], counts: Callable[[Row], dict[str, int]]) -> str:
    """The matrix as text: what was injected down, what was said across."""
    causes = [str(cause) for cause in Cause if any(str(cause) in counts(row) for row in matrix)]
    width = max((len(cause) for cause in causes), default=0) + 2
    lines = [" " * 16 + "".join(cause.rjust(width) for cause in causes)]
    for row in matrix:
        cells = "".join(str(counts(row).get(cause, "·")).rjust(width) for cause in causes)
        lines.append(f"{row.kind:16}{cells}")
    return "\n".join(lines)


@click.command()
@click.option(
    "--count", type=click.IntRange(1), default=20, show_default=True, help="Of each kind."
)
@click.option("--seed", type=int, help="Draw the same again.  [default: from the clock]")
@click.option("--kind", "names", multiple=True, help="Only these kinds.")
@click.option("--gap-ms", type=float, default=GAP_MS, show_default=True)
@click.option("--out", type=click.Path(path_type=Path), default=Path("build/causes.json"))
@click.option("--add", is_flag=True, help="To the trials that the file holds already.")
def main(
    count: int, seed: int | None, names: tuple[str, ...], gap_ms: float, out: Path, add: bool
) -> None:
    """Run the matrix; ends with 1 if a row falls short."""
    seed = time.time_ns() % 1_000_000 if seed is None else seed
    click.echo(f"seed {seed}")
    try:
        with CauseRig(gap_ms, TTFT_MS, seed) as rig:
            kinds = [kind for kind in KINDS if not names or kind.name in names]
            if not rig.can_squeeze:
                kinds = [kind for kind in kinds if kind.cause is not Cause.MEMORY]
                click.echo("no cgroup v1 memory here: memory pressure is not injected")
            trials = run(rig, kinds, count, seed, _tell)
            failed = rig.clients.failed
    except RigError as error:
        raise SystemExit(f"causes: {error}") from None
    earlier = json.loads(out.read_text()) if add and out.exists() else {}
    trials = [*(Trial(**each) for each in earlier.get("trials", ())), *trials]
    matrix = sorted(rows(trials), key=lambda row: [kind.name for kind in KINDS].index(row.kind))
    short = faults(matrix)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(
        json.dumps(
            {
                "seeds": [*earlier.get("seeds", ()), seed],
                "gap_ms": gap_ms,
                "rows": [asdict(row) | {"right": row.right} for row in matrix],
                "faults": short,
                "trials": [asdict(trial) for trial in trials],
            },
            indent=1,
        )
    )
    click.echo(f"\ninjected (down) and named (across), the engine's worst cause\n{_said(matrix)}")
    click.echo(f"\nand the causes of its slow streams\n{_of_streams(matrix)}")
    if failed:
        click.echo(f"\n{len(failed)} requests failed, the first: {failed[0]}")
    click.echo("\n" + ("\n".join(short) or f"every row is at least {GOAL:.0%} right"))
    sys.exit(bool(short))


def _said(matrix: Sequence[Row]) -> str:
    return table(matrix, lambda row: row.said)


def _of_streams(matrix: Sequence[Row]) -> str:
    return table(matrix, lambda row: row.streams)


def _tell(trial: Trial) -> None:
    mark = "  " if trial.right else "! "
    click.echo(
        f"{mark}{trial.kind:16}{trial.said:16}{trial.shares} {trial.strength} {trial.streams}"
    )


if __name__ == "__main__":
    main()
