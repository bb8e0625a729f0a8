"""Checks of `watch` and its events."""

import time
from collections.abc import Callable
from typing import Any, Final

from controller.conformance.check import BreachError, check
from controller.conformance.probe import Probe
from controller.conformance.wire import Answer, Wire, shown
from controller.engines.contract import encode

PERIOD_MS: Final = 20
EVENTS: Final = 5

Event = dict[str, Any]


@check(
    "calls",
    "After `watch`, a `knobs` event with the state follows each change of a value, of what is"
    " pending, of the epoch, the lease or the prepared change",
)
def watch_changes(probe: Probe) -> None:
    """A watcher hears of every change, and of the end of a lease that nobody asked for."""
    wire = _watch(probe, "w")
    epoch = probe.set(probe.small).ok()["epoch"]
    _heard(wire, lambda event: event.wanted.items() >= probe.small.items(), "the new value")
    probe.set({}, epoch=epoch + 1, lease_ms=probe.short_lease_ms).ok()
    _heard(wire, lambda event: event["epoch"] == epoch + 1, "the new epoch")
    _heard(wire, lambda event: event["owner"] is None, "the end of the lease").wants(probe.start)


@check("calls", "of the epoch, the lease or the prepared change")
def watch_promises(probe: Probe) -> None:
    """A watcher hears of a promise, and of its end."""
    wire = _watch(probe, "w")
    epoch = probe.prepare(probe.small).ok()["epoch"]
    _heard(wire, lambda event: event["prepared_epoch"] == epoch, "the prepared epoch")
    probe.ask("abort", owner=probe.owner, epoch=epoch).ok()
    _heard(wire, lambda event: event["prepared_epoch"] is None, "none prepared")


@check(
    "wire", "An event has `event` (`knobs` or `stats`), the `id` of the `watch` that asked for it"
)
def event_fields(probe: Probe) -> None:
    """An event says what it is and who asked for it, and is no response."""
    wire = _watch(probe, "w")
    probe.set({}).ok()
    event = _heard(wire, lambda _: True, "the change")
    event.shows(event="knobs", id="w")
    event.require("ok" not in event.fields, "no ok in an event")


@check("calls", "With `period_ms` a `stats` event follows at once and then every period.")
def watch_period(probe: Probe) -> None:
    """Figures come at once and then every period."""
    began = time.monotonic()
    wire = _watch(probe, "s", period_ms=PERIOD_MS)
    times: list[int] = []
    while len(times) < EVENTS:
        event = wire.event()
        if event is None:
            raise BreachError(f"{EVENTS} stats events", f"{len(times)}, and no more", "(watch)")
        if event.get("event") == "stats":
            times.append(Answer("(watch)", event)["now"].get("updated_ns", 0))
    lasted_ms = 1000 * (time.monotonic() - began)
    if times != sorted(times):
        raise BreachError("updated_ns that does not fall", shown(str(times)), "(watch)")
    if lasted_ms < PERIOD_MS * (EVENTS - 2):
        raise BreachError(
            f"an event every {PERIOD_MS} ms", f"{EVENTS} in {lasted_ms:.1f} ms", "(watch)"
        )


@check("calls", "`period_ms`: 5 to 60,000, or absent")
def period_range(probe: Probe) -> None:
    """A period is 5 ms to a minute."""
    for period_ms in (4, 0, -1, 60_001):
        probe.ask("watch", period_ms=period_ms).refused("out_of_range")
    probe.ask("watch", period_ms="20").refused("bad_request")
    probe.ask("watch", period_ms=60_000).ok().shows(period_ms=60_000)
    probe.ask("watch").ok().shows(period_ms=None)


@check("calls", "A second `watch` on a connection replaces the first.")
def watch_replaced(probe: Probe) -> None:
    """A second watch replaces the first."""
    wire = _watch(probe, "first", period_ms=PERIOD_MS)
    wire.send(encode({"id": "second", "call": "watch"}))
    wire.answer("second").ok()
    wire.events.clear()
    time.sleep(3 * PERIOD_MS / 1000)
    probe.set({}).ok()
    _heard(wire, lambda _: True, "the change").shows(event="knobs", id="second")
    probe.release().ok()
    _heard(wire, lambda event: event["owner"] is None, "the end of the lease").shows(id="second")


def _watch(probe: Probe, id_: str, **fields: int) -> Wire:
    wire = probe.connect()
    wire.send(encode({"id": id_, "call": "watch", **fields}))
    wire.answer(id_).ok()
    return wire


def _heard(wire: Wire, meant: Callable[[Answer], bool], what: str) -> Answer:
    """The first event that is meant; `BreachError` if it does not come."""
    ends = time.monotonic() + wire.patience_s
    last = "none"
    while (left_s := ends - time.monotonic()) > 0:
        event = wire.event(left_s)
        if event is None:
            break
        answer = Answer("(watch)", event)
        if meant(answer):
            return answer
        last = shown(str(event))
    raise BreachError(
        f"an event with {what} within {wire.patience_s:g} s", f"the last was {last}", "(watch)"
    )


CHECKS: Final = (
    watch_changes,
    watch_promises,
    event_fields,
    watch_period,
    period_range,
    watch_replaced,
)
