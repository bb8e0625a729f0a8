import json
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from bpf.layout import Counters
from controller.actions import Proposal, changes_of
from controller.attribution import Cause
from controller.cpu_limits import CpuMemory, CpuView
from controller.journal import Decision, Journal, JournalReader, Recorded
from controller.neighbour_limits import NeighbourView
from controller.policy_model import (
    Controller,
    Engine,
    KnobFloors,
    Limits,
    Match,
    Mode,
    Neighbour,
    Policy,
    Slo,
)
from controller.recording import Inputs, decide_cpu_of
from controller.replay import Row, replay, summary_of, with_policy
from controller.signals import Signals
from controller.simulate.controls import Ours
from controller.simulate.simulation import simulate
from controller.simulate.virtual_engine import EngineSpec, StepTimes
from controller.simulate.workload import poisson

from .situations import MS, SECOND

SLO: Final = Slo(ttft_ms=1000, gap_ms=40)
SPEC: Final = EngineSpec(StepTimes(4.0, 0.04, 0.2, 1e-5), kv_tokens=100_000)
CHAT: Final = Engine("chat", Match("port", 1), slo=SLO)
BURST: Final = poisson(lambda _: 8.0, 20, 900, 60, seed=2)


@pytest.fixture(scope="module")
def burst() -> Sequence[Recorded]:
    """What a burst leads to, tick by tick; of those without a decision, every tenth."""
    found: list[Recorded] = []
    count = 0

    def heard(inputs: Inputs, proposal: Proposal | None) -> None:
        nonlocal count
        count += 1
        now_ns, decision = inputs.signals.now_ns, None
        if proposal is not None:
            changes = tuple(changes_of(proposal, "chat"))
            decision = Decision(now_ns, "chat", inputs.mode, str(inputs.cause), changes)
        elif count % 10:
            return
        fields = json.loads(json.dumps(inputs.as_dict(), allow_nan=False))
        found.append(Recorded(now_ns, "chat", fields, decision))

    ours = Ours(CHAT, Controller(), SPEC.knobs(), heard=heard)
    simulate(BURST, SPEC, SLO, ours)
    return found


def rows_of(recorded: Sequence[Recorded], policy: Policy | None) -> list[Row]:
    rows = list(replay(recorded, policy))
    assert None not in rows
    return [row for row in rows if row is not None]


def under(engine: Engine, controller: Controller | None = None) -> Policy:
    return Policy(engines=(engine,), controller=controller or Controller())


def test_the_same_settings_decide_the_same_on_every_tick(burst: Sequence[Recorded]) -> None:
    for policy in (None, under(CHAT)):
        rows = rows_of(burst, policy)
        assert [row for row in rows if not row.equal] == []
        summary = summary_of(rows)
        assert summary.ticks == summary.equal == len(burst)
        assert summary.decisions > 3
        values = summary.values["max_batched_tokens"]
        assert values["recorded"] == values["replayed"]


def test_a_tighter_gap_slo_would_have_cut_deeper(burst: Sequence[Recorded]) -> None:
    policy = under(replace(CHAT, slo=Slo(ttft_ms=1000, gap_ms=20)))
    summary = summary_of(rows_of(burst, policy))
    assert summary.different > 0
    values = summary.values["max_batched_tokens"]
    assert values["recorded"] is not None
    assert values["replayed"] is not None
    assert values["replayed"][0] < values["recorded"][0]


def test_a_slo_that_nothing_crosses_decides_nothing_blindly(burst: Sequence[Recorded]) -> None:
    policy = under(replace(CHAT, slo=Slo(ttft_ms=60_000, gap_ms=10_000)))
    rows = rows_of(burst, policy)
    assert all(not row.other for row in rows if row.decided and row.sample)
    assert summary_of(rows).only_recorded > 0


def test_no_knob_is_cut_below_its_floor(burst: Sequence[Recorded]) -> None:
    policy = under(replace(CHAT, knobs=KnobFloors(min_batched_tokens=1500)))
    changes = [change for row in rows_of(burst, policy) for change in row.other]
    budgets = [
        (change.old, change.new)
        for change in changes
        if change.knob == "max_batched_tokens"
        and isinstance(change.old, (int, float))
        and isinstance(change.new, (int, float))
    ]
    assert budgets
    assert all(new >= min(old, 1500) for old, new in budgets)


def test_engines_that_the_policy_does_not_name_are_passed_over(burst: Sequence[Recorded]) -> None:
    assert rows_of(burst, under(replace(CHAT, name="other"))) == []


def test_what_can_t_be_read_is_told_and_passed_over(burst: Sequence[Recorded]) -> None:
    strange = [Recorded(1, "chat", {"mode": "dream"}), *burst[:2], Recorded(2, "chat", {})]
    rows = list(replay(strange, None))
    assert [row is None for row in rows] == [True, False, False, True]


STOLEN: Final = Signals(
    100 * SECOND,
    500 * MS,
    Counters(run_ns=100 * MS, wait_ns=50 * MS, wait_other_ns=50 * MS, waits_over=1),
)


def stolen(mode: Mode, pressure: float = 0.1) -> Inputs:
    return Inputs(
        mode,
        SLO,
        pressure,
        STOLEN,
        Cause.NEIGHBOUR_CPU,
        CpuView(100, 10_000, 2, (NeighbourView("batch/a", 1.0, 0.1),)),
        CpuMemory(),
        None,
        Ours(CHAT, Controller(), SPEC.knobs()).watch.core,
    )


def recorded_of(inputs: Inputs, decided: bool) -> Recorded:
    decision = None
    if decided:
        _, proposal = decide_cpu_of(inputs)
        assert proposal is not None
        changes = tuple(changes_of(proposal, "chat"))
        decision = Decision(STOLEN.now_ns, "chat", inputs.mode, str(inputs.cause), changes)
    return Recorded(5, "chat", inputs.as_dict(), decision)


def test_a_weight_that_may_not_be_raised_is_not() -> None:
    (same,) = rows_of([recorded_of(stolen("control"), decided=True)], under(CHAT))
    assert same.equal
    policy = under(replace(CHAT, limits=Limits(cpu_weight_max=0)))
    (row,) = rows_of([recorded_of(stolen("control"), decided=True)], policy)
    assert row.decided
    assert not row.other
    assert not row.equal


def test_a_higher_threshold_names_another_cause() -> None:
    policy = under(CHAT, Controller(neighbour_pressure=0.9))
    (row,) = rows_of([recorded_of(stolen("control"), decided=True)], policy)
    assert (row.cause, row.other_cause) == ("neighbour_cpu", "unknown")


def test_only_neighbours_that_the_policy_lets_be_limited_are_left() -> None:
    for neighbours, left in (
        ((), []),
        ((Neighbour("batch", Match("cgroup", "/x/*"), min_cores=0.3),), [0.3]),
        ((Neighbour("batch", Match("cgroup", "/x/*"), limit=False),), []),
    ):
        policy = Policy(engines=(CHAT,), neighbours=neighbours)
        view = with_policy(stolen("control"), policy, CHAT).cpu_view
        assert [each.min_cores for each in view.neighbours] == left


def test_observe_mode_is_told_apart_and_shows_what_would_have_been_done() -> None:
    rows = rows_of([recorded_of(stolen("observe"), decided=False)], None)
    assert rows[0].decided is None
    summary = summary_of(rows)
    assert (summary.ticks, summary.observed, summary.would_act) == (0, 1, 1)
    assert rows[0].as_dict()["replayed_action"][0]["knob"] == "cpu_weight"


def test_a_decision_is_compared_with_its_own_kind_only(burst: Sequence[Recorded]) -> None:
    knob = next(each for each in burst if each.decision is not None)
    both = dict(knob.inputs) | {
        name: stolen("control").as_dict()[name] for name in ("cpu_view", "cpu")
    }
    (row,) = rows_of([replace(knob, inputs=both)], None)
    assert {change.kind for change in row.other} == {"knob"}


def test_it_reads_what_a_journal_kept(tmp_path: Path) -> None:
    inputs = stolen("control")
    journal = Journal(tmp_path / "journal.db")
    recorded = recorded_of(inputs, decided=True)
    assert recorded.decision is not None
    journal.set_inputs(journal.add_decision(recorded.decision), inputs.as_dict())
    journal.add_sample(STOLEN.now_ns + SECOND, "chat", stolen("observe").as_dict())
    journal.close()
    with closing(JournalReader(tmp_path / "journal.db")) as reader:
        rows = list(replay(reader.recorded("chat", -(1 << 62)), None))
    assert [row.sample for row in rows if row] == [False, True]
    assert rows[0] is not None
    assert rows[0].equal
