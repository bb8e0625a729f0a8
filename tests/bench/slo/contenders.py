"""Who sets the engine's knobs during a run: nobody, a fixed point, AIMD, or sitsd."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, Protocol

from agent.client import ClientError
from demo.rig import RigError
from demo.sits import Sits, start_sitsd
from demo.stage import Stage
from demo.stats import Slo

from .aimd import EVERY_S, Budget, following, p99_gap_ms
from .knobs import KnobHolder
from .watch import PageWatch

Kind = Literal["static", "aimd", "observe", "control"]

BUDGET: Final = "max_batched_tokens"
LEAST_BUDGET: Final = 64
"""As the least that sitsd's policy allows by default."""


@dataclass(frozen=True, slots=True)
class Contender:
    """A way to run the engine. `knobs` are a static point's; without any, the start values."""

    name: str
    kind: Kind = "static"
    knobs: Mapping[str, float] = field(default_factory=dict)

    @property
    def is_sits(self) -> bool:
        """Whether sitsd runs beside the engine."""
        return self.kind in ("observe", "control")


DEFAULT: Final = Contender("default")
AIMD: Final = Contender("aimd", "aimd")
OBSERVE: Final = Contender("observe", "observe")
SITS: Final = Contender("sits", "control")


class Hand(Protocol):
    """A contender at work."""

    def tick(self, elapsed_s: float) -> None:
        """Called every so often while the load runs."""

    def account(self) -> dict[str, Any]:
        """What it has to say of itself when the load is done."""


@contextmanager
def at_work(
    contender: Contender, stage: Stage, slo: Slo, watch: PageWatch, state_dir: Path
) -> Iterator[Hand]:
    """The contender holds the engine inside this context; afterwards it is as it was started."""
    if contender.is_sits:
        since_ns = time.monotonic_ns()
        sits = start_sitsd(stage.rig, stage, slo, contender.kind, state_dir)
        try:
            yield SitsHand(sits, since_ns)
        finally:
            stage.rig.stop(sits.process)
        return
    with KnobHolder(stage.admin_socket) as holder:
        if contender.kind == "aimd":
            yield _AimdHand(holder, watch, slo)
        else:
            if contender.knobs:
                holder.set(contender.knobs)
            yield _StaticHand(holder)


class _StaticHand:
    """Keeps a fixed point."""

    def __init__(self, holder: KnobHolder) -> None:
        self._holder = holder

    def tick(self, elapsed_s: float) -> None:
        self._holder.renew()

    def account(self) -> dict[str, Any]:
        return {}


class _AimdHand:
    """Begins at the start values and moves the token budget."""

    def __init__(self, holder: KnobHolder, watch: PageWatch, slo: Slo) -> None:
        self._holder = holder
        self._watch = watch
        self._slo = slo
        self._most = holder.start_values()[BUDGET]
        self._held = Budget(self._most, time.monotonic_ns())
        self._due_s = 0.0

    def tick(self, elapsed_s: float) -> None:
        self._holder.renew()
        if elapsed_s < self._due_s:
            return
        self._due_s = elapsed_s + EVERY_S
        p99_ms = p99_gap_ms(self._watch.steps, self._held.since_ns)
        now_ns = time.monotonic_ns()
        after = following(self._held, p99_ms, self._slo.gap_ms, now_ns, LEAST_BUDGET, self._most)
        if after.tokens != self._held.tokens:
            self._holder.set({BUDGET: int(after.tokens)})
        self._held = after

    def account(self) -> dict[str, Any]:
        return {}


class SitsHand:
    """sitsd does all by itself; it is asked at the end."""

    def __init__(self, sits: Sits, since_ns: int) -> None:
        """Decisions count that were taken since `since_ns` (CLOCK_MONOTONIC)."""
        self._sits = sits
        self._since_ns = since_ns

    def tick(self, elapsed_s: float) -> None:
        """Nothing to do."""

    def account(self) -> dict[str, Any]:
        """What sitsd decided, and how its loop ran."""
        try:
            status = self._sits.client.status()
            decided = list(self._sits.decided_since(self._since_ns))
            events = self._sits.client.journal()["events"]
        except ClientError as error:
            raise RigError(f"sitsd did not come through the run: {error}") from None
        acks = [each["ack"] for each in decided]
        return {
            "decisions": len(decided),
            "knob_decisions": sum(
                any(change["kind"] == "knob" for change in each["action"]) for each in decided
            ),
            "refused_or_lost": sum(ack in ("refused", "lost") for ack in acks),
            "loop": status["loop"],
            "model": status["engines"][0]["model"],
            "problems": status["problems"],
            **self._beginning(decided, events),
        }

    def _beginning(
        self, decided: Sequence[Mapping[str, Any]], events: Sequence[Mapping[str, Any]]
    ) -> dict[str, float | None]:
        """Seconds from its start to when it had the engine, and on to a point by the step model."""
        seen = [each["mono_ns"] for each in events if each["kind"] == "engine_seen"]
        points = [each["mono_ns"] for each in decided if each["reason"].startswith("a step of")]
        had_ns = min((at_ns for at_ns in seen if at_ns >= self._since_ns), default=None)
        if had_ns is None:
            return {"engine_after_s": None, "point_after_s": None}
        return {
            "engine_after_s": (had_ns - self._since_ns) / 1e9,
            "point_after_s": (min(points) - had_ns) / 1e9 if points else None,
        }
