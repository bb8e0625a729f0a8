"""Checks of changes that span engines: prepare, commit, abort."""

import time
from typing import Final

from controller.conformance.check import BreachError, check
from controller.conformance.framing import unchanged
from controller.conformance.probe import Probe
from controller.conformance.wire import Answer

TERM_MS: Final = 150


@check("rules", "`prepare` checks a change, promises it and changes nothing.")
def prepare(probe: Probe) -> None:
    """Prepare promises a change and changes nothing."""
    before = probe.get()
    epoch = probe.next_epoch()
    answer = probe.prepare(probe.small, epoch=epoch).ok()
    answer.shows(prepared_epoch=epoch, epoch=epoch, owner=None, applied_epoch=0)
    answer.wants(before.wanted)


@check("rules", "it can't fail for any other reason than `not_prepared`")
def prepare_is_checked(probe: Probe) -> None:
    """Prepare refuses what a commit could not do."""
    before = probe.get()
    for name, knob in probe.hello.knobs.items():
        probe.prepare({name: knob.maximum + 1}).refused("out_of_range")
    probe.prepare({"no_such_knob": 1}).refused("unknown_knob")
    probe.prepare({}, epoch=before["epoch"]).refused("stale_epoch").shows(epoch=before["epoch"])
    for field in ("lease_ms", "term_ms"):
        for length_ms in (0, probe.hello.max_lease_ms + 1):
            probe.prepare({}, **{field: length_ms}).refused("out_of_range")
    unchanged(before, probe.get())


@check(
    "rules",
    "`commit` with the same epoch makes the change and takes or renews the lease for the prepared"
    " `lease_ms`, from now",
)
def commit(probe: Probe) -> None:
    """Commit makes the change under a lease that begins with it."""
    lease_ms = min(3000, probe.hello.max_lease_ms)
    epoch = probe.prepare(probe.small, lease_ms=lease_ms).ok()["epoch"]
    time.sleep(0.1)
    sent = time.monotonic()
    answer = _commit(probe, epoch).ok()
    took_ms = 1000 * (time.monotonic() - sent)
    answer.wants(probe.small).shows(owner=probe.owner, epoch=epoch, prepared_epoch=None)
    left = answer["lease_ms_left"]
    answer.require(
        lease_ms - took_ms - 1 <= left <= lease_ms, f"lease_ms_left close to {lease_ms}, from now"
    )
    probe.settled().wants(probe.small).shows(applied_epoch=epoch)


@check("rules", "A `commit` repeated while its lease lasts answers `ok` and does nothing")
def commit_repeated(probe: Probe) -> None:
    """A commit repeated is no error and changes nothing."""
    epoch = probe.prepare(probe.small).ok()["epoch"]
    _commit(probe, epoch).ok()
    later = probe.set({}).ok()
    again = _commit(probe, epoch).ok()
    unchanged(later, again)


@check("errors", "nothing is prepared under this epoch, or it has lapsed")
def commit_of_nothing(probe: Probe) -> None:
    """A commit of what is not prepared is refused."""
    before = probe.get()
    epoch = probe.prepare(probe.small).ok()["epoch"]
    _commit(probe, epoch + 1).refused("not_prepared")
    probe.ask("abort", owner=probe.owner, epoch=epoch).ok()
    _commit(probe, epoch).refused("not_prepared")
    probe.get().wants(before.wanted).shows(owner=None)


@check("rules", "an `abort` of nothing is no error")
def abort(probe: Probe) -> None:
    """Abort drops what is prepared, and may be repeated."""
    epoch = probe.prepare(probe.small).ok()["epoch"]
    answer = probe.ask("abort", owner=probe.owner, epoch=epoch).ok()
    answer.shows(aborted=True, prepared_epoch=None, owner=None).wants(probe.start)
    probe.ask("abort", owner=probe.owner, epoch=epoch).ok().shows(aborted=False)
    probe.set({}, owner=probe.other).ok()


@check("rules", "The promise stands for `term_ms`; meanwhile no other owner may write.")
def promise_holds_others(probe: Probe) -> None:
    """While a change is prepared another owner is refused."""
    promised = probe.prepare(probe.small).ok()
    wire = probe.connect()
    given = {"owner": probe.other, "epoch": promised["epoch"] + 1}
    wire.ask("set", **given, lease_ms=50, values={}).refused("held")
    wire.ask("commit", owner=probe.other, epoch=promised["epoch"]).refused("held")
    wire.ask("release", owner=probe.other).refused("held")
    unchanged(promised, probe.get())


@check("rules", "The promise stands for `term_ms`")
def promise_lapses(probe: Probe) -> None:
    """A promise lapses after its term, and others may write again."""
    epoch = probe.prepare(probe.small, term_ms=min(TERM_MS, probe.hello.max_lease_ms)).ok()["epoch"]
    time.sleep(TERM_MS / 1000)
    probe.until(lambda: probe.get()["prepared_epoch"] is None, probe.step_s, "the promise to lapse")
    _commit(probe, epoch).refused("not_prepared")
    probe.get().shows(owner=None, epoch=epoch).wants(probe.start)
    probe.set({}, owner=probe.other).ok()


@check(
    "rules",
    "One change is prepared at a time: a later `prepare`, or a later `set` with values, by the same"
    " owner replaces it",
)
def later_replaces(probe: Probe) -> None:
    """A later prepare, and a later set with values, replace what is prepared."""
    first = probe.prepare(probe.small).ok()["epoch"]
    second = probe.prepare(probe.smaller).ok()["epoch"]
    _commit(probe, first).refused("not_prepared")
    _commit(probe, second).ok().wants(probe.smaller)
    third = probe.prepare(probe.smaller).ok()["epoch"]
    probe.set(probe.small).ok().shows(prepared_epoch=None)
    _commit(probe, third).refused("not_prepared")
    probe.get().wants(probe.small)


@check("rules", "a renewal without values leaves it, and the end of the lease does too")
def promise_outlives_lease(probe: Probe) -> None:
    """A renewal leaves what is prepared, and so does the end of the lease."""
    probe.set({}).ok()
    epoch = probe.prepare(probe.small).ok()["epoch"]
    probe.set({}, lease_ms=1).ok().shows(prepared_epoch=epoch)
    probe.until(lambda: probe.get()["owner"] is None, probe.step_s, "the lease to end")
    answer = probe.get()
    if answer["prepared_epoch"] != epoch:
        raise BreachError(
            "the promise to stand", f"prepared_epoch {answer['prepared_epoch']}", "(get)"
        )
    _commit(probe, epoch).ok().wants(probe.small).shows(owner=probe.owner)


@check("rules", "`release` also drops what its owner has prepared.")
def release_drops_promise(probe: Probe) -> None:
    """Release drops what is prepared."""
    epoch = probe.prepare(probe.small).ok()["epoch"]
    probe.release().ok().shows(released=True, prepared_epoch=None)
    _commit(probe, epoch).refused("not_prepared")
    probe.set({}, owner=probe.other).ok()


def _commit(probe: Probe, epoch: int) -> Answer:
    return probe.ask("commit", owner=probe.owner, epoch=epoch)


CHECKS: Final = (
    prepare, prepare_is_checked, commit, commit_repeated, commit_of_nothing, abort,
    promise_holds_others, promise_lapses, later_replaces, promise_outlives_lease,
    release_drops_promise,
)  # fmt: skip
