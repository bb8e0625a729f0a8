"""The suite can fail: engines with one fault each, and the checks that each of them fails.

A fault that breaks one promise may show in several checks; all of them are named, and no other may
fail.
"""

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from controller.conformance.suite import CHECKS, run
from controller.engines.contract import ContractError, Knob, encode
from controller.engines.page import EngineNow, PageWriter, Step
from controller.serving import server as serving_server
from controller.serving.calls import Calls
from controller.serving.leases import Leases
from controller.serving.server import AdminServer
from tests.unit.controller.conformance.engines import (
    TWO_KNOBS,
    SmallEngine,
    SteppingEngine,
    checked,
    failing,
    serving,
)

MS = 1_000_000
IMPATIENCE = 0.05
"""Of checks that will fail anyway."""

Message = Mapping[str, Any]


class NeverEnds(Leases):
    def expire(self, now_ns: int) -> bool:
        lease, self.lease = self.lease, None
        ended = super().expire(now_ns)
        self.lease = lease
        return ended


class EndsEarly(Leases):
    def set(self, now_ns: int, *args: Any) -> None:
        super().set(now_ns - 100 * MS, *args)


class KeepsItsValues(Leases):
    def _revert(self) -> None:
        values = self.values
        super()._revert()
        self.values = self.wanted = values


class KeepsItsValuesAtExpiry(Leases):
    def expire(self, now_ns: int) -> bool:
        values = self.values
        ended = super().expire(now_ns)
        if ended:
            self.values = self.wanted = values
        return ended


class SetsInPart(Leases):
    def set(
        self, now_ns: int, owner: str, epoch: int, lease_ms: int, values: Mapping[str, object]
    ) -> None:
        try:
            super().set(now_ns, owner, epoch, lease_ms, values)
        except ContractError:
            good = {
                name: value for name, value in values.items() if _holds(self._knobs, name, value)
            }
            if good and len(good) < len(values):
                super().set(now_ns, owner, epoch, lease_ms, good)
            raise


def _holds(knobs: Mapping[str, Knob], name: str, value: object) -> bool:
    try:
        return name in knobs and knobs[name].check(value) is not None
    except ContractError:
        return False


class TakesAnyEpoch(Leases):
    def set(self, now_ns: int, owner: str, epoch: int, *args: Any) -> None:
        if 0 < epoch <= self.taken_epoch:
            self.taken_epoch = epoch - 1
        super().set(now_ns, owner, epoch, *args)


class TakesEpochZero(Leases):
    def set(self, now_ns: int, owner: str, epoch: int, *args: Any) -> None:
        super().set(now_ns, owner, epoch if epoch > 0 else self.taken_epoch + 1, *args)


class CommitsNothing(Leases):
    def commit(self, now_ns: int, owner: str, epoch: int) -> None:
        try:
            super().commit(now_ns, owner, epoch)
        except ContractError as error:
            if error.code != "not_prepared":
                raise


class ForgetsEpochs(Leases):
    def _revert(self) -> None:
        super()._revert()
        self.taken_epoch = 0


class LetsAnyoneWrite(Leases):
    def _refuse_others(self, owner: str) -> None:
        pass


class PromisesNothingAgainstOthers(Leases):
    def _refuse_others(self, owner: str) -> None:
        prepared, self.prepared = self.prepared, None
        try:
            super()._refuse_others(owner)
        finally:
            self.prepared = prepared


class RenewsFromTheStart(Leases):
    def set(self, now_ns: int, *args: Any) -> None:
        super().set(now_ns, *args)
        self.wanted = {**self._start, **args[-1]}


class BeginsWhereItEnded(Leases):
    last: Mapping[str, float] | None = None

    def _hold(self, *args: Any) -> None:
        if self.lease is None and self.last:
            self.wanted = self.last
        super()._hold(*args)
        self.last = self.wanted


class KnowsNoLongestLease(Leases):
    def _check_term(self, field: str, term_ms: int) -> None:
        super()._check_term(field, min(term_ms, self._max_lease_ms))


class PreparesAtOnce(Leases):
    def prepare(self, now_ns: int, *args: Any, term_ms: int) -> None:
        super().prepare(now_ns, *args, term_ms=term_ms)
        self.wanted = {**self.wanted, **args[-1]}


class PreparesAnything(Leases):
    def _check(
        self, now_ns: int, owner: str, epoch: int, lease_ms: int, values: Mapping[str, Any]
    ) -> dict[str, float]:
        if self.preparing:
            values = {
                name: min(value, self._knobs[name].maximum) if name in self._knobs else value
                for name, value in values.items()
            }
        return super()._check(now_ns, owner, epoch, lease_ms, values)

    preparing = False

    def prepare(self, *args: Any, term_ms: int) -> None:
        self.preparing = True
        try:
            super().prepare(*args, term_ms=term_ms)
        finally:
            self.preparing = False


class PromisesForEver(Leases):
    def prepare(self, now_ns: int, *args: Any, term_ms: int) -> None:
        super().prepare(now_ns, *args, term_ms=term_ms + 5000 if term_ms == 150 else term_ms)


class PromisesInSilence(Leases):
    def prepare(self, *args: Any, term_ms: int) -> None:
        super().prepare(*args, term_ms=term_ms)
        self.version -= 1


class CommitsOnce(Leases):
    def commit(self, now_ns: int, owner: str, epoch: int) -> None:
        self._committed_epoch = 0
        super().commit(now_ns, owner, epoch)


class CommitsFromThePrepare(Leases):
    prepared_ns = 0

    def prepare(self, now_ns: int, *args: Any, term_ms: int) -> None:
        self.prepared_ns = now_ns
        super().prepare(now_ns, *args, term_ms=term_ms)

    def commit(self, now_ns: int, owner: str, epoch: int) -> None:
        super().commit(now_ns, owner, epoch)
        if self.lease is not None:
            ends_ns = self.lease.deadline_ns - (now_ns - self.prepared_ns)
            self.lease = replace(self.lease, deadline_ns=ends_ns)


class AbortsWithAnError(Leases):
    def abort(self, now_ns: int, owner: str, epoch: int) -> bool:
        if not super().abort(now_ns, owner, epoch):
            raise ContractError("not_prepared", "there is nothing to abort")
        return True


class PreparesSeveral(Leases):
    def set(self, now_ns: int, *args: Any) -> None:
        prepared = self.prepared
        super().set(now_ns, *args)
        self.prepared = prepared


class DropsPromisesWithTheLease(Leases):
    def _revert(self) -> None:
        super()._revert()
        self.prepared = None


class KeepsPromisesAtRelease(Leases):
    def release(self, now_ns: int, owner: str) -> bool:
        prepared = self.prepared
        released = super().release(now_ns, owner)
        self.prepared = prepared if prepared and prepared.lapse_ns > now_ns else None
        return released


class AlwaysReleases(Leases):
    def release(self, now_ns: int, owner: str) -> bool:
        super().release(now_ns, owner)
        return True


class Clamping(Knob):
    def check(self, value: object) -> float:
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            value = min(max(value, self.minimum), self.maximum)
        return super().check(value)


class Rounding(Knob):
    def check(self, value: object) -> float:
        return super().check(round(value) if isinstance(value, float) else value)


class Lenient(Knob):
    def check(self, value: object) -> float:
        return super().check(int(value) if isinstance(value, str) else value)


class NewAtEachHello(Calls):
    def _greet(self, message: Message) -> dict[str, Any]:
        return {**super()._greet(message), "instance": str(time.monotonic_ns())}


class AnyVersion(Calls):
    def _greet(self, message: Message) -> dict[str, Any]:
        return super()._greet({})


class OddUnit(Calls):
    def _greet(self, message: Message) -> dict[str, Any]:
        answer = super()._greet(message)
        answer["knobs"]["max_running"]["unit"] = "sequences"
        return answer


class FractionLeft(Calls):
    def _answer(self, message: Message) -> dict[str, Any]:
        answer = super()._answer(message)
        if "lease_ms_left" in answer:
            answer["lease_ms_left"] = float(answer["lease_ms_left"])
        return answer


class MicrosecondsLeft(Calls):
    def _answer(self, message: Message) -> dict[str, Any]:
        answer = super()._answer(message)
        if "lease_ms_left" in answer:
            answer["lease_ms_left"] *= 1000
        return answer


class OtherStart(Calls):
    def _answer(self, message: Message) -> dict[str, Any]:
        answer = super()._answer(message)
        if "start" in answer:
            answer["start"]["max_running"] = 63
        return answer


class StaleWithoutEpoch(Calls):
    def _epoch(self, error: ContractError) -> dict[str, Any]:
        return {}


class NamesNoKnob(Calls):
    def answer(self, message: Message) -> dict[str, Any]:
        answer = super().answer(message)
        answer.get("error", {}).pop("knob", None)
        return answer


class AnyPeriod(Calls):
    def _answer(self, message: Message) -> dict[str, Any]:
        if message.get("call") == "watch" and type(message.get("period_ms")) is int:
            period_ms = min(max(message["period_ms"], 5), 60_000)
            return super()._answer({**message, "period_ms": period_ms})
        return super()._answer(message)


class AnyCall(Calls):
    def _answer(self, message: Message) -> dict[str, Any]:
        known = {"hello", "get", "stats", "watch", "set", "release", "prepare", "commit", "abort"}
        return super()._answer(message if message.get("call") in known else {"call": "get"})


class NoUnknownFields(Calls):
    def answer(self, message: Message) -> dict[str, Any]:
        if "colour" in message:
            error = {"code": "bad_request", "message": "colour is not known"}
            return {"ok": False, "error": error}
        return super().answer(message)


class ClosesOnNonsense(AdminServer):
    def _answer(self, client: Any, line: bytes) -> dict[str, Any]:
        answer = super()._answer(client, line)
        if not answer["ok"] and answer["error"]["code"] == "bad_json":
            client.sock.shutdown(2)
        return answer


class NumbersOnly(AdminServer):
    def _answer(self, client: Any, line: bytes) -> dict[str, Any]:
        answer = super()._answer(client, line)
        return {**answer, "id": 0 if answer["id"] == "" else answer["id"]}


class ReadsPiecesAsLines(AdminServer):
    def _answer_lines(self, client: Any) -> None:
        if not client.inbox.endswith(b"\n") and len(client.inbox) < 20:
            client.inbox += b"\n"
        super()._answer_lines(client)


class AnswersEmptyLines(AdminServer):
    def _answer_lines(self, client: Any) -> None:
        while client.inbox.startswith((b"\n", b" ")):
            del client.inbox[:1]
            self._send(client, self._answer(client, b""))
        super()._answer_lines(client)


class TellsNoOne(AdminServer):
    def _tell_watchers(self) -> None:
        self._engine.expire()


class TellsTooOften(AdminServer):
    def _answer(self, client: Any, line: bytes) -> dict[str, Any]:
        answer = super()._answer(client, line)
        if client.period_ns is not None:
            client.period_ns = 1 * MS
        return answer


class TellsWhoAskedFirst(AdminServer):
    def _answer(self, client: Any, line: bytes) -> dict[str, Any]:
        first = client.watch_id
        answer = super()._answer(client, line)
        client.watch_id = client.watch_id if first is None else first
        return answer


class EventsAreResponses(AdminServer):
    def _tell(self, clients: Any, make: Any) -> None:
        super()._tell(clients, lambda: {**make(), "ok": True})


class ReleasesAtClose(AdminServer):
    def _close(self, client: Any) -> None:
        if client in self._clients:
            self._engine.with_leases(_release_whoever)
        super()._close(client)


def _release_whoever(leases: Leases) -> dict[str, Any]:
    if leases.lease is not None:
        leases.release(time.monotonic_ns(), leases.lease.owner)
    return {}


class WaitsForReaders(AdminServer):
    def _flush(self, client: Any) -> None:
        client.sock.settimeout(3)
        try:
            client.sock.sendall(client.outbox)
        except OSError:
            self._close(client)
            return
        client.outbox.clear()
        client.sock.setblocking(False)


class StaysAfterALongLine(AdminServer):
    def _end(self, client: Any, error: ContractError) -> None:
        client.inbox.clear()
        self._send(client, {"id": None, "ok": False, "error": error.as_dict()})
        if error.code == "denied":
            self._close(client)


class KeepsTheUnread(AdminServer):
    def _send(self, client: Any, message: dict[str, Any]) -> None:
        if client in self._clients and len(client.outbox) < 200_000:
            client.outbox += encode(message)
            self._flush(client)


class ReadsNoMoreOfTheUnread(AdminServer):
    def _ready(self, client: Any) -> None:
        if len(client.outbox) < 100_000:
            super()._ready(client)
        else:
            time.sleep(0.001)

    def _answer_lines(self, client: Any) -> None:
        if len(client.outbox) < 100_000:
            super()._answer_lines(client)


class ShortLines(AdminServer):
    def _answer(self, client: Any, line: bytes) -> dict[str, Any]:
        return super()._answer(client, line if len(line) < 60_000 else b"x")


class StandsStill(PageWriter):
    written = False

    def write(self, now: EngineNow, step: Step | None = None) -> None:
        if not self.written:
            super().write(now, step)
        self.written = True


class NoSequence(PageWriter):
    def write(self, now: EngineNow, step: Step | None = None) -> None:
        self.sequence = 0
        super().write(now, step)


class HasMore(PageWriter):
    def write(self, now: EngineNow, step: Step | None = None) -> None:
        super().write(now, step)
        self.memory[4090:4096] = b"secret"


class CountsNoExpiries(SmallEngine):
    def shown(self) -> EngineNow:
        return replace(super().shown(), lease_expiries_total=0)


class ShowsAnEpochForEver(SmallEngine):
    last = 0

    def shown(self) -> EngineNow:
        self.last = self.leases.applied_epoch or self.last
        return replace(super().shown(), epoch=self.last)


class ShowsStartValues(SmallEngine):
    def shown(self) -> EngineNow:
        return replace(super().shown(), max_running=64)


class AppliesNothing(SteppingEngine):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.leases.apply = lambda: None  # type: ignore[method-assign]


class Impossible(SmallEngine):
    def shown(self) -> EngineNow:
        return replace(super().shown(), kv_used=9, kv_total=8)


class LooksSeldom(SmallEngine):
    def next_deadline_ns(self) -> int | None:
        deadline_ns = super().next_deadline_ns()
        return None if deadline_ns is None else deadline_ns + 90 * MS


class EndsOnlyWhenAsked(SmallEngine):
    def next_deadline_ns(self) -> int | None:
        return None

    def expire(self) -> int:
        return self.leases.version


ENDS = {"expiry-unasked", "punctual-end"}
CASES: tuple[tuple[type, set[str]], ...] = (
    (NeverEnds, {
        *ENDS, "expiry", "begins-at-start", "promise-outlives-lease", "watch-changes",
    }),
    (EndsEarly, {"not-too-early"}),
    (KeepsItsValues, {
        "expiry", "expiry-unasked", "release", "every-knob", "begins-at-start",
        "watch-changes",
    }),
    (KeepsItsValuesAtExpiry, {
        "expiry", "expiry-unasked", "begins-at-start", "watch-changes",
    }),
    (SetsInPart, {"all-or-nothing"}),
    (TakesAnyEpoch, {"stale-epoch", "epochs-outlive-leases"}),
    (ForgetsEpochs, {"expiry", "epochs-outlive-leases"}),
    (LetsAnyoneWrite, {"held", "promise-holds-others"}),
    (PromisesNothingAgainstOthers, {"promise-holds-others"}),
    (RenewsFromTheStart, {"renewal", "others-stay", "close-keeps-lease"}),
    (BeginsWhereItEnded, {"begins-at-start", "every-knob"}),
    (KnowsNoLongestLease, {"lease-range", "prepare-is-checked"}),
    (PreparesAtOnce, {"prepare", "abort", "commit-of-nothing", "promise-lapses"}),
    (PreparesAnything, {"prepare-is-checked"}),
    (PromisesForEver, {"promise-lapses"}),
    (PromisesInSilence, {"watch-promises"}),
    (CommitsOnce, {"commit-repeated"}),
    (CommitsFromThePrepare, {"commit"}),
    (AbortsWithAnError, {"abort"}),
    (PreparesSeveral, {"later-replaces"}),
    (DropsPromisesWithTheLease, {"promise-outlives-lease"}),
    (KeepsPromisesAtRelease, {"release-drops-promise"}),
    (AlwaysReleases, {"release"}),
    (Clamping, {"all-or-nothing", "out-of-range", "prepare-is-checked"}),
    (Rounding, {"whole-numbers"}),
    (Lenient, {"wrong-types"}),
    (NewAtEachHello, {"hello"}),
    (AnyVersion, {"hello-versions"}),
    (OddUnit, {"knob-ranges"}),
    (FractionLeft, {"state-fields"}),
    (MicrosecondsLeft, {"set-takes-a-lease", "commit"}),
    (OtherStart, {"start-values"}),
    (TakesEpochZero, {"lowest-epoch"}),
    (CommitsNothing, {
        "commit-of-nothing", "later-replaces", "promise-lapses", "release-drops-promise",
    }),
    (ReadsPiecesAsLines, {"pieces"}),
    (AppliesNothing, {
        "change-is-applied", "every-knob", "commit", "stats-follow", "page-follows",
    }),
    (StaleWithoutEpoch, {"stale-epoch", "epochs-outlive-leases", "prepare-is-checked"}),
    (NamesNoKnob, {"unknown-knob", "out-of-range"}),
    (AnyPeriod, {"period-range"}),
    (AnyCall, {"unknown-call", "pipelining"}),
    (NoUnknownFields, {"unknown-fields"}),
    (ClosesOnNonsense, {"bad-json"}),
    (NumbersOnly, {"ids"}),
    (AnswersEmptyLines, {"empty-lines"}),
    (TellsNoOne, {
        "watch-changes", "watch-promises", "event-fields", "watch-period", "watch-replaced",
    }),
    (TellsTooOften, {"watch-period"}),
    (TellsWhoAskedFirst, {"watch-replaced"}),
    (EventsAreResponses, {"event-fields"}),
    (ReleasesAtClose, {"close-keeps-lease"}),
    (WaitsForReaders, {"bad-company", "unread"}),
    (StaysAfterALongLine, {"too-long"}),
    (KeepsTheUnread, {"unread"}),
    (ReadsNoMoreOfTheUnread, {"unread"}),
    (ShortLines, {"longest-line"}),
    (StandsStill, {*ENDS, "page-follows", "page-like-stats"}),
    (NoSequence, {"page-sequence"}),
    (HasMore, {"page-layout"}),
    (CountsNoExpiries, ENDS),
    (ShowsAnEpochForEver, {"expiry-unasked", "stats-follow", "page-follows"}),
    (ShowsStartValues, {"stats-follow", "page-follows"}),
    (Impossible, {"stats"}),
    (LooksSeldom, {"punctual-end"}),
    (EndsOnlyWhenAsked, ENDS | {"watch-changes"}),
)  # fmt: skip


def broken(fault: type) -> dict[str, Any]:
    """How to serve an engine that has this fault and no other."""
    if issubclass(fault, Leases):
        return {"engine_type": type("Engine", (SmallEngine,), {"leases_type": fault})}
    if issubclass(fault, Knob):
        knobs = (
            fault(each.name, each.minimum, each.maximum, each.start, each.unit)
            for each in TWO_KNOBS
        )
        return {"knobs": tuple(knobs)}
    for base, option in (
        (Calls, "calls_type"),
        (AdminServer, "server_type"),
        (PageWriter, "page_type"),
    ):
        if issubclass(fault, base):
            return {option: fault}
    return {"engine_type": fault}


FAULTS = pytest.mark.parametrize(
    ("fault", "fails"), CASES, ids=[fault.__name__ for fault, _ in CASES]
)


@FAULTS
def test_a_fault_fails_its_checks(fault: type, fails: set[str], tmp_path: Path) -> None:
    # a machine with no time for this shows an impatient client less: it looks again
    for _ in range(5):
        with serving(tmp_path, **broken(fault)) as path:
            found = failing(run(path, patience=IMPATIENCE, only=sorted(fails)))
        if set(found) == fails:
            break
    assert set(found) == fails
    assert all(expected and got for expected, got in found.values())


@pytest.mark.slow
@FAULTS
def test_a_fault_fails_no_other_check(fault: type, fails: set[str], tmp_path: Path) -> None:
    with serving(tmp_path, **broken(fault)) as path:
        found = failing(checked(path, thorough=bool(fails & {"unread", "crowd"})))
    assert set(found) == fails, found


def test_an_engine_that_keeps_every_client_fails_the_crowd(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving_server, "MAX_CLIENTS", 1000)
    with serving(tmp_path) as path:
        assert set(failing(checked(path, only=["crowd"]))) == {"crowd"}


def test_an_engine_that_admits_anyone_fails_the_stranger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving_server, "admits", lambda *_: True)
    with serving(tmp_path) as path:
        report = checked(path, only=["stranger"])
    assert set(failing(report)) == {"stranger"}


def test_an_engine_that_does_not_answer_two_at_once_fails_pieces_or_pipelining(
    tmp_path: Path,
) -> None:
    class OneAtATime(AdminServer):
        def _answer_lines(self, client: Any) -> None:
            line, _, _ = bytes(client.inbox).partition(b"\n")
            if b"\n" in client.inbox:
                client.inbox.clear()
                self._send(client, self._answer(client, line))

    with serving(tmp_path, server_type=OneAtATime) as path:
        assert "pipelining" in failing(checked(path, only=["pipelining", "pieces"]))


def test_a_restart_that_keeps_its_epochs_or_its_values_fails(tmp_path: Path) -> None:
    class Restarting(Calls):
        instance = "first"

        def _greet(self, message: Message) -> dict[str, Any]:
            return {**super()._greet(message), "instance": Restarting.instance}

    def restart() -> None:
        Restarting.instance = "second"

    with serving(tmp_path, calls_type=Restarting) as path:
        found = failing(checked(path, only=["restart"], restart=restart))
    assert set(found) == {"restart"}


def test_every_check_is_failed_by_some_fault() -> None:
    alone = {"crowd", "stranger", "restart"}
    failed = {name for _, fails in CASES for name in fails} | alone
    assert failed == {check.name for check in CHECKS}
