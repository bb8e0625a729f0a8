"""Checks of `set`: ranges, all or nothing, pending and applied."""

import time
from typing import Final

from controller.conformance.check import check
from controller.conformance.framing import unchanged
from controller.conformance.nudge import outside
from controller.conformance.probe import Probe

BRIEF_MS: Final = 50
"""A lease for what must be refused: should it be taken, it does not last."""


@check("rules", "A knob leaves its start value only under a lease. `set` takes one for `lease_ms`")
def set_takes_a_lease(probe: Probe) -> None:
    """Set takes a lease, and what it names changes."""
    answer = probe.set(probe.small).ok()
    answer.wants({**probe.start, **probe.small}).shows(owner=probe.owner)
    left = answer["lease_ms_left"]
    answer.require(0 < left <= probe.hello.max_lease_ms, "lease_ms_left within the lease")
    probe.get().wants(probe.small).shows(owner=probe.owner, epoch=answer["epoch"])


@check("rules", "A change is taken at once and in force from the top of the next step.")
def change_is_applied(probe: Probe) -> str:
    """A change leaves pending and is in force under its epoch."""
    began = time.monotonic()
    answer = probe.set(probe.small).ok()
    epoch = answer["epoch"]
    settled = probe.settled()
    for name, value in probe.small.items():
        settled.require(settled["values"].get(name) == value, f"{name} to be {value:g}")
    settled.shows(applied_epoch=epoch, state="applied")
    return f"in force after {1000 * (time.monotonic() - began):.1f} ms"


@check("knobs", "`step` (a change is in force at the next step) or `reload`")
def every_knob(probe: Probe) -> str:
    """Every knob that has room takes another value, and goes back."""
    for name, value in probe.changes.items():
        answer = probe.set({name: value}, lease_ms=probe.hello.max_lease_ms).ok()
        answer.wants({**probe.start, name: value})
        settled = probe.settled()
        settled.require(settled["values"].get(name) == value, f"{name} to be {value:g}")
        probe.release().ok().wants(probe.start)
        probe.settled().wants(probe.start)
    return ", ".join(probe.changes)


@check("rules", "Knobs that `values` does not name stay as they are within the lease")
def others_stay(probe: Probe) -> None:
    """Knobs that a set does not name stay as they are."""
    changed = dict(probe.small)
    probe.set(changed).ok().wants(changed)
    for name, value in probe.changes.items():
        if name not in changed and probe.hello.knobs[name].cost == "step":
            changed[name] = value
            probe.set({name: value}).ok().wants({**probe.start, **changed})
            break
    probe.set({}).ok().wants(changed)
    probe.set().ok().wants(changed)


@check("rules", "`set` is all or nothing.")
def all_or_nothing(probe: Probe) -> None:
    """A set with one bad value changes nothing, in a lease and without."""
    before = probe.get()
    for bad in _bad_values(probe):
        refused = probe.set({**probe.small, **bad}, lease_ms=BRIEF_MS)
        refused.refused("out_of_range", "unknown_knob")
        unchanged(before, probe.get())
    held = probe.set(probe.small).ok()
    for bad in _bad_values(probe):
        probe.set({**probe.smaller, **bad}).refused("out_of_range", "unknown_knob")
        unchanged(held, probe.get())


def _bad_values(probe: Probe) -> tuple[dict[str, float], ...]:
    """Each after the good ones, and of another knob, so that half of a `set` could be done."""
    others = [knob for name, knob in probe.hello.knobs.items() if name not in probe.small]
    bad: tuple[dict[str, float], ...] = ({"no_such_knob": 1},)
    return (*bad, *({knob.name: knob.maximum + 1} for knob in others[-1:]))


@check("errors", "the engine does not offer this knob")
def unknown_knob(probe: Probe) -> None:
    """A knob that the engine does not offer is refused and named."""
    before = probe.get()
    answer = probe.set({"no_such_knob": 1}, lease_ms=BRIEF_MS).refused("unknown_knob")
    answer.require(answer["error"].get("knob") == "no_such_knob", "knob to name the one to blame")
    unchanged(before, probe.get())


@check("errors", "a knob's value, `lease_ms`, `term_ms` or `period_ms` is outside its range")
def out_of_range(probe: Probe) -> None:
    """A value next to a knob's range is refused, and the knob named."""
    before = probe.get()
    for name, knob in probe.hello.knobs.items():
        for value in outside(knob):
            answer = probe.set({name: value}, lease_ms=BRIEF_MS).refused("out_of_range")
            answer.require(answer["error"].get("knob") == name, f"knob to be {name}")
    unchanged(before, probe.get())


@check("knobs", "Every unit but `ratio` takes whole numbers.")
def whole_numbers(probe: Probe) -> None:
    """Half a request is refused."""
    before = probe.get()
    for name, knob in probe.hello.knobs.items():
        if knob.unit != "ratio" and knob.maximum > knob.minimum:
            half = knob.minimum + (0.5 if knob.start != knob.minimum + 0.5 else 0.25)
            probe.set({name: half}, lease_ms=BRIEF_MS).refused("bad_request")
    unchanged(before, probe.get())


@check("calls", "`lease_ms` and `term_ms` are whole numbers from 1 to the engine's `max_lease_ms`.")
def lease_range(probe: Probe) -> None:
    """A lease is 1 ms to the engine's longest, no less and no more."""
    before = probe.get()
    for lease_ms in (0, -1, probe.hello.max_lease_ms + 1):
        probe.set(lease_ms=lease_ms).refused("out_of_range")
    unchanged(before, probe.get())
    probe.set(lease_ms=probe.hello.max_lease_ms).ok()


CHECKS: Final = (
    set_takes_a_lease, change_is_applied, every_knob, others_stay, all_or_nothing, unknown_knob,
    out_of_range, whole_numbers, lease_range,
)  # fmt: skip
