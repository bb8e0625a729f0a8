"""Checks of leases: renewal, the two ways they end, epochs, and who may write."""

import time
from collections.abc import Callable
from typing import Final

from controller.conformance.check import BreachError, NotApplicableError, check
from controller.conformance.framing import unchanged
from controller.conformance.probe import POLL_S, Probe, look
from controller.conformance.wire import Answer

LATE_MS: Final = 20
"""By how much an engine without steps may end a lease late."""

OWN_LATE_MS: Final = 5
"""If this process itself is so late, a try says nothing about the engine."""

PUNCTUAL: Final = 3
TRIES: Final = 9
"""So many of so many leases have to end in time: the rest is the machine's noise."""

_TICK_S: Final = 0.001


@check("rules", "or renews it if `owner` holds it already")
def renewal(probe: Probe) -> None:
    """A renewal without values keeps them beyond the first deadline."""
    lease_ms = probe.short_lease_ms
    for _ in range(3):
        began = time.monotonic()
        probe.set(probe.small, lease_ms=lease_ms).ok()
        renewed = probe.set({}).ok()
        if time.monotonic() - began < lease_ms / 1000:  # else it may have ended between
            renewed.wants(probe.small)
            time.sleep(max(0.0, began + (lease_ms + 100) / 1000 - time.monotonic()))
            probe.get().wants(probe.small).shows(owner=probe.owner, epoch=renewed["epoch"])
            return
        probe.release().ok()
    raise NotApplicableError(f"this machine is too busy: two calls took longer than {lease_ms} ms")


@check("timing", "A lease ends no earlier than its deadline.")
def not_too_early(probe: Probe) -> None:
    """Until its deadline a lease lasts, and its values with it."""
    lease_ms = probe.short_lease_ms
    began = time.monotonic()
    epoch = probe.set(probe.small, lease_ms=lease_ms).ok()["epoch"]
    while True:
        answer = probe.get()
        if time.monotonic() - began >= lease_ms / 1000:
            return
        answer.shows(owner=probe.owner, epoch=epoch).wants(probe.small)
        time.sleep(POLL_S)


@check(
    "rules",
    "When the deadline passes, or at `release`, all knobs go back to their start values at once,"
    " whatever was pending is dropped, and `owner` is `null`.",
)
def expiry(probe: Probe) -> None:
    """When the deadline passes all knobs go back."""
    epoch = probe.set(probe.small, lease_ms=probe.short_lease_ms).ok()["epoch"]
    time.sleep(probe.short_lease_ms / 1000)
    probe.until(lambda: probe.get()["owner"] is None, probe.step_s, "the lease to end")
    gone_back(probe, probe.get().shows(epoch=epoch))


def gone_back(probe: Probe, answer: Answer) -> None:
    """`BreachError` unless a lease has ended in this answer; the values may still be on the way."""
    answer.shows(owner=None, applied_epoch=0, lease_ms_left=0).wants(probe.start)
    probe.until(
        lambda: not probe.get()["pending"],
        probe.patience_s(answer["pending"]),
        "the start values in force",
    )
    probe.get().wants(probe.start)


@check(
    "rules", "This must happen on an engine that computes no steps too, and the page must show it."
)
def expiry_unasked(probe: Probe) -> None:
    """A lease ends without anyone asking, and the page shows it."""
    page = probe.page()
    before = look(page)
    probe.set(probe.small, lease_ms=probe.short_lease_ms).ok()
    time.sleep(probe.short_lease_ms / 1000)
    probe.until(
        lambda: look(page).lease_expiries_total == before.lease_expiries_total + 1,
        probe.step_s,
        "lease_expiries_total one higher on the page",
    )
    probe.until(
        lambda: (
            (now := look(page)).epoch == 0
            and all(getattr(now, name) == probe.start[name] for name in _on_page(probe))
        ),
        probe.patience_s(probe.small),
        "the start values and epoch 0 on the page",
    )


def _on_page(probe: Probe) -> list[str]:
    return [name for name in ("max_running", "max_batched_tokens") if name in probe.hello.knobs]


@check("timing", "on an engine without steps, within 20 ms")
def punctual_end(probe: Probe) -> str:
    """A lease ends within 20 ms of its deadline, or at the next step."""
    page = probe.page()
    lates: list[float] = []
    for _ in range(TRIES):
        late_ms = _late_ms(probe, page_expiries=lambda: look(page).lease_expiries_total)
        if late_ms is None:
            continue
        steps = look(page).steps
        lates.append(late_ms)
        on_time = [late for late in lates if late <= LATE_MS]
        if len(on_time) >= PUNCTUAL:
            return f"{min(lates):.1f} to {max(lates):.1f} ms after its deadline"
        time.sleep(0.05)
        if look(page).steps > steps:
            raise NotApplicableError("the engine computes steps, which may be longer than 20 ms")
    if len(lates) < PUNCTUAL:
        raise NotApplicableError("this machine is too busy to measure 20 ms")
    shown = ", ".join(f"{late:.0f}" for late in lates)
    raise BreachError(
        f"{PUNCTUAL} leases of {TRIES} to end within {LATE_MS} ms", f"{shown} ms late"
    )


def _late_ms(probe: Probe, page_expiries: Callable[[], int]) -> float | None:
    """How late a lease without values ended, by the page; None if this process was late itself."""
    before = page_expiries()
    lease_ms = min(100, probe.hello.max_lease_ms)
    epoch = probe.next_epoch()
    sent = time.monotonic()
    probe.set({}, epoch=epoch, lease_ms=lease_ms).ok()
    taken = time.monotonic()
    due = taken + lease_ms / 1000
    last = taken
    worst_s = taken - sent
    while page_expiries() == before:
        time.sleep(_TICK_S)
        now = time.monotonic()
        worst_s, last = max(worst_s, now - last - _TICK_S), now
        if now > due + probe.step_s:
            raise BreachError(
                "the lease to end", f"it had not {probe.step_s:g} s after its deadline"
            )
    late_ms = 1000 * (time.monotonic() - due)
    return max(0.0, late_ms) if 1000 * worst_s <= OWN_LATE_MS or late_ms <= LATE_MS else None


@check("calls", "`released` (false if there was nothing to release), state")
def release(probe: Probe) -> None:
    """Release ends the lease at once; a second one has nothing to release."""
    probe.set(probe.small).ok()
    answer = probe.release().ok().shows(released=True)
    gone_back(probe, answer)
    probe.release().ok().shows(released=False)


@check("wire", "Closing the connection does not end a lease.")
def close_keeps_lease(probe: Probe) -> None:
    """A lease outlives its connection, and its owner goes on over another."""
    wire = probe.connect()
    epoch = probe.next_epoch()
    lease_ms = min(3000, probe.hello.max_lease_ms)
    wire.ask(
        "set", owner=probe.owner, epoch=epoch, lease_ms=lease_ms, values=dict(probe.small)
    ).ok()
    wire.close()
    time.sleep(0.05)
    probe.get().shows(owner=probe.owner, epoch=epoch).wants(probe.small)
    probe.set(epoch=epoch + 1).ok().wants(probe.small)


@check("rules", "the first `set` of a lease begins from the start values")
def begins_at_start(probe: Probe) -> None:
    """A lease begins from the start values, whatever the one before had."""
    probe.set(probe.small).ok()
    probe.release().ok()
    probe.set({}).ok().wants(probe.start)
    probe.set(probe.small, lease_ms=1).ok()
    probe.until(lambda: probe.get()["owner"] is None, probe.step_s, "the lease to end")
    probe.set({}).ok().wants(probe.start)


@check("rules", "or it is refused as `stale_epoch`; that answer has the last one taken in `epoch`")
def stale_epoch(probe: Probe) -> None:
    """An epoch out of order is refused, with the last one taken."""
    held = probe.set(probe.small).ok()
    epoch = held["epoch"]
    for stale in (epoch, epoch - 1, 1):
        if stale >= 1:
            refused = probe.set(probe.smaller, epoch=stale).refused("stale_epoch")
            refused.shows(epoch=epoch)
    unchanged(held, probe.get())
    probe.set(epoch=epoch + 5).ok().shows(epoch=epoch + 5)
    probe.set(epoch=epoch + 3).refused("stale_epoch").shows(epoch=epoch + 5)


@check("rules", "an epoch above every one the engine has taken before, from any owner")
def epochs_outlive_leases(probe: Probe) -> None:
    """Epochs go on after a lease has ended, for every owner."""
    epoch = probe.set({}).ok()["epoch"]
    probe.release().ok().shows(epoch=epoch)
    for owner in (probe.owner, probe.other):
        answer = probe.set(probe.small, epoch=epoch, owner=owner, lease_ms=50)
        answer.refused("stale_epoch").shows(epoch=epoch)
    probe.get().shows(owner=None, epoch=epoch)
    probe.set({}, epoch=epoch + 1, owner=probe.other).ok().shows(owner=probe.other)


@check("calls", "`epoch` is a whole number from 1 to 2⁵³ − 1.")
def lowest_epoch(probe: Probe) -> None:
    """Epoch 0 and below are refused."""
    before = probe.get()
    for epoch in (0, -1):
        probe.set({}, epoch=epoch, lease_ms=1).refused("stale_epoch", "bad_request", "out_of_range")
    unchanged(before, probe.get())


@check(
    "rules",
    "While it lasts, `set`, `prepare`, `commit`, `abort` and `release` of another owner are refused"
    " as `held`.",
)
def held(probe: Probe) -> None:
    """While one holds the lease another is refused everything."""
    mine = probe.set(probe.small).ok()
    wire = probe.connect()
    given = {"owner": probe.other, "epoch": mine["epoch"] + 1}
    seconds = {"lease_ms": 50, "term_ms": 50}
    wire.ask("set", **given, lease_ms=50, values=dict(probe.smaller)).refused("held")
    wire.ask("set", **given, lease_ms=50).refused("held")
    wire.ask("release", owner=probe.other).refused("held")
    for call, fields in (("prepare", {**seconds, "values": {}}), ("commit", {}), ("abort", {})):
        wire.ask(call, **given, **fields).refused("held", "unknown_call")
    unchanged(mine, probe.get())


CHECKS: Final = (
    renewal, not_too_early, expiry, expiry_unasked, punctual_end, release, close_keeps_lease,
    begins_at_start, stale_epoch, epochs_outlive_leases, lowest_epoch, held,
)  # fmt: skip
