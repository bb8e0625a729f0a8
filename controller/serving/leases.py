"""Knob values and the lease they are held under, without any IO.

A knob leaves its start value only under a lease; when the lease ends, for whatever reason, every
knob goes back. Every method takes `now_ns` (CLOCK_MONOTONIC) and first ends what has run out, so
that an overdue lease is never seen. `docs/engine-protocol.md` gives the rules.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from controller.engines.contract import ContractError, Knob

MAX_EPOCH: Final = 2**53 - 1
"""The largest whole number every JSON reader keeps exact."""

NS_PER_MS: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Lease:
    """Who holds the knobs, and until when."""

    owner: str
    deadline_ns: int


@dataclass(frozen=True, slots=True)
class Prepared:
    """A change promised but not made: `lease_ms` counts from the commit, the term from now."""

    owner: str
    epoch: int
    values: Mapping[str, float]
    lease_ms: int
    lapse_ns: int


@dataclass(frozen=True, slots=True)
class Failed:
    """A change the engine did not take, and until when it is not tried again."""

    values: Mapping[str, float]
    why: str
    until_ns: int


class Leases:
    """The knobs of one engine.

    `values` are in force; `wanted` are what they become at the top of the next step. `taken_epoch`
    is the last epoch accepted and never falls, `applied_epoch` that of the change in force (0
    without a lease). `version` grows with every change, so that a watcher knows when to look.

    An engine that takes its time (`at_once` is False) calls `begin` before it makes a change and
    `done` or `fail` after it; the end of a lease is then such a change too.
    """

    def __init__(
        self, knobs: Mapping[str, Knob], max_lease_ms: int, *, at_once: bool = True
    ) -> None:
        self._knobs = knobs
        self._max_lease_ms = max_lease_ms
        self._at_once = at_once
        self._changing: frozenset[str] = frozenset()
        self._failed: Failed | None = None
        self._taken_by: str | None = None
        self._start = {name: knob.start for name, knob in knobs.items()}
        self.values: Mapping[str, float] = dict(self._start)
        self.wanted: Mapping[str, float] = self.values
        self.lease: Lease | None = None
        self.prepared: Prepared | None = None
        self.taken_epoch = 0
        self.applied_epoch = 0
        self.expiries = 0
        self.version = 0
        self._wanted_epoch = 0
        self._committed_epoch = 0

    @property
    def pending(self) -> dict[str, float]:
        """What changes at the next step, or is on its way, and to what."""
        return {
            name: to
            for name, to in self.wanted.items()
            if to != self.values[name] or name in self._changing
        }

    def deadline_ns(self) -> int | None:
        """When `expire` next has something to do, if nothing happens before."""
        ends = [self.lease.deadline_ns] if self.lease else []
        if self.prepared:
            ends.append(self.prepared.lapse_ns)
        return min(ends, default=None)

    def state(self, now_ns: int) -> dict[str, Any]:
        """The fields that answers carry, as the contract names them."""
        left_ns = self.lease.deadline_ns - now_ns if self.lease else 0
        failed = self._failure(now_ns)
        return {
            "values": dict(self.values),
            "pending": self.pending,
            "state": "pending" if self.pending else "applied",
            "start": dict(self._start),
            "owner": self.lease.owner if self.lease else self._taken_by,
            "epoch": self.taken_epoch,
            "applied_epoch": self.applied_epoch,
            "prepared_epoch": self.prepared.epoch if self.prepared else None,
            "lease_ms_left": max(0, left_ns // NS_PER_MS),
            **({} if failed is None else {"failed": failed.why}),
        }

    def expire(self, now_ns: int) -> bool:
        """End what has run out; True if the values went back to the start."""
        if self.prepared and now_ns >= self.prepared.lapse_ns:
            self.prepared = None
            self.version += 1
        if self.lease is None or now_ns < self.lease.deadline_ns:
            return False
        self.expiries += 1
        self._revert()
        return True

    def apply(self) -> None:
        """Put what is wanted in force. The engine calls it at the top of a step."""
        if self.values is self.wanted:
            return
        self.values = self.wanted
        self.applied_epoch = self._wanted_epoch
        self.version += 1

    def begin(self) -> tuple[Mapping[str, float], int]:
        """What is wanted and under which epoch; it is pending until `done` or `fail`."""
        self._changing = frozenset(self.pending)
        return self.wanted, self._wanted_epoch

    def done(self, values: Mapping[str, float], epoch: int) -> None:
        """The change that was begun is in force; what was wanted meanwhile is pending.

        Unless it is the same: then that is in force too, under its own epoch.
        """
        self._changing = frozenset()
        self.values = dict(values)
        self.applied_epoch = epoch if self.pending else self._wanted_epoch
        if self.lease is None:
            self.applied_epoch = 0
        self.version += 1

    def fail(
        self, tried: Mapping[str, float], values: Mapping[str, float], why: str, until_ns: int
    ) -> None:
        """The engine did not take `tried`: `values` are in force, as before it.

        Until `until_ns` the same is refused as `failed`, so that nobody tries it at every renewal.
        """
        self._changing = frozenset()
        self._failed = Failed(dict(tried), why, until_ns)
        self.values = dict(values)
        if dict(self.wanted) == dict(tried):
            self.wanted, self._wanted_epoch = self.values, self.applied_epoch
        self.version += 1

    def yield_to(self, who: str, values: Mapping[str, float]) -> None:
        """Somebody changed knobs by other means than a lease: they are his until `reclaim`.

        A lease ends with that, and no other is granted.
        """
        self._drop()
        self._changing, self._taken_by = frozenset(), who
        self.values = self.wanted = dict(values)

    def reclaim(self) -> None:
        """Every knob is at its start value again, and leases are granted."""
        self._taken_by = None
        self.values = self.wanted = self._start
        self.version += 1

    def set(
        self, now_ns: int, owner: str, epoch: int, lease_ms: int, values: Mapping[str, object]
    ) -> None:
        """Take or renew the lease and want `values`; those not named stay as they are wanted.

        All or nothing. New values drop what was prepared, since they are the later decision.
        """
        checked = self._check(now_ns, owner, epoch, lease_ms, values)
        if checked:
            self.prepared = None
        self.taken_epoch = epoch
        self._hold(now_ns, owner, epoch, lease_ms, checked)

    def release(self, now_ns: int, owner: str) -> bool:
        """End the owner's lease at once, and drop what it prepared; False if it had neither."""
        self.expire(now_ns)
        self._refuse_others(owner)
        had = self.lease is not None or self.prepared is not None
        self.prepared = None
        if had:
            self._revert()
        return had

    def end(self) -> None:
        """End the lease, whoever holds it, and drop what is prepared: the engine can't keep it."""
        self.prepared = None
        self._revert()

    def prepare(
        self,
        now_ns: int,
        owner: str,
        epoch: int,
        lease_ms: int,
        values: Mapping[str, object],
        *,
        term_ms: int,
    ) -> None:
        """Promise that a commit of `epoch` within `term_ms` succeeds; nothing changes yet."""
        checked = self._check(now_ns, owner, epoch, lease_ms, values)
        self._check_term("term_ms", term_ms)
        self.taken_epoch = epoch
        self.prepared = Prepared(owner, epoch, checked, lease_ms, now_ns + term_ms * NS_PER_MS)
        self.version += 1

    def commit(self, now_ns: int, owner: str, epoch: int) -> None:
        """Make the prepared change; a second commit of the same epoch changes nothing."""
        self.expire(now_ns)
        self._refuse_others(owner)
        if self.lease is not None and epoch == self._committed_epoch:
            return
        prepared = self.prepared
        if prepared is None or prepared.epoch != epoch:
            raise ContractError("not_prepared", f"nothing is prepared under epoch {epoch}")
        self.prepared = None
        self._committed_epoch = epoch
        self._hold(now_ns, owner, epoch, prepared.lease_ms, prepared.values)

    def abort(self, now_ns: int, owner: str, epoch: int) -> bool:
        """Drop what is prepared under `epoch`; False if there was nothing to drop."""
        self.expire(now_ns)
        self._refuse_others(owner)
        if self.prepared is None or self.prepared.epoch != epoch:
            return False
        self.prepared = None
        self.version += 1
        return True

    def _hold(
        self, now_ns: int, owner: str, epoch: int, lease_ms: int, values: Mapping[str, float]
    ) -> None:
        self.lease = Lease(owner, now_ns + lease_ms * NS_PER_MS)
        if values:
            self.wanted = {**self.wanted, **values}
        # A renewal may come between a prepare and its commit; the epoch in force must not fall.
        self._wanted_epoch = max(self._wanted_epoch, epoch)
        if not self.pending:
            self.values = self.wanted
            self.applied_epoch = self._wanted_epoch
        self.version += 1

    def _revert(self) -> None:
        self._drop()
        self.wanted = self._start
        if self._at_once:
            self.values = self._start

    def _drop(self) -> None:
        self.lease = None
        self.applied_epoch = self._wanted_epoch = self._committed_epoch = 0
        self.version += 1

    def _check(
        self, now_ns: int, owner: str, epoch: int, lease_ms: int, values: Mapping[str, object]
    ) -> dict[str, float]:
        self.expire(now_ns)
        self._refuse_others(owner)
        if not self.taken_epoch < epoch <= MAX_EPOCH:
            raise ContractError(
                "stale_epoch",
                f"epoch must be {self.taken_epoch + 1} to {MAX_EPOCH}, not {epoch}",
            )
        self._check_term("lease_ms", lease_ms)
        for name in values:
            if name not in self._knobs:
                raise ContractError(
                    "unknown_knob", f"this engine offers {', '.join(self._knobs)}", name
                )
        checked = {name: self._knobs[name].check(value) for name, value in values.items()}
        failed = self._failure(now_ns)
        if failed is not None and {**self.wanted, **checked} == failed.values:
            raise ContractError("failed", failed.why)
        return checked

    def _failure(self, now_ns: int) -> Failed | None:
        """What is not to be tried again yet."""
        failed = self._failed
        return failed if failed is not None and now_ns < failed.until_ns else None

    def _check_term(self, field: str, term_ms: int) -> None:
        if not 1 <= term_ms <= self._max_lease_ms:
            raise ContractError(
                "out_of_range", f"{field} must be 1 to {self._max_lease_ms} ms, not {term_ms}"
            )

    def _refuse_others(self, owner: str) -> None:
        if self.lease is not None and self.lease.owner != owner:
            raise ContractError("held", f"the lease is held by {self.lease.owner!r}")
        if self.prepared is not None and self.prepared.owner != owner:
            raise ContractError("held", f"a change is prepared by {self.prepared.owner!r}")
        if self._taken_by is not None:
            raise ContractError("held", self._taken_by)
