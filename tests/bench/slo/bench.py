"""The machine of the bench: one engine on the demonstration's rig, one run after the other."""

import hashlib
import json
import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from demo import calibrate
from demo.client import Record
from demo.rig import ROOT, Rig, RigError
from demo.stage import Sent, Stage
from demo.stats import Slo
from demo.trace import Request, mean_prompt_tokens

from .cache import Cache, hash_of_sources
from .contenders import SITS, Contender, at_work
from .engines import BenchEngine
from .figures import Run
from .knobs import KnobHolder
from .loads import LENGTHS, Plan
from .slow_readers import SlowReaders
from .watch import LOOK_EVERY_S, PageWatch

NAME: Final = "sits-slo"
VERSION: Final = 5
"""Of what a run is; another finds none of the results kept before."""

TTFT_MULTIPLE: Final = 15.0
GAP_MULTIPLE: Final = 6.0
"""A step with 256 prompt tokens beside a few sequences takes four times an empty one."""

CAPACITY_REQUESTS: Final = 96
"""At once, from all over the trace."""

CAPACITY_TRIES: Final = 5
SETTLE_S: Final = 0.3
"""Between two runs."""

DIGITS: Final = 4
_SITS_SOURCES: Final = tuple(ROOT / name for name in ("agent", "bpf", "controller"))


class OutOfTimeError(Exception):
    """The time for this part of the bench is over; what was run is kept."""


@dataclass(frozen=True, slots=True)
class Spec:
    """One run: who holds the engine, and under what load."""

    contender: Contender
    plan: Plan
    slo: Slo
    neighbours: bool = False
    slow_readers: int = 0
    read_at_once: bool = False
    """Those ask for the same and are not slow."""

    options: tuple[str, ...] = ()
    """Of the engine, beside those of the bench; a later one of a name counts."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """What the engine can do with the requests of one trace when nothing else is there."""

    unloaded: Slo
    slo: Slo
    capacity_rps: float
    prompt_tokens: int


class Bench:
    """A context: inside it runs can be made; the machine is set up when the first one is."""

    def __init__(
        self,
        engine: BenchEngine,
        cache: Cache,
        tell: Callable[[str], None],
        stop_after_s: float | None = None,
    ) -> None:
        """`tell` is called with a line about each run. None is begun after `stop_after_s`."""
        self.engine = engine
        self.cache = cache
        self.tell = tell
        self.made = 0
        self._until = None if stop_after_s is None else time.monotonic() + stop_after_s
        self._engine_source = hash_of_sources(engine.sources)
        self._sits_source = hash_of_sources(_SITS_SOURCES)
        self._stack = ExitStack()
        self._stage: Stage | None = None
        self._options: tuple[str, ...] = ()
        self._starts = 0
        self._states: dict[tuple[str, ...], Path] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    def stage(self, options: tuple[str, ...] = ()) -> Stage:
        """The engine with these options beside its own, started when that is not what runs."""
        if self._stage is None:
            rig = self._stack.enter_context(Rig(NAME))
            self._stack.callback(os.sched_setaffinity, 0, os.sched_getaffinity(0))
            os.sched_setaffinity(0, {rig.cores.client})
        elif self._options == options:
            return self._stage
        else:
            rig = self._stage.rig
            self._stage.stop_engine()
        self._stage = Stage(rig, (*self.engine.options, *options), self.engine.kind)
        self._options = options
        self._stage.start_engine()
        return self._stage

    @property
    def knobs(self) -> Sequence[str]:
        """The knobs that the engine has."""
        inputs = self._inputs(asked="knobs")
        found = self.cache.get(inputs)
        if found is None:
            with KnobHolder(self.stage().admin_socket) as holder:
                found = sorted(holder.start_values())
            self.cache.put(inputs, found)
        names: list[str] = found
        return names

    def calibrate(self, name: str, trace: Sequence[Request], count: int) -> Calibration:
        """Unloaded figures of `count` requests, and the capacity for many at once.

        The capacity is the median of several tries, the former the mean of one before them and one
        after: each lasts a second or two, for which the machine may have other things to do.
        """
        inputs = self._inputs(calibration=name, count=count)
        found = self.cache.get(inputs)
        if found is None:
            self.check_time()
            stage = self.stage()
            alone = calibrate.unloaded_plan(trace, LENGTHS, count)
            before = calibrate.unloaded_figures(_whole(stage.send("unloaded", alone)))
            together = calibrate.capacity_plan(trace, LENGTHS, CAPACITY_REQUESTS)
            tries = [
                calibrate.capacity_rps(_whole(stage.send("capacity", together)))
                for _ in range(CAPACITY_TRIES)
            ]
            capacity = statistics.median(tries)
            after = calibrate.unloaded_figures(_whole(stage.send("unloaded", alone)))
            unloaded = Slo(
                statistics.mean((before.ttft_ms, after.ttft_ms)),
                statistics.mean((before.gap_ms, after.gap_ms)),
            )
            found = {"unloaded": asdict(unloaded), "capacity_rps": capacity, "tries": tries}
            self.cache.put(inputs, found)
        unloaded = Slo(**found["unloaded"])
        slo = Slo(
            round(unloaded.ttft_ms * TTFT_MULTIPLE, 1), round(unloaded.gap_ms * GAP_MULTIPLE, 1)
        )
        prompt = mean_prompt_tokens(map(LENGTHS.apply, trace))
        return Calibration(unloaded, slo, found["capacity_rps"], prompt)

    def run(self, label: str, spec: Spec) -> Run:
        """Make this run, or take it from what was kept."""
        return run_of(spec, self.kept(label, self.inputs_of(spec), lambda: self._make(spec)))

    def kept(
        self, label: str, inputs: Mapping[str, Any], make: Callable[[], dict[str, Any]]
    ) -> dict[str, Any]:
        """What was kept for these inputs; where there is nothing, what `make` makes, kept now."""
        found: dict[str, Any] | None = self.cache.get(inputs)
        if found is None:
            self.check_time()
            began = time.monotonic()
            found = make()
            self.cache.put(inputs, found)
            self.made += 1
            self.tell(f"{label}: {time.monotonic() - began:.1f} s")
        return found

    def new_state_dir(self, stage: Stage) -> Path:
        """A directory for sitsd's state that was not there before."""
        self._starts += 1
        return stage.rig.run_dir / f"state-{self._starts}"

    def inputs_of(self, spec: Spec, **more: Any) -> dict[str, Any]:
        """All that the result of a run depends on."""
        plan = json.dumps([asdict(each) for each in spec.plan.requests])
        return self._inputs(
            contender=asdict(spec.contender),
            sits=self._sits_source if spec.contender.is_sits else None,
            plan=hashlib.sha256(plan.encode()).hexdigest(),
            window_s=spec.plan.window_s,
            slo=asdict(spec.slo),
            neighbours=spec.neighbours,
            slow_readers=spec.slow_readers,
            **({"read_at_once": True} if spec.read_at_once else {}),
            extra_options=list(spec.options),
            **more,
        )

    def check_time(self) -> None:
        """`OutOfTimeError` if no other run is to be begun."""
        if self._until is not None and time.monotonic() > self._until:
            raise OutOfTimeError

    def _make(self, spec: Spec) -> dict[str, Any]:
        stage = self.stage(spec.options)
        if not spec.contender.is_sits:
            return self._send(stage, spec, self.new_state_dir(stage))
        state = self._states.get(spec.options)
        if state is None:
            # a node has seen its engine before; how long it takes where not is for `restart` to say
            state = self._states[spec.options] = self.new_state_dir(stage)
            self._send(stage, replace(spec, contender=SITS), state)
        return self._send(stage, spec, state)

    def _send(self, stage: Stage, spec: Spec, state: Path) -> dict[str, Any]:
        time.sleep(SETTLE_S)
        ends_s = spec.plan.requests[spec.plan.warm_up].arrival_s + spec.plan.window_s
        with (
            watching(stage) as watch,
            at_work(spec.contender, stage, spec.slo, watch, state) as hand,
            SlowReaders(
                stage.port, spec.slow_readers, stage.kind.prompt, at_once=spec.read_at_once
            ) as slow,
            stage.neighbours() if spec.neighbours else nullcontext() as neighbours,
        ):

            def during(elapsed_s: float) -> None:
                watch.look()
                hand.tick(elapsed_s)
                if elapsed_s > ends_s:
                    slow.stop()
                    if neighbours is not None:
                        neighbours.stop()

            sent = stage.send("run", spec.plan.requests, during, every_s=LOOK_EVERY_S)
            return result_of(sent, {**hand.account(), **watch.seen.as_dict(), **slow.account()})

    def _inputs(self, **more: Any) -> dict[str, Any]:
        return {
            "version": VERSION,
            "engine": self.engine.name,
            "options": list(self.engine.options),
            "source": self._engine_source,
            **more,
        }


@contextmanager
def watching(stage: Stage) -> Iterator[PageWatch]:
    """The engine's page, for one run."""
    watch = PageWatch(stage.page)
    try:
        yield watch
    finally:
        watch.close()


def result_of(sent: Sent, seen: Mapping[str, Any]) -> dict[str, Any]:
    """A run as it is kept."""
    records = []
    for each in sent.records:
        record = asdict(each)
        record["gaps_ms"] = [round(gap, DIGITS) for gap in each.gaps_ms]
        records.append(record)
    return {"records": records, "late": asdict(sent.late), "seen": dict(seen)}


def run_of(spec: Spec, result: Mapping[str, Any]) -> Run:
    """A run from how it is kept."""
    records = [Record(**each) for each in result["records"]]
    warm_up = spec.plan.warm_up
    return Run(
        records[warm_up:], records[:warm_up], spec.plan.window_s, spec.slo, dict(result["seen"])
    )


def _whole(sent: Sent) -> Sequence[Record]:
    """The records, of which none may have failed: no figure could be trusted."""
    for each in sent.records:
        if each.error:
            raise RigError(f"a request failed while the engine was alone: {each.error}")
    return sent.records
