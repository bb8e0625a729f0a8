"""What a check works with: connections to one engine, its knobs, and writers' names."""

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from controller.conformance.check import BreachError, NotApplicableError
from controller.conformance.nudge import nudged
from controller.conformance.wire import ANSWER_S, Answer, Wire
from controller.engines.contract import Hello
from controller.engines.page import EngineNow, PageError, PageReader

LEASE_MS: Final = 3_000
"""Of leases that are not to end by themselves: longer than a check takes, even when CPU is short,
and short enough to wait for where an engine can't release."""

SHORT_LEASE_MS: Final = 300
"""Of leases that are to end."""

STEP_S: Final = 10.0
"""Patience with a change of cost `step`: a step of a large batch, on a machine short of CPU."""

RELOAD_S: Final = 60.0
"""Patience with a change of cost `reload`."""

IDLE_S: Final = 0.5
"""An engine that has computed no step within this computes none."""

POLL_S: Final = 0.004


class Probe:
    """One check's view of the engine. Connections made here are closed by `close`."""

    def __init__(
        self,
        path: Path,
        hello: Hello,
        *,
        patience: float = 1.0,
        restart: Callable[[], None] | None = None,
    ) -> None:
        """`patience` times as long as usual is waited; `restart` restarts the engine, if it can."""
        self.path = path
        self.hello = hello
        self.patience = patience
        self.step_s = patience * STEP_S
        self.restart = restart
        self.owner, self.other = owners()
        self._wires: list[Wire] = []
        self._pages: list[PageReader] = []
        self._main: Wire | None = None
        knobs = hello.knobs.values()
        movable = [knob for knob in knobs if nudged(knob) != knob.start]
        self.changes: Mapping[str, float] = {knob.name: nudged(knob) for knob in movable}
        """Every knob that can be changed, and a value close to its start."""
        self._main_knob = min(movable, key=lambda knob: knob.cost != "step", default=None)

    @property
    def start(self) -> Mapping[str, float]:
        """Every knob's value without a lease."""
        return {name: knob.start for name, knob in self.hello.knobs.items()}

    @property
    def small(self) -> Mapping[str, float]:
        """A small change of one knob, the cheapest there is."""
        if self._main_knob is None:
            raise NotApplicableError("no knob has room for another value than its start")
        return {self._main_knob.name: nudged(self._main_knob)}

    @property
    def smaller(self) -> Mapping[str, float]:
        """Another value of the same knob; its start if the range has only two."""
        if self._main_knob is None:
            raise NotApplicableError("no knob has room for another value than its start")
        return {self._main_knob.name: nudged(self._main_knob, 2)}

    @property
    def short_lease_ms(self) -> int:
        """A lease that ends soon, as short as the engine allows it to be."""
        return min(SHORT_LEASE_MS, self.hello.max_lease_ms)

    def connect(self) -> Wire:
        """Another connection, which ends with the check."""
        try:
            wire = Wire(self.path, self.patience * ANSWER_S)
        except OSError as error:
            raise BreachError("to be let in at the socket", str(error), "(a connection)") from None
        self._wires.append(wire)
        return wire

    def close(self) -> None:
        """Close every connection and page."""
        for wire in self._wires:
            wire.close()
        for page in self._pages:
            page.close()

    def ask(self, call: str, **fields: object) -> Answer:
        """Ask over the check's main connection."""
        if self._main is None:
            self._main = self.connect()
        return self._main.ask(call, **fields)

    def get(self) -> Answer:
        """The state."""
        return self.ask("get").ok()

    def next_epoch(self) -> int:
        """The lowest epoch that the engine takes."""
        epoch = self.get()["epoch"]
        return int(epoch) + 1

    def set(self, values: Mapping[str, object] | None = None, **fields: object) -> Answer:
        """`set` with the next epoch, as `owner`, for a lease of seconds, unless told otherwise."""
        given = {
            "owner": self.owner,
            "epoch": fields["epoch"] if "epoch" in fields else self.next_epoch(),
            "lease_ms": min(LEASE_MS, self.hello.max_lease_ms),
            **fields,
        }
        return self.ask("set", **given, **({} if values is None else {"values": values}))

    def release(self, owner: str | None = None) -> Answer:
        """`release`."""
        return self.ask("release", owner=owner or self.owner)

    def prepare(self, values: Mapping[str, object] | None = None, **fields: object) -> Answer:
        """`prepare` as `set`, with a term of seconds; not applicable if the engine can't."""
        seconds = min(LEASE_MS, self.hello.max_lease_ms)
        answer = self.ask(
            "prepare",
            **{
                "owner": self.owner,
                "epoch": fields["epoch"] if "epoch" in fields else self.next_epoch(),
                "lease_ms": seconds,
                "term_ms": seconds,
                "values": values or {},
                **fields,
            },
        )
        if answer.code == "unknown_call":
            raise NotApplicableError("the engine does not know prepare")
        return answer

    def settled(self) -> Answer:
        """The state once nothing is pending; not applicable if an idle engine leaves it so."""
        began = time.monotonic()
        answer = self.get()
        if answer["pending"]:
            steps = self._steps()
            patience_s = self.patience_s(answer["pending"])
            while answer["pending"] and time.monotonic() - began < patience_s:
                time.sleep(POLL_S)
                answer = self.get()
                idle = time.monotonic() - began >= IDLE_S and self._steps() == steps
                if answer["pending"] and idle and self.cost(answer["pending"]) == "step":
                    raise NotApplicableError(
                        "the engine computes no step, so the change stays pending"
                    )
        return answer.require(not answer["pending"], "pending to become empty")

    def cost(self, names: Mapping[str, object]) -> str:
        """The dearest cost of a change of these knobs."""
        knobs = self.hello.knobs
        dear = any(knobs[name].cost != "step" for name in names if name in knobs)
        return "reload" if dear else "step"

    def patience_s(self, names: Mapping[str, object]) -> float:
        """How long a change of these knobs may take."""
        return self.step_s if self.cost(names) == "step" else self.patience * RELOAD_S

    def until(self, true: Callable[[], bool], patience_s: float, expected: str) -> None:
        """Wait until something is true; `BreachError` if that does not happen."""
        ends = time.monotonic() + patience_s
        while not true():
            if time.monotonic() > ends:
                raise BreachError(f"{expected} within {patience_s:g} s", "that did not happen")
            time.sleep(POLL_S)

    def page(self) -> PageReader:
        """The stats page; not applicable if the engine has none."""
        if self.hello.page is None:
            raise NotApplicableError("the engine offers no page")
        try:
            page = PageReader(Path(self.hello.page))
        except (OSError, PageError) as error:
            raise BreachError(
                "a stats page where hello says", str(error), "(a look at it)"
            ) from None
        self._pages.append(page)
        return page

    def _steps(self) -> int:
        return int(self.ask("stats").ok()["now"].get("steps", 0))


def look(page: PageReader) -> EngineNow:
    """What a page shows now; `BreachError` if no reader gets through."""
    read = page.read(tries=1000)
    if read is None:
        raise BreachError(
            "the page's sequence to be even and at rest once in a thousand looks",
            "it never was",
            "(a look at the page)",
        )
    return read[0]


def owners() -> tuple[str, str]:
    """The names that the suite writes under."""
    return f"conformance-{os.getpid()}", f"conformance-{os.getpid()}-other"
