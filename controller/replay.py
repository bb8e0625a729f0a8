"""What other settings would have decided on what was recorded.

Each recorded tick stands by itself: the other settings decide from the state that was then, not
from the one they would have led to. What their decisions would have done to the engine is not
known; that is what the simulator is for.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from controller.actions import Proposal, changes_of
from controller.attribution import attribute
from controller.journal_rows import Change, Recorded, Value
from controller.memory_sentinel import MemoryView
from controller.policy_model import Engine, Policy
from controller.recording import (
    Inputs,
    decide_batch_of,
    decide_cpu_of,
    decide_memory_of,
    inputs_of,
)

LABEL: Final = "replayed: inputs recorded, effects not simulated"
"""Stands with everything that comes from here."""


@dataclass(frozen=True, slots=True)
class Row:
    """One recorded tick: what was decided then, and what the settings make of it.

    `decided` is None for a sample of observe mode, in which nothing is.
    """

    wall_ns: int
    engine: str
    mode: str
    sample: bool
    cause: str
    decided: tuple[Change, ...] | None
    other_cause: str
    other: tuple[Change, ...]

    @property
    def equal(self) -> bool:
        """Whether the same values are set; nothing decided is equal to nothing."""
        return _values(self.decided or ()) == _values(self.other)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "wall_ns": self.wall_ns,
            "engine": self.engine,
            "mode": self.mode,
            "sample": self.sample,
            "equal": self.equal,
            "cause": self.cause,
            "action": None
            if self.decided is None
            else [change.as_dict() for change in self.decided],
            "replayed_cause": self.other_cause,
            "replayed_action": [change.as_dict() for change in self.other],
        }


def with_policy(inputs: Inputs, policy: Policy, engine: Engine) -> Inputs:
    """`inputs` as they would have been under `policy`, in which `engine` is the one they are of.

    What the kernel counts against the SLO was counted against the one in force then.
    """
    pressure = policy.controller.neighbour_pressure
    neighbours = {each.name: each for each in policy.neighbours}
    view = replace(
        inputs.cpu_view,
        max_weight=engine.limits.cpu_weight_max,
        base_weight=inputs.cpu_view.base_weight if engine.limits.cpu_weight_max > 0 else None,
        neighbours=tuple(
            replace(each, min_cores=known.min_cores)
            for each in inputs.cpu_view.neighbours
            if (known := neighbours.get(each.name.partition("/")[0])) is not None and known.limit
        ),
    )
    batch_view = inputs.batch_view
    if batch_view is not None:
        batch_view = replace(
            batch_view,
            slo=engine.slo,
            floors=engine.knobs,
            max_deferral_ms=engine.relegation.max_deferral_ms,
        )
    memory_view = inputs.memory_view if engine.limits.memory else MemoryView()
    return replace(
        inputs,
        memory_view=memory_view,
        slo=engine.slo,
        neighbour_pressure=pressure,
        cause=attribute(inputs.signals, engine.slo, pressure).cause,
        cpu_view=view,
        batch_view=batch_view,
    )


def replay(recorded: Iterable[Recorded], policy: Policy | None) -> Iterator[Row | None]:
    """A row for each recorded tick; without a `policy`, under the settings it was recorded with.

    Engines that the policy does not name are passed over. None for a recording that can't be read:
    it is of a version too different.
    """
    engines = {engine.name: engine for engine in policy.engines} if policy is not None else {}
    for each in recorded:
        try:
            inputs = inputs_of(each.inputs)
        except (ValueError, TypeError, KeyError):
            yield None
            continue
        other = inputs
        if policy is not None:
            engine = engines.get(each.engine)
            if engine is None:
                continue
            other = with_policy(inputs, policy, engine)
        yield Row(
            each.wall_ns,
            each.engine,
            inputs.mode,
            each.decision is None,
            str(inputs.cause),
            _decided(each, inputs),
            str(other.cause),
            tuple(_again(each, other)),
        )


@dataclass(frozen=True, slots=True)
class Summary:
    """What a replay comes to.

    `equal` and `different` are of `ticks` in which something could be decided; of the different
    ones, `only_recorded` has those where the settings decide nothing and `only_replayed` those
    where nothing was decided. `observed` are ticks of observe mode and `would_act` those of them in
    which the settings decide something. `values` has the least and the largest value that each knob
    was set to, recorded and replayed; `causes` counts ticks by recorded and replayed cause.
    """

    ticks: int
    decisions: int
    equal: int
    different: int
    only_recorded: int
    only_replayed: int
    observed: int
    would_act: int
    values: Mapping[str, Mapping[str, tuple[float, float] | None]]
    causes: Mapping[str, Mapping[str, int]]

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {name: getattr(self, name) for name in type(self).__slots__}


def summary_of(rows: Iterable[Row]) -> Summary:
    """The rows in figures."""
    counts: Counter[str] = Counter()
    causes: dict[str, Counter[str]] = {"recorded": Counter(), "replayed": Counter()}
    values: dict[str, dict[str, tuple[float, float] | None]] = {}
    for row in rows:
        causes["recorded"][row.cause] += 1
        causes["replayed"][row.other_cause] += 1
        for side, changes in (("recorded", row.decided or ()), ("replayed", row.other)):
            for change in changes:
                _widen(values, side, change)
        if row.decided is None:
            counts["observed"] += 1
            counts["would_act"] += bool(row.other)
            continue
        counts["ticks"] += 1
        counts["decisions"] += not row.sample
        counts["equal"] += row.equal
        counts["different"] += not row.equal
        counts["only_recorded"] += bool(row.decided and not row.other)
        counts["only_replayed"] += bool(row.other and not row.decided)
    return Summary(
        ticks=counts["ticks"],
        decisions=counts["decisions"],
        equal=counts["equal"],
        different=counts["different"],
        only_recorded=counts["only_recorded"],
        only_replayed=counts["only_replayed"],
        observed=counts["observed"],
        would_act=counts["would_act"],
        values=values,
        causes={side: dict(tally) for side, tally in causes.items()},
    )


def _decided(each: Recorded, inputs: Inputs) -> tuple[Change, ...] | None:
    if each.decision is not None:
        return each.decision.action
    return None if inputs.mode == "observe" else ()


def _again(each: Recorded, inputs: Inputs) -> list[Change]:
    """What is decided on `inputs`; of a decision only its own kind, knobs or limits."""
    proposals: list[Proposal | None] = []
    changes = each.decision.action if each.decision is not None else ()
    knobs = any(change.kind == "knob" for change in changes)
    memory = any(change.knob == "memory_high" for change in changes)
    if each.decision is None or memory:
        proposals.append(decide_memory_of(inputs)[1])
    if each.decision is None or not (knobs or memory):
        proposals.append(decide_cpu_of(inputs)[1])
    if each.decision is None or knobs:
        proposals.append(decide_batch_of(inputs)[1])
    return [
        change
        for proposal in proposals
        if proposal is not None
        for change in changes_of(proposal, each.engine)
    ]


def _values(changes: Iterable[Change]) -> set[tuple[str, str, Value]]:
    return {(change.target, change.knob, change.new) for change in changes}


def _widen(
    values: dict[str, dict[str, tuple[float, float] | None]], side: str, change: Change
) -> None:
    if not isinstance(change.new, (int, float)):
        return
    sides = values.setdefault(change.knob, {"recorded": None, "replayed": None})
    known = sides[side] or (change.new, change.new)
    sides[side] = (min(known[0], change.new), max(known[1], change.new))
