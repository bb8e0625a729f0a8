"""A change over several engines: prepared on all of them, then committed, or aborted everywhere.

A pure state machine of the coordinator, by the contract's `prepare`, `commit` and `abort`
(docs/engine-protocol.md, "Changes that span engines"; seed B10). Events go in, what is to be done
comes out: `Record` before anything irreversible, `Ask` to an engine.

- The change is committed where at least two thirds prepared it. Who refused, or was silent, is
  told to abort and left behind at the values it has.
- Nothing is sent before the journal has it: the beginning before the first `prepare`, the decision
  before the first `commit`. A coordinator that dies is followed by one that reads where it stood:
  begun is aborted, decided is committed again; engines take either twice.
- Who was to commit and can't be reached is asked again until its promise lapses. If in the end
  fewer than two thirds committed, those are released: the change stands as a whole or not at all.

Every state has a deadline, and should everything be lost, the engines' own terms bring all back.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

TERM_NS: Final = 5_000_000_000
"""How long a promise stands: enough for a new coordinator to take up what a dead one left."""

PREPARE_NS: Final = 1_000_000_000
"""Who has not answered a `prepare` by then is taken to have refused."""

RECORD_NS: Final = 2_000_000_000
"""A journal that takes longer has not recorded it."""

AGAIN_NS: Final = 250_000_000
"""What is not answered is asked again so often."""

REVERT_NS: Final = 1_000_000_000


class Stage(StrEnum):
    """How far a change is; each of the first two is recorded before it is acted upon."""

    PREPARING = "preparing"
    COMMITTING = "committing"
    ABORTING = "aborting"
    REVERTING = "reverting"
    DONE = "done"


class Standing(StrEnum):
    """How a participant stands, as far as the coordinator knows."""

    ASKED = "asked"
    PREPARED = "prepared"
    REFUSED = "refused"
    SILENT = "silent"
    COMMITTED = "committed"
    ABORTED = "aborted"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class Participant:
    """An engine's part; `detail` says why it refused or was lost."""

    standing: Standing = Standing.ASKED
    detail: str = ""
    asked_ns: int | None = None


@dataclass(frozen=True, slots=True)
class Record:
    """Have this stage in the journal, on disk, and answer `Recorded` or `Unrecorded`."""

    stage: Stage


@dataclass(frozen=True, slots=True)
class Ask:
    """Send a call of the contract: prepare, commit, abort or release."""

    name: str
    call: str


Effect = Record | Ask


@dataclass(frozen=True, slots=True)
class Recorded:
    """The journal has this stage."""

    stage: Stage


@dataclass(frozen=True, slots=True)
class Unrecorded:
    """The journal could not take it."""

    why: str


@dataclass(frozen=True, slots=True)
class Answered:
    """An engine's answer; `code` is empty where it did what was asked."""

    name: str
    call: str
    code: str = ""
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Gone:
    """The engine ended or began anew: nothing that was prepared or set there is there any more."""

    name: str
    why: str


Event = Recorded | Unrecorded | Answered | Gone | None
"""None: only time has passed."""


@dataclass(frozen=True, slots=True)
class Transaction:
    """Where a change stands. `why` says why it was aborted or reverted; empty if it was not."""

    participants: Mapping[str, Participant]
    stage: Stage = Stage.PREPARING
    recorded: bool = False
    stage_ns: int = 0
    term_ends_ns: int = 0
    why: str = ""

    @property
    def quorum(self) -> int:
        """The smallest number that is two thirds of the participants."""
        return -(-2 * len(self.participants) // 3)

    @property
    def stands(self) -> bool:
        """Whether the change is over and in force, on two thirds or more."""
        return self.stage is Stage.DONE and not self.why

    def of(self, *standings: Standing) -> list[str]:
        """Who stands so."""
        return [name for name, each in self.participants.items() if each.standing in standings]


Step = tuple[Transaction, tuple[Effect, ...]]


def begin(names: Iterable[str], now_ns: int) -> Step:
    """A change over these engines; first it goes to the journal."""
    made = Transaction({name: Participant() for name in names}, stage_ns=now_ns)
    return made, (Record(Stage.PREPARING),)


def resume(standings: Mapping[str, Standing], stage: Stage, now_ns: int) -> Step:
    """Go on from what the journal has of a coordinator that died: abort, or commit again.

    `standings` are those it was recorded with. Whoever can't be reached in time is left to its own
    term; a promise that has lapsed refuses the commit, so asking for it is never wrong.
    """
    people = {name: Participant(standing) for name, standing in standings.items()}
    made = Transaction(people, term_ends_ns=now_ns + TERM_NS)
    if stage is Stage.COMMITTING:
        return _commit(made, now_ns)
    return _abort(made, "its coordinator died before it was decided", now_ns)


def step(was: Transaction, event: Event, now_ns: int) -> Step:
    """What an event, or the passing of time, makes of it. Late and repeated answers do no harm."""
    match event:
        case Recorded(stage=stage) if stage is was.stage and not was.recorded:
            return _recorded(was, now_ns)
        case Unrecorded(why=why) if not was.recorded:
            return _unrecorded(was, f"could not be journalled: {why}", now_ns)
        case Answered():
            was = _answered(was, event)
        case Gone(name=name, why=why) if name in was.participants:
            was = _gone(was, name, why)
    return _go_on(was, now_ns)


def _recorded(was: Transaction, now_ns: int) -> Step:
    if was.stage is Stage.PREPARING:
        started = replace(was, recorded=True, stage_ns=now_ns, term_ends_ns=now_ns + TERM_NS)
        return _ask(started, started.participants, "prepare", now_ns)
    if was.stage is Stage.COMMITTING:
        return _commit(was, now_ns)
    return was, ()


def _unrecorded(was: Transaction, why: str, now_ns: int) -> Step:
    if was.stage is Stage.PREPARING:
        return replace(was, stage=Stage.DONE, why=why), ()
    if was.stage is Stage.COMMITTING:
        return _abort(was, why, now_ns)
    return was, ()


def _answered(was: Transaction, event: Answered) -> Transaction:
    before = was.participants.get(event.name)
    if before is None:
        return was
    refused = bool(event.code)
    match event.call, before.standing:
        case "prepare", Standing.ASKED:
            standing = Standing.REFUSED if refused else Standing.PREPARED
        case "commit", Standing.PREPARED if was.stage is Stage.COMMITTING:
            standing = Standing.LOST if refused else Standing.COMMITTED
        case "abort", Standing.PREPARED if was.stage is Stage.ABORTING:
            # whoever refuses an abort has another owner by now, and so no promise to us
            standing = Standing.ABORTED
        case "abort", Standing.SILENT:
            standing = Standing.ABORTED
        case "release", Standing.COMMITTED | Standing.LOST if was.stage is Stage.REVERTING:
            standing = Standing.ABORTED
        case _:
            return was
    return _with(was, event.name, standing, event.detail)


def _gone(was: Transaction, name: str, why: str) -> Transaction:
    match was.participants[name].standing:
        case Standing.ASKED:
            return _with(was, name, Standing.REFUSED, why)
        case Standing.PREPARED | Standing.SILENT if was.stage is not Stage.COMMITTING:
            if was.stage is Stage.PREPARING:
                return _with(was, name, Standing.REFUSED, why)
            return _with(was, name, Standing.ABORTED, why)
        case Standing.PREPARED | Standing.COMMITTED:
            return _with(was, name, Standing.LOST, why)
        case Standing.SILENT:
            return _with(was, name, Standing.ABORTED, why)
        case _:
            return was


def _go_on(was: Transaction, now_ns: int) -> Step:
    """What follows from how everybody stands, and from the time."""
    match was.stage:
        case Stage.PREPARING if not was.recorded:
            if now_ns - was.stage_ns >= RECORD_NS:
                return _unrecorded(was, "the journal did not take it in time", now_ns)
            return was, ()
        case Stage.PREPARING:
            return _count(was, now_ns)
        case Stage.COMMITTING if not was.recorded:
            if now_ns - was.stage_ns >= RECORD_NS:
                return _unrecorded(was, "the journal did not take it in time", now_ns)
            return _again(was, {"abort": was.of(Standing.SILENT)}, now_ns)
        case Stage.COMMITTING:
            return _finish(was, now_ns)
        case Stage.ABORTING:
            left = was.of(Standing.PREPARED, Standing.SILENT)
            if not left or now_ns >= was.term_ends_ns:
                return replace(was, stage=Stage.DONE), ()
            return _again(was, {"abort": left}, now_ns)
        case Stage.REVERTING:
            left = was.of(Standing.COMMITTED)
            if not left or now_ns - was.stage_ns >= REVERT_NS:
                return replace(was, stage=Stage.DONE), ()
            return _again(was, {"release": left}, now_ns)
        case _:
            return was, ()


def _count(was: Transaction, now_ns: int) -> Step:
    """Count the votes, once all are in or can't matter any more."""
    prepared, waiting = was.of(Standing.PREPARED), was.of(Standing.ASKED)
    overdue = now_ns - was.stage_ns >= PREPARE_NS
    possible = len(prepared) + (0 if overdue else len(waiting))
    if possible < was.quorum:
        why = f"{possible} of {len(was.participants)} could prepare it, {was.quorum} had to"
        return _abort(was, why, now_ns)
    if waiting and not overdue:
        return was, ()
    decided = replace(was, stage=Stage.COMMITTING, recorded=False, stage_ns=now_ns)
    for name in waiting:
        decided = _with(decided, name, Standing.SILENT, "did not answer in time")
    left = decided.of(Standing.REFUSED, Standing.SILENT)
    decided, asks = _ask(decided, left, "abort", now_ns)
    return decided, (Record(Stage.COMMITTING), *asks)


def _commit(was: Transaction, now_ns: int) -> Step:
    """The decision is on disk."""
    started = replace(was, stage=Stage.COMMITTING, recorded=True, stage_ns=now_ns)
    prepared = started.of(Standing.PREPARED)
    started, commits = _ask(started, prepared, "commit", now_ns)
    started, aborts = _ask(started, started.of(Standing.SILENT), "abort", now_ns)
    return started, (*commits, *aborts)


def _finish(was: Transaction, now_ns: int) -> Step:
    """Committing: over when everybody has answered or nobody can any more."""
    left = was.of(Standing.PREPARED)
    if left and now_ns >= was.term_ends_ns:
        for name in left:
            was = _with(was, name, Standing.LOST, "did not answer before its promise lapsed")
        left = []
    if left:
        return _again(was, {"commit": left, "abort": was.of(Standing.SILENT)}, now_ns)
    committed = was.of(Standing.COMMITTED)
    if len(committed) >= was.quorum:
        return replace(was, stage=Stage.DONE), ()
    why = f"{len(committed)} of {len(was.participants)} committed it, {was.quorum} had to"
    reverting = replace(was, stage=Stage.REVERTING, stage_ns=now_ns, why=why)
    # a lost one may have committed without our knowing
    return _ask(reverting, was.of(Standing.COMMITTED, Standing.LOST), "release", now_ns)


def _abort(was: Transaction, why: str, now_ns: int) -> Step:
    aborting = replace(was, stage=Stage.ABORTING, recorded=True, stage_ns=now_ns, why=why)
    for name in was.of(Standing.ASKED):
        aborting = _with(aborting, name, Standing.SILENT, "had not answered")
    # who refused has nothing prepared, but may have been wrong about it
    told = aborting.of(Standing.PREPARED, Standing.SILENT, Standing.REFUSED)
    return _ask(aborting, told, "abort", now_ns)


def _again(was: Transaction, calls: Mapping[str, Iterable[str]], now_ns: int) -> Step:
    """Ask those again who have not answered for a while."""
    effects: tuple[Effect, ...] = ()
    for call, names in calls.items():
        due = [
            name
            for name in names
            if (asked_ns := was.participants[name].asked_ns) is None
            or now_ns - asked_ns >= AGAIN_NS
        ]
        was, asks = _ask(was, due, call, now_ns)
        effects += asks
    return was, effects


def _ask(was: Transaction, names: Iterable[str], call: str, now_ns: int) -> Step:
    asked = list(names)
    people = {
        name: replace(each, asked_ns=now_ns) if name in asked else each
        for name, each in was.participants.items()
    }
    return replace(was, participants=people), tuple(Ask(name, call) for name in asked)


def _with(was: Transaction, name: str, standing: Standing, detail: str) -> Transaction:
    people = dict(was.participants)
    people[name] = replace(people[name], standing=standing, detail=detail)
    return replace(was, participants=people)
