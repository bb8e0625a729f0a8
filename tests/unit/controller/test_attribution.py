import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bpf.layout import Counters
from controller.attribution import MEANING, MIN_WANTED_NS, Cause, attribute
from controller.engines.page import EngineNow
from controller.policy_model import Slo
from controller.progress import Stall
from controller.signals import Signals
from controller.unsent import Unsent

from .situations import MS, SECOND, window

SLO = Slo(ttft_ms=1000, gap_ms=100)
PRESSURE = 0.1
LONG_STEP = 80 * MS
SHORT_STEP = 20 * MS
QUEUE = EngineNow(steps=500, waiting=3, running=8)
RUNNING = EngineNow(steps=500, running=8)
BUSY = {"run_ns": 400 * MS, "chunks": 50}
NEIGHBOURS = {"run_ns": 300 * MS, "wait_ns": 100 * MS, "wait_other_ns": 100 * MS}

STUCK = Unsent(stuck=1)
STALL = Stall(99 * SECOND, 100 * SECOND)

SITUATIONS: dict[str, tuple[dict[str, Any], Cause]] = {
    "nothing happens": ({}, Cause.NONE),
    "everything is on time": ({**BUSY, "engine": RUNNING}, Cause.NONE),
    "neighbours hold the CPU but nothing is late": (NEIGHBOURS, Cause.NONE),
    "a segment is lost but nothing is late": ({**BUSY, "retransmits": 1}, Cause.NONE),
    "so many segments are lost that users notice": ({**BUSY, "retransmits": 9}, Cause.NETWORK),
    "many segments are lost while steps are long and nothing is late": (
        {**BUSY, "retransmits": 9, "longest_step_ns": 300 * MS, "engine": RUNNING},
        Cause.NETWORK,
    ),
    "many segments are lost while steps are long and gaps late": (
        {**BUSY, "retransmits": 9, "gaps_over": 3, "longest_step_ns": 300 * MS, "engine": RUNNING},
        Cause.BATCH,
    ),
    "many segments are lost while no step is as long as the late gaps": (
        {**BUSY, "retransmits": 9, "gaps_over": 3, "longest_step_ns": LONG_STEP, "engine": RUNNING},
        Cause.NETWORK,
    ),
    "a client's window is full": (
        {**BUSY, "writes_stalled": 9, "writes_held": 8, "unsent": STUCK},
        Cause.SLOW_READER,
    ),
    "a client's window is full and drops what does not fit": (
        {**BUSY, "writes_stalled": 9, "writes_held": 8, "retransmits": 5, "unsent": STUCK},
        Cause.SLOW_READER,
    ),
    "bytes can't leave though the client has room": (
        {**BUSY, "writes_stalled": 9, "writes_held": 1, "unsent": STUCK},
        Cause.NETWORK,
    ),
    "a sender backs off from a network that lost its segments": (
        {**BUSY, "unsent": Unsent(stuck=1, stalled=40, again=6)},
        Cause.NETWORK,
    ),
    "a client has stopped reading for so long that nothing is written to it": (
        {**BUSY, "unsent": Unsent(stuck=1, stalled=40, held=40)},
        Cause.SLOW_READER,
    ),
    "bytes can't leave and the kernel says nothing of writes": (
        {**BUSY, "unsent": STUCK},
        Cause.SLOW_READER,
    ),
    "bytes can't leave, segments are sent again, and the kernel says nothing of writes": (
        {**BUSY, "unsent": Unsent(stuck=1, again=6)},
        Cause.NETWORK,
    ),
    "a late gap was spent with unsent bytes": (
        {**BUSY, "gaps_over": 1, "blocked_ns": 300 * MS, "writes_stalled": 5, "writes_held": 5},
        Cause.SLOW_READER,
    ),
    "a client does not read while long steps make others late": (
        {**BUSY, "gaps_over": 3, "longest_step_ns": 300 * MS, "engine": RUNNING, "unsent": STUCK},
        Cause.BATCH,
    ),
    "tasks stood still for memory and gaps are late": (
        {**BUSY, "gaps_over": 1, "memory_ns": 60 * MS, "longest_step_ns": LONG_STEP},
        Cause.MEMORY,
    ),
    "tasks hardly stood still for memory": (
        {**BUSY, "gaps_over": 1, "memory_ns": 40 * MS, "longest_step_ns": LONG_STEP},
        Cause.BATCH,
    ),
    "memory cost more than neighbours did": (
        {**NEIGHBOURS, "gaps_over": 1, "memory_ns": 150 * MS},
        Cause.MEMORY,
    ),
    "memory cost less than neighbours did": (
        {**NEIGHBOURS, "gaps_over": 1, "memory_ns": 60 * MS},
        Cause.NEIGHBOUR_CPU,
    ),
    "the engine has work and does nothing": (
        {"stall": STALL, "engine": RUNNING},
        Cause.ENGINE_STOPPED,
    ),
    "the engine did nothing, and the step it was in looks long": (
        {"stall": STALL, "engine": RUNNING, "gaps_over": 3, "longest_step_ns": 900 * MS},
        Cause.ENGINE_STOPPED,
    ),
    "the engine does nothing because its quota is used up": (
        {"stall": STALL, "throttled_ns": 300 * MS},
        Cause.OWN_QUOTA,
    ),
    "the engine does nothing because its memory is used up": (
        {"stall": replace(STALL, out_of_memory=True)},
        Cause.MEMORY,
    ),
    "the engine does nothing but wait for memory": (
        {"stall": replace(STALL, memory_ns=500 * MS)},
        Cause.MEMORY,
    ),
    "the engine does nothing because it gets no CPU at all": (
        {"stall": replace(STALL, starved_ns=700 * MS)},
        Cause.NEIGHBOUR_CPU,
    ),
    "steps are long but nothing is late": (
        {**BUSY, "longest_step_ns": LONG_STEP, "engine": RUNNING},
        Cause.NONE,
    ),
    "neighbours hold the CPU and gaps are late": (
        {**NEIGHBOURS, "gaps_over": 1},
        Cause.NEIGHBOUR_CPU,
    ),
    "neighbours hold the CPU and waits are long": (
        {**NEIGHBOURS, "waits_over": 1},
        Cause.NEIGHBOUR_CPU,
    ),
    "the own quota explains the wait that neighbours get the blame for": (
        {**NEIGHBOURS, "gaps_over": 1, "throttled_ns": 50 * MS},
        Cause.OWN_QUOTA,
    ),
    "the own quota explains too little of the wait": (
        {**NEIGHBOURS, "gaps_over": 1, "throttled_ns": 49 * MS},
        Cause.NEIGHBOUR_CPU,
    ),
    "the own quota stops an engine that never waits for a CPU": (
        {**BUSY, "gaps_over": 1, "throttled_ns": 25 * MS},
        Cause.OWN_QUOTA,
    ),
    "the own quota stops the engine for too short to matter": (
        {**BUSY, "gaps_over": 1, "throttled_ns": 24 * MS, "engine": RUNNING},
        Cause.UNKNOWN,
    ),
    "every thread of the engine waits for its own quota": (
        {"run_ns": 100 * MS, "wait_ns": 1600 * MS, "throttled_ns": 400 * MS, "gaps_over": 4},
        Cause.OWN_QUOTA,
    ),
    "neighbours hold the CPU while segments are lost": (
        {**NEIGHBOURS, "gaps_over": 1, "retransmits": 5},
        Cause.NEIGHBOUR_CPU,
    ),
    "neighbours hold the CPU while steps are long": (
        {**NEIGHBOURS, "gaps_over": 1, "longest_step_ns": LONG_STEP, "engine": RUNNING},
        Cause.NEIGHBOUR_CPU,
    ),
    "neighbours hold the CPU while requests queue": (
        {**NEIGHBOURS, "ttft_over": 1, "engine": QUEUE},
        Cause.NEIGHBOUR_CPU,
    ),
    "segments are lost while the engine is on time": (
        {
            **BUSY,
            "gaps_over": 1,
            "retransmits": 1,
            "engine": RUNNING,
            "longest_step_ns": SHORT_STEP,
        },
        Cause.NETWORK,
    ),
    "a loss is only suspected while a gap is late": (
        {**BUSY, "gaps_over": 1, "retransmits": 1, "loss_probes": 1, "engine": RUNNING},
        Cause.UNKNOWN,
    ),
    "segments are lost while steps are long": (
        {**BUSY, "gaps_over": 1, "retransmits": 1, "engine": RUNNING, "longest_step_ns": LONG_STEP},
        Cause.BATCH,
    ),
    "steps are long and gaps late": (
        {**BUSY, "gaps_over": 1, "engine": RUNNING, "longest_step_ns": LONG_STEP},
        Cause.BATCH,
    ),
    "a step took many times what its batch takes": (
        {**BUSY, "gaps_over": 1, "engine": RUNNING}
        | {"longest_step_ns": 300 * MS, "longest_computed_ns": SHORT_STEP},
        Cause.UNKNOWN,
    ),
    "gaps are late and the engine shows nothing of itself": ({**BUSY, "gaps_over": 1}, Cause.BATCH),
    "gaps are late and the engine counts no steps": (
        {**BUSY, "gaps_over": 1, "engine": EngineNow(running=8)},
        Cause.BATCH,
    ),
    "gaps are late though steps are short": (
        {**BUSY, "gaps_over": 1, "engine": RUNNING, "longest_step_ns": SHORT_STEP},
        Cause.UNKNOWN,
    ),
    "first tokens are late while requests queue": (
        {**BUSY, "ttft_over": 1, "engine": QUEUE, "longest_step_ns": LONG_STEP},
        Cause.QUEUE,
    ),
    "requests queue in time while steps are so long that a wait for a CPU matters": (
        {**BUSY, "waits_over": 1, "engine": QUEUE, "longest_step_ns": LONG_STEP},
        Cause.BATCH,
    ),
    "first tokens are late without a queue because steps are long": (
        {**BUSY, "ttft_over": 1, "engine": RUNNING, "longest_step_ns": LONG_STEP},
        Cause.BATCH,
    ),
    "first tokens are late for no reason that can be seen": (
        {**BUSY, "ttft_over": 1, "engine": RUNNING},
        Cause.UNKNOWN,
    ),
    "so little CPU was wanted that its loss says nothing": (
        {"run_ns": 0, "wait_ns": MIN_WANTED_NS - 1, "wait_other_ns": MIN_WANTED_NS - 1}
        | {"gaps_over": 1, "engine": RUNNING},
        Cause.UNKNOWN,
    ),
    "just enough CPU was wanted for its loss to speak": (
        {"wait_ns": MIN_WANTED_NS, "wait_other_ns": MIN_WANTED_NS, "gaps_over": 1},
        Cause.NEIGHBOUR_CPU,
    ),
    "pressure is just below the policy's threshold": (
        {"run_ns": 901 * MS, "wait_ns": 99 * MS, "wait_other_ns": 99 * MS, "waits_over": 1},
        Cause.UNKNOWN,
    ),
    "pressure is at the policy's threshold": (
        {"run_ns": 900 * MS, "wait_ns": 100 * MS, "wait_other_ns": 100 * MS, "waits_over": 1},
        Cause.NEIGHBOUR_CPU,
    ),
    "the wait is for the engine's own tasks": (
        {"run_ns": 100 * MS, "wait_ns": 300 * MS, "wait_self_ns": 300 * MS, "waits_over": 1},
        Cause.UNKNOWN,
    ),
}

small = st.integers(0, 3)
durations = st.integers(0, SECOND)


@st.composite
def windows(draw: st.DrawFn) -> Signals:
    self_ns, other_ns, rest_ns = draw(durations), draw(durations), draw(durations)
    longest_ns = draw(durations)
    return Signals(
        now_ns=draw(st.integers(0, 2**62)),
        window_ns=draw(durations),
        kernel=Counters(
            run_ns=draw(durations),
            wait_ns=self_ns + other_ns + rest_ns,
            wait_self_ns=self_ns,
            wait_other_ns=other_ns,
            gaps_over=draw(small),
            ttft_over=draw(small),
            waits_over=draw(small),
            retransmits=draw(small),
            writes_stalled=draw(small),
            writes_held=draw(small),
            blocked_ns=draw(durations),
        ),
        throttled_ns=draw(durations),
        memory_ns=draw(durations),
        stall=draw(st.none() | st.just(STALL)),
        unsent=draw(st.builds(Unsent, small, small, small, small)),
        engine=draw(st.none() | st.builds(EngineNow, waiting=small, running=small)),
        longest_step_ns=longest_ns,
        longest_computed_ns=draw(st.integers(0, longest_ns)),
    )


@st.composite
def network_troubles(draw: st.DrawFn) -> tuple[dict[str, int], Unsent]:
    """What the counters gain when the network or clients are at fault, and what can't be sent."""
    again, stalled = draw(st.integers(0, 100)), draw(st.integers(0, 100))
    gained = {
        "retransmits": again,
        "loss_probes": draw(st.integers(0, again)),
        "writes_stalled": stalled,
        "writes_held": draw(st.integers(0, stalled)),
        "blocked_ns": draw(durations),
    }
    return gained, draw(st.builds(Unsent, small, small, small, small))


def plus(signals: Signals, **gained: int) -> Signals:
    kernel = signals.kernel
    more = {name: getattr(kernel, name) + by for name, by in gained.items()}
    return replace(signals, kernel=kernel._replace(**more))


READ = {
    *("run_ns", "wait_ns", "wait_other_ns", "gaps_over", "ttft_over", "waits_over"),
    *("retransmits", "loss_probes", "chunks", "writes_stalled", "writes_held", "blocked_ns"),
}
"""Counters that a verdict rests upon; it is the same whatever the others are."""
UNREAD = sorted(set(Counters._fields) - READ)

BOUNDS: list[tuple[str, dict[str, Any], str, int, Cause, Cause]] = [
    # what else there is, the figure in question, its least value that counts, and the causes
    # just below it and from it on; windows are of half a second, a gap may be 100 ms
    *(
        (name, {**BUSY, "gaps_over": 1, "engine": RUNNING}, name, least, Cause.UNKNOWN, cause)
        for name, least, cause in (
            ("longest_step_ns", 50 * MS + 1, Cause.BATCH),
            ("memory_ns", 50 * MS, Cause.MEMORY),
            ("throttled_ns", 25 * MS, Cause.OWN_QUOTA),
            ("retransmits", 1, Cause.NETWORK),
            ("blocked_ns", 50 * MS, Cause.SLOW_READER),
        )
    ),
    (
        "a step as long as a gap may be explains what was lost",
        {**BUSY, "gaps_over": 1, "retransmits": 9, "engine": RUNNING},
        "longest_step_ns",
        100 * MS,
        Cause.NETWORK,
        Cause.BATCH,
    ),
    (
        "of what stalled, half was held by the client",
        {**BUSY, "unsent": STUCK, "writes_stalled": 8},
        "writes_held",
        4,
        Cause.NETWORK,
        Cause.SLOW_READER,
    ),
    (
        "of several late gaps half was spent with unsent bytes",
        {**BUSY, "gaps_over": 3, "engine": RUNNING},
        "blocked_ns",
        150 * MS,
        Cause.UNKNOWN,
        Cause.SLOW_READER,
    ),
    (
        "more segments sent again than three a second",
        BUSY,
        "retransmits",
        2,
        Cause.NONE,
        Cause.NETWORK,
    ),
    (
        "throttled for half of the wait for others",
        {**NEIGHBOURS, "gaps_over": 1},
        "throttled_ns",
        50 * MS,
        Cause.NEIGHBOUR_CPU,
        Cause.OWN_QUOTA,
    ),
    (
        "throttled for half of a window of standstill",
        {"stall": STALL},
        "throttled_ns",
        250 * MS,
        Cause.ENGINE_STOPPED,
        Cause.OWN_QUOTA,
    ),
    (
        "memory cost more than neighbours",
        {**NEIGHBOURS, "gaps_over": 1},
        "memory_ns",
        100 * MS + 1,
        Cause.NEIGHBOUR_CPU,
        Cause.MEMORY,
    ),
]


@pytest.mark.parametrize(
    ("others", "figure", "least", "below", "there"),
    [row[1:] for row in BOUNDS],
    ids=[row[0] for row in BOUNDS],
)
def test_the_cause_changes_exactly_at(
    others: dict[str, Any], figure: str, least: int, below: Cause, there: Cause
) -> None:
    both: list[dict[str, Any]] = [{**others, figure: least + by} for by in (-1, 0)]
    found = [attribute(window(**figures), SLO, PRESSURE) for figures in both]
    assert [verdict.cause for verdict in found] == [below, there]


@pytest.mark.parametrize(
    ("share", "cause"), [("memory_ns", Cause.MEMORY), ("starved_ns", Cause.NEIGHBOUR_CPU)]
)
def test_half_of_a_standstill_is_enough_to_explain_it(share: str, cause: Cause) -> None:
    explained: list[dict[str, Any]] = [{share: SECOND // 2 + by} for by in (-1, 0)]
    stalls = [replace(STALL, **each) for each in explained]
    found = [attribute(window(stall=stall), SLO, PRESSURE).cause for stall in stalls]
    assert found == [Cause.ENGINE_STOPPED, cause]


EVERYTHING: dict[str, Any] = {
    **NEIGHBOURS,
    "gaps_over": 3,
    "ttft_over": 1,
    "engine": QUEUE,
    "longest_step_ns": LONG_STEP,
    "retransmits": 9,
    "writes_stalled": 9,
    "writes_held": 9,
    "unsent": STUCK,
    "memory_ns": 150 * MS,
    "throttled_ns": 250 * MS,
    "stall": STALL,
}


def test_of_all_causes_at_once_the_first_is_named_and_when_it_goes_the_next() -> None:
    left, named = dict(EVERYTHING), []
    for gone in (
        (),
        ("throttled_ns",),
        ("stall",),
        ("memory_ns",),
        ("run_ns", "wait_ns", "wait_other_ns"),
        ("unsent",),
        ("retransmits",),
        ("longest_step_ns",),
        ("engine", "ttft_over", "gaps_over"),
    ):
        for name in gone:
            del left[name]
        named.append(attribute(window(**left), SLO, PRESSURE).cause)
    assert named == [
        Cause.OWN_QUOTA,
        Cause.ENGINE_STOPPED,
        Cause.MEMORY,
        Cause.NEIGHBOUR_CPU,
        Cause.SLOW_READER,
        Cause.NETWORK,
        Cause.BATCH,
        Cause.QUEUE,
        Cause.NONE,
    ]


@given(windows(), network_troubles())
def test_no_trouble_on_the_way_is_ever_laid_to_the_batch(
    signals: Signals, trouble: tuple[dict[str, int], Unsent]
) -> None:
    gained, unsent = trouble
    before = attribute(replace(signals, unsent=Unsent()), SLO, PRESSURE).cause
    after = attribute(replace(plus(signals, **gained), unsent=unsent), SLO, PRESSURE).cause
    assert after not in {Cause.BATCH, Cause.QUEUE} or after is before


@given(windows(), network_troubles())
def test_trouble_on_the_way_never_hides_what_comes_before_it(
    signals: Signals, trouble: tuple[dict[str, int], Unsent]
) -> None:
    gained, unsent = trouble
    before = attribute(signals, SLO, PRESSURE).cause
    worse = replace(plus(signals, **gained), unsent=unsent)
    first = {Cause.OWN_QUOTA, Cause.MEMORY, Cause.ENGINE_STOPPED, Cause.NEIGHBOUR_CPU}
    if before in first:
        assert attribute(worse, SLO, PRESSURE).cause is before


@given(
    windows(),
    st.lists(st.integers(0, 2**40), min_size=len(UNREAD), max_size=len(UNREAD)),
    st.fixed_dictionaries(
        {
            "now_ns": st.integers(0, 2**62),
            "neighbours_ns": durations,
            "arrival_tokens_per_s": st.floats(0, 1e6),
            "injected": st.floats(0, 1),
            "limit_hits": small,
            "major_faults": small,
        }
    ),
)
def test_the_cause_does_not_depend_on_anything_else(
    signals: Signals, unread: list[int], rest: dict[str, Any]
) -> None:
    kernel = signals.kernel._replace(**dict(zip(UNREAD, unread, strict=True)))
    other = replace(signals, kernel=kernel, **rest)
    assert attribute(other, SLO, PRESSURE).cause is attribute(signals, SLO, PRESSURE).cause


@pytest.mark.parametrize("situation", SITUATIONS)
def test_the_cause_when(situation: str) -> None:
    figures, cause = SITUATIONS[situation]
    assert attribute(window(**figures), SLO, PRESSURE).cause is cause


@given(windows(), st.floats(0, 1))
def test_a_batch_is_never_blamed_while_neighbours_hold_the_cpu(
    signals: Signals, threshold: float
) -> None:
    wanted_ns = signals.kernel.run_ns + signals.kernel.wait_ns
    cause = attribute(signals, SLO, threshold).cause
    if wanted_ns >= MIN_WANTED_NS and signals.neighbour_pressure >= threshold:
        assert cause not in {Cause.BATCH, Cause.QUEUE, Cause.NETWORK, Cause.UNKNOWN}


@given(windows())
def test_neither_batch_nor_queue_is_blamed_unless_something_of_the_engines_is_late(
    signals: Signals,
) -> None:
    kernel = signals.kernel
    if not (kernel.gaps_over or kernel.ttft_over or kernel.waits_over):
        assert attribute(signals, SLO, PRESSURE).cause not in {Cause.BATCH, Cause.QUEUE}


@given(windows(), st.integers(1, 3))
def test_a_batch_is_never_blamed_for_bytes_that_cannot_leave(signals: Signals, stuck: int) -> None:
    blocked = replace(signals, unsent=replace(signals.unsent, stuck=stuck))
    if signals.longest_step_ns < SLO.gap_ms * MS:
        assert attribute(blocked, SLO, PRESSURE).cause not in {Cause.BATCH, Cause.QUEUE}


@given(windows())
def test_there_is_a_cause_exactly_when_something_is_at_risk(signals: Signals) -> None:
    assert (attribute(signals, SLO, PRESSURE).cause is Cause.NONE) == (not signals.at_risk)


@given(windows())
def test_evidence_is_finite_figures(signals: Signals) -> None:
    evidence = attribute(signals, SLO, PRESSURE).evidence
    assert all(math.isfinite(figure) for figure in evidence.values())
    assert evidence["gaps_over"] == signals.kernel.gaps_over
    assert evidence["longest_step_ms"] == signals.longest_step_ns / MS


def test_every_cause_has_words() -> None:
    assert set(MEANING) == set(Cause)
