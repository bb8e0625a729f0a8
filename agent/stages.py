"""The stages of an engine: what flows through each, what queues in it, which one holds requests up.

accept queue → receive queue → engine waiting → engine running → send queue → wire

Pure functions over samples taken every `SAMPLE_NS`. The figures of a stage come from where they
are true: the kernel's socket lists, the kernel programs' counters, and the engine's own word.
The queue law and the detector are seed A7's, whose text lost its operators: here they are
q(t+1) = max(0, q(t) + r(t) - c(t)), and q > k·q_prev together with q > floor.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from typing import Final

from agent.correlation import Link, Series, correlate

SAMPLE_NS: Final = 100_000_000
FACTOR: Final = 1.5
"""k of the detector."""

HELD_UP: Final = 0.3
"""A stage in which this share of what is there only waits, over the whole window, is named."""


class Stage(StrEnum):
    """From the client to the client. Values are metric labels."""

    ACCEPT = "accept"
    RECEIVE = "receive"
    WAITING = "waiting"
    RUNNING = "running"
    SEND = "send"
    WIRE = "wire"


UNITS: Final[Mapping[Stage, tuple[str, str]]] = {
    Stage.ACCEPT: ("connections", "connections"),
    Stage.RECEIVE: ("requests", "requests"),
    Stage.WAITING: ("requests", "requests"),
    Stage.RUNNING: ("requests", "requests"),
    Stage.SEND: ("streams", "chunks"),
    Stage.WIRE: ("bytes", "chunks"),
}
"""What each stage's queue is counted in, and what flows through it."""

FLOORS: Final[Mapping[Stage, float]] = {
    Stage.ACCEPT: 8,
    Stage.RECEIVE: 8,
    Stage.WAITING: 16,
    Stage.RUNNING: 32,
    Stage.SEND: 4,
    Stage.WIRE: 256 * 1024,
}
"""Queues up to this are no backpressure however fast they grew.

The seed's floor of 100 is of a service with thousands of requests at once. An engine runs tens: a
queue of 8 connections or requests is a burst that one turn of its event loop takes in; 16 waiting
are a step's admissions and 32 running half of a usual cap; 4 streams with unsent bytes are more
than a slow client or two; 256 KiB are what one fast connection may have in flight.
"""


@dataclass(frozen=True, slots=True)
class Load:
    """What the engine says of itself at one moment; totals only grow."""

    waiting: int
    running: int
    requests_total: int
    finished_total: int


@dataclass(frozen=True, slots=True)
class Sample:
    """One engine at one moment, the `index`-th `SAMPLE_NS` of CLOCK_MONOTONIC.

    `backlog` of `backlog_limit` connections wait to be accepted (a limit of 0: not known).
    `requests` … `ended` are the kernel programs' counters. What follows is of the last look at the
    connections; `looked` says whether that was at this sample. To `unsent` is added what the kernel
    programs counted since. `arrived` and `accepted` count connections that a look saw.
    """

    index: int
    at_ns: int
    backlog: int = 0
    backlog_limit: int = 0
    requests: int = 0
    reads: int = 0
    writes: int = 0
    chunks: int = 0
    ended: int = 0
    looked: bool = False
    arrived: int = 0
    accepted: int = 0
    connections: int = 0
    unread: int = 0
    unsent: int = 0
    unsent_bytes: int = 0
    in_flight_bytes: int = 0
    load: Load | None = None


@dataclass(frozen=True, slots=True)
class Flow:
    """One stage over all samples: its queue, and totals of what came and went. None: not known.

    `pressure` is the share, 0…1, of what is at this point that only waits; None where waiting is
    no fault of the stage.
    """

    queue: Series
    entered: Series
    left: Series
    pressure: Series


@dataclass(frozen=True, slots=True)
class Law:
    """The queue law against what was measured, over `steps` from one sample to the next.

    `error_mean` and `error_max` are of |measured - predicted|, in the queue's unit.
    """

    steps: int
    error_mean: float
    error_max: float


@dataclass(frozen=True, slots=True)
class StageReport:
    """One stage over a window. `wait_ms` is Little's law: mean queue over what left."""

    stage: Stage
    queue: float | None
    queue_mean: float | None
    queue_max: float | None
    in_per_s: float | None
    out_per_s: float | None
    wait_ms: float | None
    pressure: float | None
    floor: float
    alarms: int
    law: Law | None


@dataclass(frozen=True, slots=True)
class Report:
    """All stages, how they follow each other, and the one that holds requests up, if one does."""

    seconds: float
    samples: int
    held_up_at: Stage | None
    stages: tuple[StageReport, ...] = ()
    links: tuple[Link, ...] = ()


def flow_of(stage: Stage, samples: Sequence[Sample]) -> Flow:
    """One stage's series.

    accept: connections; a look sees only those that live until it, so its rates are lower bounds.
    receive: queue and rates have different sources (socket lists, kernel programs).
    waiting: in is the kernel's word (first reads), out the engine's (started = running + finished).
    send: in are writes, out chunks on the wire, its queue streams with unsent bytes.
    wire: its queue is bytes in flight, which acknowledgements take out one by one, uncounted.
    """
    # kernels before 6.3 say nothing of reads and writes
    reads = any(s.reads for s in samples)
    writes = any(s.writes for s in samples)

    def of(value: Callable[[Sample], float | None]) -> Series:
        return [value(s) for s in samples]

    def said(value: Callable[[Load], float]) -> Series:
        return [value(s.load) if s.load is not None else None for s in samples]

    def looked(value: Callable[[Sample], float]) -> Series:
        return [value(s) if s.looked else None for s in samples]

    unknown: Series = [None] * len(samples)
    taken_up = of(lambda s: s.reads) if reads else said(lambda e: e.requests_total)
    started = said(lambda e: e.running + e.finished_total)
    match stage:
        case Stage.ACCEPT:
            return Flow(
                of(lambda s: s.backlog if s.backlog_limit else None),
                looked(lambda s: s.arrived),
                looked(lambda s: s.accepted),
                of(lambda s: _pending(s) if s.backlog_limit else None),
            )
        case Stage.RECEIVE:
            return Flow(
                looked(lambda s: s.unread),
                of(lambda s: s.requests),
                taken_up,
                looked(lambda s: _share(s.unread, s.connections)),
            )
        case Stage.WAITING:
            return Flow(
                said(lambda e: e.waiting),
                taken_up,
                started,
                said(lambda e: _share(e.waiting, e.waiting + e.running)),
            )
        case Stage.RUNNING:
            return Flow(
                said(lambda e: e.running), started, said(lambda e: e.finished_total), unknown
            )
        case Stage.SEND:
            known = of if writes else looked
            return Flow(
                known(lambda s: s.unsent),
                of(lambda s: s.writes) if writes else unknown,
                of(lambda s: s.chunks),
                known(lambda s: _share(s.unsent, max(s.unsent, s.requests - s.ended))),
            )
        case Stage.WIRE:
            return Flow(
                looked(lambda s: s.in_flight_bytes), of(lambda s: s.chunks), unknown, unknown
            )


def analyse(
    samples: Sequence[Sample], factor: float = FACTOR, floors: Mapping[Stage, float] = FLOORS
) -> Report:
    """What the samples, oldest first, say of every stage, and of one stage after another."""
    if len(samples) < 2:
        return Report(0.0, len(samples), None)
    seconds = (samples[-1].at_ns - samples[0].at_ns) / 1e9
    flows = {stage: flow_of(stage, samples) for stage in Stage}
    stages = stage_reports(samples, factor, floors)
    return Report(seconds, len(samples), held_up_at(flows), stages, tuple(links(flows, samples)))


def stage_reports(
    samples: Sequence[Sample], factor: float = FACTOR, floors: Mapping[Stage, float] = FLOORS
) -> tuple[StageReport, ...]:
    """What the samples say of every stage; nothing with less than two."""
    if len(samples) < 2:
        return ()
    return tuple(
        _report(stage, flow_of(stage, samples), samples, factor, floors[stage]) for stage in Stage
    )


def predicted(queue: float, entered: float, left: float) -> float:
    """The queue law: what is there after a step."""
    return max(0.0, queue + entered - left)


def check_law(flow: Flow) -> Law | None:
    """The law over every step whose two ends are known; None if there is none."""
    known = [
        (q, a, b)
        for q, a, b in zip(flow.queue, flow.entered, flow.left, strict=True)
        if q is not None and a is not None and b is not None
    ]
    errors = [
        abs(q1 - predicted(q0, a1 - a0, b1 - b0))
        for (q0, a0, b0), (q1, a1, b1) in pairwise(known)
        # totals that went back are of an engine that started anew
        if a1 >= a0 and b1 >= b0
    ]
    return Law(len(errors), sum(errors) / len(errors), max(errors)) if errors else None


def alarms(queue: Series, factor: float, floor: float) -> int:
    """In how many windows the queue grew by more than `factor` to more than `floor`."""
    known = [q for q in queue if q is not None]
    return sum(now > factor * before and now > floor for before, now in pairwise(known))


def rate(totals: Series, samples: Sequence[Sample]) -> float | None:
    """What a total grew by in a second; None where it is not known twice."""
    known = [(s.at_ns, v) for s, v in zip(samples, totals, strict=True) if v is not None]
    if len(known) < 2:
        return None
    grown = sum(max(0.0, b - a) for (_, a), (_, b) in pairwise(known))
    return grown / ((known[-1][0] - known[0][0]) / 1e9)


def held_up_at(flows: Mapping[Stage, Flow]) -> Stage | None:
    """The last stage in which at least `HELD_UP` of what is there waits, most of the time.

    The last, because a stage that is held up holds up those before it.
    """
    for stage in reversed(Stage):
        pressure = [p for p in flows[stage].pressure if p is not None]
        if not pressure:
            continue
        often = sum(p > 0 for p in pressure) / len(pressure)
        if often >= 0.5 and sum(pressure) / len(pressure) >= HELD_UP:
            return stage
    return None


def links(flows: Mapping[Stage, Flow], samples: Sequence[Sample]) -> Iterator[Link]:
    """How each stage follows the one before it.

    Its queue follows what the other lets out; its pressure (its queue, where it has no pressure)
    follows the other's queue.
    """
    sample_ms = SAMPLE_NS / 1e6
    for before, after in pairwise(Stage):
        out = on_grid(steps(flows[before].left, samples), samples)
        queue = on_grid(flows[after].queue, samples)
        yield correlate(f"{before}.out", f"{after}.queue", out, queue, sample_ms)
        pressure = on_grid(flows[after].pressure, samples)
        pressed = any(p is not None for p in pressure)
        name, series = ("pressure", pressure) if pressed else ("queue", queue)
        waits = on_grid(flows[before].queue, samples)
        yield correlate(f"{before}.queue", f"{after}.{name}", waits, series, sample_ms)


def on_grid(series: Series, samples: Sequence[Sample]) -> Series:
    """The series with None for the samples that were not taken in time."""
    first = samples[0].index
    made: list[float | None] = [None] * (samples[-1].index - first + 1)
    for sample, value in zip(samples, series, strict=True):
        made[sample.index - first] = value
    return made


def steps(totals: Series, samples: Sequence[Sample]) -> Series:
    """A total as a rate, per second, from each known sample to the next."""
    made: list[float | None] = [None] * len(totals)
    last: tuple[int, float] | None = None
    for i, (sample, value) in enumerate(zip(samples, totals, strict=True)):
        if value is None:
            continue
        if last is not None and value >= last[1] and sample.at_ns > last[0]:
            made[i] = (value - last[1]) / ((sample.at_ns - last[0]) / 1e9)
        last = (sample.at_ns, value)
    return made


def _report(
    stage: Stage, flow: Flow, samples: Sequence[Sample], factor: float, floor: float
) -> StageReport:
    queue = [q for q in flow.queue if q is not None]
    pressure = [p for p in flow.pressure if p is not None]
    mean = sum(queue) / len(queue) if queue else None
    out = rate(flow.left, samples)
    same_unit = len(set(UNITS[stage])) == 1
    return StageReport(
        stage=stage,
        queue=queue[-1] if queue else None,
        queue_mean=mean,
        queue_max=max(queue, default=None),
        in_per_s=rate(flow.entered, samples),
        out_per_s=out,
        wait_ms=mean / out * 1e3 if same_unit and mean is not None and out else None,
        pressure=sum(pressure) / len(pressure) if pressure else None,
        floor=floor,
        alarms=alarms(flow.queue, factor, floor),
        law=check_law(flow) if same_unit else None,
    )


def _share(part: float, whole: float) -> float:
    return min(1.0, part / whole) if whole else 0.0


def _pending(sample: Sample) -> float:
    """How full the queue is, or the share of all connections in it: nothing may be accepted."""
    return max(
        _share(sample.backlog, sample.backlog_limit),
        _share(sample.backlog, sample.backlog + sample.connections),
    )
