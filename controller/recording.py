"""What the decisions of one tick about one engine were made on, to be kept for replay.

Taken in the loop by reference, as all of it is frozen; turned into text after the tick's work.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from controller.actions import Proposal
from controller.attribution import Cause
from controller.batching import RUNNING, BatchView
from controller.changed import changed
from controller.codec import decode, encode
from controller.core import CoreState, decide
from controller.cpu_limits import CpuMemory, CpuView, decide_cpu
from controller.engines.contract import RELOAD
from controller.engines.page import Step
from controller.feasibility import raises_quota, room_of
from controller.memory_sentinel import (
    Cappable,
    MemoryView,
    SentinelMemory,
    danger_of,
    decide_memory,
)
from controller.policy_model import Mode, Slo
from controller.signals import Signals
from controller.step_model import StepModel
from controller.wire import Channel

WAITING: Final = 256
"""Inputs not handed over yet; the oldest of more are not kept."""

STEPS_KEPT: Final = 8
"""Of a second's steps: enough to fit step times from some minutes of samples."""

StepSample = tuple[int, int, int, int, int]
"""A step: ns, prompt tokens, sequences that generate, cached tokens, and ns since the step before,
-1 where that is not known."""

_COVARIANCE: Final = StepModel().covariance


@dataclass(frozen=True, slots=True)
class Inputs:
    """One tick of one engine, as it was before anything was decided.

    `batch_view` is None while its knobs can't be set. `steps` are some that ended lately; decisions
    do not rest on them.
    """

    mode: Mode
    slo: Slo
    neighbour_pressure: float
    signals: Signals
    cause: Cause
    cpu_view: CpuView
    cpu: CpuMemory
    batch_view: BatchView | None
    core: CoreState
    steps: tuple[StepSample, ...] = ()
    memory_view: MemoryView = field(default_factory=MemoryView)
    sentinel: SentinelMemory = field(default_factory=SentinelMemory)

    def as_dict(self) -> dict[str, Any]:
        """For JSON. How sure the step model is of itself decides nothing, and is left out."""
        model = replace(self.core.model, covariance=_COVARIANCE)
        fields: dict[str, Any] = encode(replace(self, core=replace(self.core, model=model)))
        return fields


def inputs_of(fields: Mapping[str, Any]) -> Inputs:
    """What `Inputs.as_dict` made; `ValueError`, `TypeError` or `KeyError` if it is not that."""
    return decode(Inputs, fields)


def decide_memory_of(inputs: Inputs) -> tuple[SentinelMemory, Proposal | None]:
    """What the sentinel makes of it: what it holds, and what is to be done to neighbours."""
    now_ns = inputs.signals.now_ns
    return decide_memory(inputs.memory_view, inputs.sentinel, now_ns, _cappable(inputs))


def decide_cpu_of(inputs: Inputs) -> tuple[CpuMemory, Proposal | None]:
    """What the CPU ladder makes of it."""
    cpu, proposal = decide_cpu(inputs.cpu_view, inputs.cpu, inputs.signals, inputs.cause)
    if proposal is not None and raises_quota(proposal) and danger_of(inputs.memory_view):
        # with more CPU they would take memory faster
        return inputs.cpu, None
    return cpu, proposal


def decide_batch_of(
    inputs: Inputs, sentinel: SentinelMemory | None = None
) -> tuple[CoreState, Proposal | None]:
    """What the decision core makes of it; nothing where knobs can't be set.

    `sentinel` is what `decide_memory_of` made of the same inputs, None if it was not asked.
    """
    if inputs.batch_view is None:
        return inputs.core, None
    if sentinel is None:
        sentinel, _ = decide_memory_of(inputs)
    room = room_of(inputs.memory_view, sentinel, inputs.signals.engine)
    view = changed(inputs.batch_view, room=room)
    return decide(view, inputs.core, inputs.signals, inputs.cause, inputs.slo.attainment)


def _cappable(inputs: Inputs) -> Cappable | None:
    """The engine's running cap, where it can be set at once."""
    view, engine = inputs.batch_view, inputs.signals.engine
    knob = view.knobs.get(RUNNING) if view is not None else None
    if view is None or knob is None or knob.cost == RELOAD:
        return None
    return Cappable(
        inputs.core.batch.point.get(RUNNING, knob.start),
        max(knob.minimum, min(view.floors.min_running, knob.start)),
        engine.running if engine is not None else None,
    )


class Recordings:
    """Inputs that wait to be handed to the agent, which keeps them.

    Turning them into text takes as long as a tick's decisions: it is done one at a time, in ticks
    that have time.
    """

    def __init__(self) -> None:
        self._waiting: deque[tuple[int, str, Inputs]] = deque(maxlen=WAITING)

    def decided(self, tag: int, engine: str, inputs: Inputs) -> None:
        """Keep what the decision `tag` was made on."""
        self._waiting.append((tag, engine, inputs))

    def sampled(self, engine: str, inputs: Inputs, steps: Iterable[Step]) -> None:
        """Keep what there was to decide on, and some of the steps that had just ended."""
        self._waiting.append((0, engine, replace(inputs, steps=some_of(steps))))

    def hand_over(self, channel: Channel) -> None:
        """Send the oldest, if there is one and the agent reads."""
        if not self._waiting or channel.wants_write:
            return
        tag, engine, inputs = self._waiting.popleft()
        channel.send(
            {
                "type": "inputs",
                "tag": tag,
                "mono_ns": inputs.signals.now_ns,
                "engine": engine,
                "inputs": inputs.as_dict(),
            }
        )


def some_of(steps: Iterable[Step]) -> tuple[StepSample, ...]:
    """At most `STEPS_KEPT` of them, evenly, as `Inputs` keeps them."""
    ordered = list(steps)
    stride = -(-len(ordered) // STEPS_KEPT) or 1
    found = []
    for at in range(0, len(ordered), stride):
        step, before = ordered[at], ordered[at - 1] if at else None
        pause_ns = -1
        # where somebody generated, the engine did not wait for work
        if before is not None and before.index == step.index - 1 and step.decode_seqs:
            pause_ns = step.end_ns - step.step_ns - before.end_ns
        found.append(
            (step.step_ns, step.prefill_tokens, step.decode_seqs, step.kv_tokens, pause_ns)
        )
    return tuple(found)
