"""Small engines that serve the contract over a real socket: right ones, and parts to break them."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from controller.conformance.suite import Report, run
from controller.engines.contract import KNOBS, Hello, Knob
from controller.engines.page import EngineNow, PageWriter
from controller.serving.calls import Calls
from controller.serving.leases import Leases
from controller.serving.server import AdminServer

PATIENCE: Final = 0.2
"""Of the suite in these tests: two seconds for a change, one for an answer."""

PERIOD_S: Final = 0.02
"""Of the thread that applies changes where an engine has one."""


def knob(name: str, minimum: float, maximum: float, start: float, cost: str = "step") -> Knob:
    return Knob(name, minimum, maximum, start, KNOBS[name], cost)


TWO_KNOBS: Final = (knob("max_running", 1, 64, 64), knob("max_batched_tokens", 1, 2048, 2048))


class SmallEngine:
    """A `Served` that computes nothing. Changes are applied at once."""

    leases_type: type[Leases] = Leases

    def __init__(self, knobs: tuple[Knob, ...], page: PageWriter | None) -> None:
        self.knobs: Mapping[str, Knob] = {each.name: each for each in knobs}
        self._lock = threading.Lock()
        self._page = page
        self._steps = 0
        self.leases = self.leases_type(self.knobs, 10_000)
        self.publish()

    def start(self) -> None:
        """Nothing runs."""

    def stop(self) -> None:
        """Nothing to stop."""

    def with_leases(self, act: Callable[[Leases], dict[str, Any]]) -> dict[str, Any]:
        with self._lock:
            self.leases.expire(time.monotonic_ns())
            try:
                fields = act(self.leases)
            finally:
                self.changed()
                self.publish()
            return {**fields, **self.leases.state(time.monotonic_ns())}

    def changed(self) -> None:
        """A change may be pending."""
        self.leases.apply()

    def now(self) -> EngineNow:
        with self._lock:
            return self.shown()

    def next_deadline_ns(self) -> int | None:
        with self._lock:
            return self.leases.deadline_ns()

    def expire(self) -> int:
        with self._lock:
            if self.leases.expire(time.monotonic_ns()):
                self.publish()
            return self.leases.version

    def shown(self) -> EngineNow:
        values = self.leases.values
        return EngineNow(
            updated_ns=time.monotonic_ns(),
            steps=self._steps,
            epoch=self.leases.applied_epoch,
            max_running=int(values.get("max_running", 0)),
            max_batched_tokens=int(values.get("max_batched_tokens", 0)),
            lease_expiries_total=self.leases.expiries,
        )

    def publish(self) -> None:
        if self._page is not None:
            self._page.write(self.shown())


class SteppingEngine(SmallEngine):
    """Changes are pending until the top of the next of its steps."""

    def __init__(self, knobs: tuple[Knob, ...], page: PageWriter | None) -> None:
        super().__init__(knobs, page)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()

    def changed(self) -> None:
        """The next step will see it."""

    def _run(self) -> None:
        while not self._stopping.wait(PERIOD_S):
            with self._lock:
                self.leases.expire(time.monotonic_ns())
                self.leases.apply()
                self._steps += 1
                self.publish()


class LeasesThatReload(Leases):
    """At the end of a lease the start values are pending: bringing them back takes a reload."""

    def _revert(self) -> None:
        values = self.values
        super()._revert()
        self.values = values


class ReloadingEngine(SteppingEngine):
    leases_type = LeasesThatReload


class IdleEngine(SteppingEngine):
    """Computes no step, so that a change stays pending, as it may."""

    def _run(self) -> None:
        self._stopping.wait()


class CallsWithoutPrepare(Calls):
    def _answer(self, message: Mapping[str, Any]) -> dict[str, Any]:
        if message.get("call") in {"prepare", "commit", "abort"}:
            return super()._answer({"call": "not-known"})
        return super()._answer(message)


@contextmanager
def serving(
    directory: Path,
    engine_type: type[SmallEngine] = SmallEngine,
    *,
    knobs: tuple[Knob, ...] = TWO_KNOBS,
    calls_type: type[Calls] = Calls,
    server_type: type[AdminServer] = AdminServer,
    page_type: type[PageWriter] | None = PageWriter,
) -> Iterator[Path]:
    """Serve an engine made of these parts; yields its socket."""
    page = None if page_type is None else page_type(directory / "page")
    engine = engine_type(knobs, page)
    hello = Hello(
        "small", "1", "first", 1, engine.knobs, page=None if page is None else str(page.path)
    )
    server = server_type(directory / "socket", engine, calls_type(engine, hello))
    engine.start()
    server.start()
    try:
        yield directory / "socket"
    finally:
        server.stop()
        engine.stop()
        if page is not None:
            page.close()


def failing(report: Report) -> dict[str, tuple[str, str]]:
    """The checks that failed, with what was expected and what they got."""
    return {
        verdict.check.name: (verdict.expected, verdict.got)
        for verdict in report.verdicts
        if verdict.result == "fail"
    }


def checked(path: Path, **options: Any) -> Report:
    return run(path, patience=PATIENCE, **options)
