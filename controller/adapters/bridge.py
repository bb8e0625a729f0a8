"""The engine contract served for a driver: one instance of one engine, as a `Served`.

One thread calls `work`, and only it calls the driver. Whoever serves the contract calls the other
methods, from any thread, and never waits for the engine: a `set` is pending until the engine has
the values and they were read back.
"""

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any, Final

from controller.adapters.driver import AdapterError, Driver, EngineChangedError, Identity
from controller.adapters.shown import Shown
from controller.adapters.undo import Undo, UndoError, UndoFile, foreign, put
from controller.engines.contract import Knob
from controller.engines.page import EngineNow, PageWriter
from controller.serving.leases import Leases

log = logging.getLogger(__name__)

MAX_LEASE_MS: Final = 10_000

SHARE: Final = 100
"""Figures are asked for so seldom that this takes a hundredth of the time, and as this allows:"""
FASTEST_NS: Final = 25_000_000
SLOWEST_NS: Final = 2_000_000_000

LOOK_NS: Final = 1_000_000_000
"""How often the engine is asked who it is and what is in force, or more seldom if that is dear."""

PATIENCE_NS: Final = 2_000_000_000
"""An engine that tells nothing for so long is given up."""

FAILED_NS: Final = 30_000_000_000
"""A change that the engine did not take is not tried again for so long."""

LEFT_ALONE_NS: Final = 60_000_000_000
"""How long knobs are left alone at least that somebody else changed."""


class Bridge:
    """One instance of an engine, from its start values to its end."""

    def __init__(
        self,
        driver: Driver,
        identity: Identity,
        knobs: Mapping[str, Knob],
        undo: UndoFile,
        record: Undo,
        page: PageWriter | None,
    ) -> None:
        """`record` says how to undo; its values are the start values. Nothing is written yet."""
        self._driver = driver
        self._identity = identity
        self._undo = undo
        self._record = record
        self._page = page
        self._lock = threading.Lock()
        self._leases = Leases(knobs, MAX_LEASE_MS, at_once=False)
        self._start = dict(self._leases.values)
        self._in_force: Mapping[str, float] = self._start
        self._shown = Shown()
        self._now = EngineNow()
        self._figures_ns = self._look_ns = 0
        self._heard_ns = time.monotonic_ns()
        self._left_alone_until_ns: int | None = None
        self._on_knobs: Callable[[], None] = _ignore
        self.wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        """Readable when there is something for `work` to do before its time."""

    def on_knobs(self, told: Callable[[], None]) -> None:
        """Have `told` called whenever `work` changed a knob; it may not block."""
        self._on_knobs = told

    def with_leases(self, act: Callable[[Leases], dict[str, Any]]) -> dict[str, Any]:
        """Run `act` on the leases and return what it returns, with their state added."""
        with self._lock:
            self._leases.expire(time.monotonic_ns())
            try:
                fields = act(self._leases)
            finally:
                self._have_work()
                self._publish()
            return {**fields, **self._leases.state(time.monotonic_ns())}

    def now(self) -> EngineNow:
        """What the stats page shows."""
        with self._lock:
            self._publish()
            return self._now

    def next_deadline_ns(self) -> int | None:
        """When a lease or a prepared change next runs out."""
        with self._lock:
            return self._leases.deadline_ns()

    def expire(self) -> int:
        """End overdue leases; returns the knob version."""
        with self._lock:
            if self._leases.expire(time.monotonic_ns()):
                log.warning("the lease ran out: every knob goes back to its start value")
                self._have_work()
                self._publish()
            return self._leases.version

    def work(self) -> float:
        """Do what is due with the engine; returns in how many seconds to come back, or on `wake`.

        `EngineChangedError` if it is another instance by now or has other start values,
        `AdapterError` if it can't be reached, or can't be brought back to its start values.
        """
        _drain(self.wake)
        self.expire()
        self._apply()
        if time.monotonic_ns() >= self._look_ns:
            self._look_ns = self._patiently(self._look, LOOK_NS)
        if time.monotonic_ns() >= self._figures_ns:
            self._figures_ns = self._patiently(self._show, FASTEST_NS)
        due_ns = [self._look_ns, self._figures_ns]
        deadline_ns = self.next_deadline_ns()
        if deadline_ns is not None:
            due_ns.append(deadline_ns)
        return max(0, min(due_ns) - time.monotonic_ns()) / 1e9

    def stop(self) -> None:
        """Bring the engine back to its start values; `AdapterError` if that can't be done."""
        if self._record.wanted is None and not foreign(self._record.values, self._start):
            return
        found = self._driver.read()
        others = foreign(found, self._in_force)
        put(self._driver, self._start | {name: found[name] for name in others})
        self._undo.clear()

    def close(self) -> None:
        """Let go of what `work` is woken by."""
        os.close(self.wake)

    def _apply(self) -> None:
        """Make the change that is pending, if one is."""
        with self._lock:
            if not self._leases.pending:
                return
            pending, epoch = self._leases.begin()
            wanted = dict(pending)
        found = self._driver.read()
        others = foreign(found, self._in_force)
        if others:
            self._yield(found, others)
            return
        is_end = not foreign(wanted, self._start)
        try:
            self._note(wanted)
            put(self._driver, wanted)
        except (AdapterError, UndoError) as error:
            if is_end and isinstance(error, AdapterError):
                raise AdapterError(f"could not write the start values back: {error}") from error
            if not is_end:
                self._failed(wanted, error)
                return
            # with no room for a note the start values are written all the same
            put(self._driver, wanted)
        self._is_in_force(wanted)
        with self._lock:
            self._leases.done(wanted, epoch)
            self._have_work()
            self._publish()
        self._on_knobs()

    def _failed(self, tried: Mapping[str, float], error: Exception) -> None:
        """Put back what was; if not even that can be done, the engine is lost."""
        put(self._driver, self._in_force)
        self._is_in_force(self._in_force)
        names = ", ".join(f"{name} {tried[name]:g}" for name in foreign(tried, self._in_force))
        why = (
            f"{names} could not be set, and is not tried again for {FAILED_NS // 10**9} s: {error}"
        )
        log.warning("%s", why)
        with self._lock:
            until_ns = time.monotonic_ns() + FAILED_NS
            self._leases.fail(tried, self._in_force, why, until_ns)
            self._have_work()
            self._publish()
        self._on_knobs()

    def _note(self, wanted: Mapping[str, float]) -> None:
        """Write down what is about to be written."""
        self._record = replace(self._record, wanted=wanted)
        self._undo.save(self._record)

    def _is_in_force(self, values: Mapping[str, float], ours: bool = True) -> None:
        """The engine has `values`; what is left to undo is that, if they are `ours`."""
        self._in_force = values
        left = values if ours else self._start
        self._record = replace(self._record, values=left, wanted=None)
        with _told():  # what stands there already allows for these values
            if foreign(left, self._start):
                self._undo.save(self._record)
            else:
                self._undo.clear()

    def _look(self) -> None:
        """See whether it is still the same engine, and whether its values are ours."""
        identity = self._driver.identify()
        if identity.instance != self._identity.instance:
            raise EngineChangedError(f"{identity.engine} restarted")
        found = self._driver.read()
        others = foreign(found, self._in_force)
        if others:
            self._yield(found, others)
        until_ns = self._left_alone_until_ns
        if until_ns is None or time.monotonic_ns() < until_ns or foreign(found, self._start):
            return
        log.info("every knob is at its start value again: leases are granted")
        self._left_alone_until_ns = None
        with self._lock:
            self._leases.reclaim()
            self._publish()
        self._on_knobs()

    def _yield(self, found: Mapping[str, float], others: list[str]) -> None:
        """Leave `others` as somebody else set them, and give the rest back.

        Without a lease they are new start values. Under one they are his who set them, as if he
        held a lease, for `LEFT_ALONE_NS` and until they are at the start values again.
        """
        names = ", ".join(
            f"{name} is {found[name]:g}, not {self._in_force[name]:g}" for name in others
        )
        why = f"{names}: changed by other means than a lease"
        if self._left_alone_until_ns is None and not foreign(self._in_force, self._start):
            raise EngineChangedError(f"{why}; these are its start values now")
        if self._left_alone_until_ns is None:
            log.warning("%s; they are left alone", why)
        self._left_alone_until_ns = time.monotonic_ns() + LEFT_ALONE_NS
        ours = [name for name in foreign(self._record.values, self._start) if name not in others]
        target = dict(found) | {name: self._start[name] for name in ours}
        self._are_his(why, found)
        # what is his is not ours to undo any more
        start = {name: value for name, value in self._start.items() if name not in others}
        with _told():
            self._undo.save(replace(self._record, start=start, wanted=start))
        put(self._driver, target)
        self._is_in_force(target, ours=False)
        self._are_his(why, target)

    def _are_his(self, why: str, values: Mapping[str, float]) -> None:
        """Nobody has a lease; `values` are in force."""
        with self._lock:
            self._leases.yield_to(why, values)
            self._publish()
        self._on_knobs()

    def _show(self) -> None:
        """Ask the engine for its figures and show them."""
        figures = self._driver.figures()
        with self._lock:
            # before the page counts them: a reader looks for no more steps than it counts
            if self._page is not None:
                for step in figures.ended:
                    self._page.write(self._now, step)
            self._now = self._shown.take(self._now, figures, time.monotonic_ns())
            self._publish()

    def _publish(self) -> None:
        """Show knobs and lease as they are; needs the lock."""
        values = self._leases.values
        self._now = replace(
            self._now,
            updated_ns=time.monotonic_ns(),
            epoch=self._leases.applied_epoch,
            max_running=int(values.get("max_running", 0)),
            max_batched_tokens=int(values.get("max_batched_tokens", self._now.max_batched_tokens)),
            lease_expiries_total=self._leases.expiries,
        )
        if self._page is not None:
            self._page.write(self._now)

    def _have_work(self) -> None:
        """Wake the worker if there is something to write; needs the lock."""
        if self._leases.pending:
            os.eventfd_write(self.wake, 1)

    def _patiently(self, act: Callable[[], None], fastest_ns: int) -> int:
        """Do `act`, which may fail for a while; returns when to do it next, by what it took."""
        began_ns = time.monotonic_ns()
        try:
            act()
        except AdapterError:
            if time.monotonic_ns() - self._heard_ns > PATIENCE_NS:
                raise
        else:
            self._heard_ns = time.monotonic_ns()
        took_ns = time.monotonic_ns() - began_ns
        return began_ns + min(SLOWEST_NS, max(fastest_ns, SHARE * took_ns))


def _drain(wake: int) -> None:
    with suppress(BlockingIOError):
        os.eventfd_read(wake)


@contextmanager
def _told() -> Iterator[None]:
    """An undo file that can't be written is told of, and no reason to leave the engine as it is."""
    try:
        yield
    except UndoError as error:
        log.warning("%s", error)


def _ignore() -> None:
    """Before `on_knobs` nobody listens."""
