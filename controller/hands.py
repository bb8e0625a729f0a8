"""Changes by hand: an operator's values, on one engine or several, for as long as he said.

Each is a transaction (`controller.transaction`) over the engines' links. While it is under way and
while it stands, the controller decides nothing about these engines' knobs; when its time is over
they go back to their start values and are the controller's again. The agent keeps the journal: what
must be on disk goes to it as `change`, and it answers `recorded`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from controller.actuator import Actuator
from controller.engines.told import Ack
from controller.policy_model import Mode
from controller.transaction import (
    TERM_NS,
    Answered,
    Ask,
    Effect,
    Event,
    Gone,
    Record,
    Recorded,
    Stage,
    Standing,
    Transaction,
    Unrecorded,
    begin,
    resume,
    step,
)
from controller.watch import EngineWatch
from controller.wire import Channel, Message

LEASE_NS: Final = 10_000_000_000
"""How long a change by hand outlives us at most: time for the next controller to take it up."""

AGAIN_NS: Final = 250_000_000

_NS_PER_MS: Final = 1_000_000
_PRESENT: Final = (Standing.ASKED, Standing.PREPARED, Standing.SILENT, Standing.COMMITTED)

Watches = Mapping[str, EngineWatch]
"""Engines, or where one has several admin sockets its ranks, by key."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a change is made: one engine's instance, and the values that are set there."""

    instance: str
    values: Mapping[str, float]
    lease_ms: int


@dataclass(slots=True)
class Change:
    """An operator's change and how far it is. `until_ns` is CLOCK_MONOTONIC."""

    id: int
    values: Mapping[str, float]
    until_ns: int
    reason: str
    epoch: int
    places: dict[str, Place]
    state: Transaction
    tags: dict[str, int] = field(default_factory=dict)
    holders: set[str] = field(default_factory=set)
    settled: bool = False
    asked_ns: dict[str, int] = field(default_factory=dict)

    def concerns(self) -> set[str]:
        """The keys that the controller has to leave alone."""
        return self.holders if self.settled else set(self.state.of(*_PRESENT))

    def detail(self) -> dict[str, Any]:
        """What the journal needs to take it up again."""
        return {
            "values": dict(self.values),
            "until_ns": self.until_ns,
            "reason": self.reason,
            "epoch": self.epoch,
            "places": {
                key: {
                    "instance": place.instance,
                    "values": dict(place.values),
                    "lease_ms": place.lease_ms,
                    "standing": str(self.state.participants[key].standing),
                }
                for key, place in self.places.items()
            },
        }


def change_of(change_id: int, detail: Mapping[str, Any], made: Transaction) -> Change:
    """What `Change.detail` said; `KeyError`, `TypeError` or `ValueError` if it did not."""
    places = {
        key: Place(place["instance"], place["values"], place["lease_ms"])
        for key, place in detail["places"].items()
    }
    return Change(
        change_id,
        detail["values"],
        detail["until_ns"],
        detail["reason"],
        detail["epoch"],
        places,
        made,
    )


class Hands:
    """The changes by hand there are."""

    def __init__(self, channel: Channel, actuator: Actuator) -> None:
        """The agent is told over `channel`; decisions are journalled by `actuator`."""
        self._channel = channel
        self._actuator = actuator
        self._changes: dict[int, Change] = {}
        self._is_marked = False

    @property
    def active(self) -> bool:
        """Whether there is anything to do in `tick`: mostly there is nothing by hand."""
        return bool(self._changes) or self._is_marked

    def ask(self, message: Message, watches: Watches, mode: Mode, now_ns: int) -> None:
        """An operator wants values on engines; what comes of it is told as `by_hand`."""
        names, change_id = set(message["engines"]), message["id"]
        keys = [key for key, watch in watches.items() if watch.policy.name in names]
        why = self._obstacle(keys, names, watches)
        if why:
            self._tell(change_id, {"state": "refused", "why": why})
            return
        until_ns = now_ns + message["lease_ms"] * _NS_PER_MS
        epoch = 1 + max(_epoch(watches[key]) for key in keys)
        places = {key: _place(watches[key], message["values"], until_ns - now_ns) for key in keys}
        made, effects = begin(keys, now_ns)
        change = Change(
            change_id, message["values"], until_ns, message["reason"], epoch, places, made
        )
        for key in keys:
            link = watches[key].link
            old = link.values if link is not None else {}
            change.tags[key] = self._actuator.by_hand(
                watches[key], mode, old, places[key].values, message["reason"]
            )
        self._changes[change_id] = change
        self._carry_out(change, effects, watches, now_ns)
        self.mark(watches)

    def take_up(self, message: Message, watches: Watches, now_ns: int) -> None:
        """Go on with what an earlier controller left, as the journal has it."""
        for each in message["changes"]:
            standings = {
                key: Standing(place["standing"]) for key, place in each["detail"]["places"].items()
            }
            made, effects = resume(standings, Stage(each["stage"]), now_ns)
            change = change_of(each["id"], each["detail"], made)
            self._changes[change.id] = change
            subject = ", ".join(change.places)
            self._actuator.event("change_resumed", subject, {"stage": str(made.stage)})
            self._carry_out(change, effects, watches, now_ns)
        self.mark(watches)

    def recorded(self, message: Message, watches: Watches, now_ns: int) -> None:
        """The journal has a change's stage, or could not take it."""
        change = self._changes.get(message["id"])
        if change is not None:
            stage, why = Stage(message["stage"]), message["error"]
            self._step(change, Unrecorded(why) if why else Recorded(stage), watches, now_ns)

    def tick(self, watches: Watches, now_ns: int) -> None:
        """Take the engines' answers, and do what it is time for."""
        for change in list(self._changes.values()):
            for key in change.places:
                watch = watches.get(key)
                instance = watch.instance if watch is not None else None
                if instance is not None and instance != change.places[key].instance:
                    self._lose(change, key, "it was started anew", watches, now_ns)
        for key, watch in watches.items():
            for vote in watch.link.take_votes() if watch.link is not None else ():
                for change in list(self._changes.values()):
                    if change.epoch == vote.epoch and key in change.places:
                        answer = Answered(key, vote.call, vote.code, vote.detail)
                        self._voted(change, answer, watches, now_ns)
        for change in list(self._changes.values()):
            if not change.settled:
                self._step(change, None, watches, now_ns)
            else:
                self._hold(change, watches, now_ns)
        self.mark(watches)

    def give_back(
        self, names: Iterable[str] | None, reason: str, watches: Watches, now_ns: int
    ) -> list[str]:
        """End the changes on these engines, or all of them; returns where there was one."""
        wanted = None if names is None else set(names)
        ended: list[str] = []
        for change in list(self._changes.values()):
            for key in change.places:
                watch = watches.get(key)
                name = watch.policy.name if watch is not None else key.partition("/")[0]
                if key in change.concerns() and (wanted is None or name in wanted):
                    ended.append(key)
                    if watch is not None:
                        _release(watch, now_ns)
                    change.holders.discard(key)
                    if not change.settled:
                        self._step(change, Gone(key, reason), watches, now_ns)
            if change.settled and not change.holders:
                self._over(change, reason)
        self.mark(watches)
        return ended

    def let_go(self, watch: EngineWatch, why: str) -> None:
        """Somebody else has this engine's knobs, or it is gone: nothing is held there any more."""
        for change in list(self._changes.values()):
            change.holders -= {watch.key}
            if change.settled and not change.holders:
                self._over(change, why)

    def mark(self, watches: Watches) -> None:
        """Tell each engine's watch whether, and what, is by hand there."""
        by_key = {key: change for change in self._changes.values() for key in change.concerns()}
        self._is_marked = bool(by_key)
        for key, watch in watches.items():
            change = by_key.get(key)
            watch.by_hand = None
            if change is not None:
                watch.by_hand = {
                    "id": change.id,
                    "values": dict(change.values),
                    "reason": change.reason,
                    "until_ns": change.until_ns,
                    "state": "in force" if change.settled else str(change.state.stage),
                }
            if watch.link is not None:
                watch.link.keeps = change is not None

    def _obstacle(self, keys: list[str], names: set[str], watches: Watches) -> str:
        """Why nothing can be begun."""
        missing = names - {watches[key].policy.name for key in keys}
        if missing:
            return f"{', '.join(sorted(missing))} is not there"
        unlinked = [key for key in keys if watches[key].link is None]
        if unlinked:
            return f"the policy names no admin socket of {', '.join(unlinked)}"
        if self._under_way() & set(keys):
            return "another change is under way there; try again"
        return ""

    def _voted(self, change: Change, answer: Answered, watches: Watches, now_ns: int) -> None:
        if not change.settled:
            self._step(change, answer, watches, now_ns)
        elif answer.call == "commit" and answer.code and answer.name in change.holders:
            # taken up again after the connection was lost, and it is not there any more
            self._lose(change, answer.name, answer.detail, watches, now_ns)

    def _lose(self, change: Change, key: str, why: str, watches: Watches, now_ns: int) -> None:
        if not change.settled:
            self._step(change, Gone(key, why), watches, now_ns)
            return
        if key in change.holders:
            change.holders.discard(key)
            self._actuator.event("hand_lost", key, {"why": why})
        if not change.holders:
            self._over(change, why)

    def _step(self, change: Change, event: Event, watches: Watches, now_ns: int) -> None:
        change.state, effects = step(change.state, event, now_ns)
        self._carry_out(change, effects, watches, now_ns)

    def _carry_out(
        self, change: Change, effects: Iterable[Effect], watches: Watches, now_ns: int
    ) -> None:
        """Do all of it, and then what follows from what is known at once."""
        known: list[Answered] = []
        for effect in effects:
            match effect:
                case Record(stage=stage):
                    self._record(change, str(stage), wait=True)
                case Ask(name=key, call=call):
                    answer = _call(change, key, call, watches.get(key), now_ns)
                    known += [answer] if answer is not None else []
        for answer in known:
            self._step(change, answer, watches, now_ns)
        if change.state.stage is Stage.DONE and not change.settled:
            self._settle(change, watches, now_ns)

    def _settle(self, change: Change, watches: Watches, now_ns: int) -> None:
        """The transaction is over: it stands, or it never was."""
        change.settled = True
        people = change.state.participants
        for key, each in people.items():
            watch, tag = watches.get(key), change.tags.get(key, 0)
            if each.standing is Standing.COMMITTED and change.state.stands:
                self._supersede(key)
                change.holders.add(key)
                if watch is not None:
                    watch.let_go()
            elif tag:
                word = "lost" if each.standing is Standing.LOST else "refused"
                why = each.detail or change.state.why
                self._actuator.acknowledged(Ack(tag, word, 0, why), now_ns)
        self._tell(
            change.id,
            {
                "state": "applied" if change.state.stands else "aborted",
                "why": change.state.why,
                "quorum": change.state.quorum,
                "until_ns": change.until_ns,
                "engines": {
                    key: {"standing": str(each.standing), "detail": each.detail}
                    for key, each in people.items()
                },
            },
        )
        if not change.holders:
            self._over(change, change.state.why)

    def _hold(self, change: Change, watches: Watches, now_ns: int) -> None:
        """It stands: until its time is over; a connection that was lost is taken up again."""
        if now_ns >= change.until_ns:
            if self._under_way() & change.holders:
                return  # what is promised there for the next one would go with it
            for key in change.holders & watches.keys():
                _release(watches[key], now_ns)
            self._over(change, "its time is over")
            return
        for key in change.holders & watches.keys():
            watch, asked_ns = watches[key], change.asked_ns.get(key, 0)
            link = watch.link
            if link is None or link.held or not link.can_set or now_ns - asked_ns < AGAIN_NS:
                continue
            change.asked_ns[key] = now_ns
            _call(change, key, "commit", watch, now_ns)

    def _supersede(self, key: str) -> None:
        """A later change holds there now."""
        for older in list(self._changes.values()):
            if key in older.holders:
                older.holders.discard(key)
                if not older.holders:
                    self._over(older, "another change was made there")

    def _under_way(self) -> set[str]:
        """Where a change is not decided yet."""
        return {key for each in self._changes.values() if not each.settled for key in each.places}

    def _over(self, change: Change, why: str) -> None:
        if self._changes.pop(change.id, None) is None:
            return
        self._record(change, "over", wait=False)
        self._actuator.event("change_over", ", ".join(change.places), {"why": why})

    def _record(self, change: Change, stage: str, *, wait: bool) -> None:
        self._channel.send(
            {
                "type": "change",
                "id": change.id,
                "stage": stage,
                "wait": wait,
                "detail": change.detail(),
            }
        )

    def _tell(self, change_id: int, result: Mapping[str, Any]) -> None:
        self._channel.send({"type": "by_hand", "id": change_id, **result})


def _call(
    change: Change, key: str, call: str, watch: EngineWatch | None, now_ns: int
) -> Answered | None:
    """Ask an engine; the answer, where it is known at once.

    One that can't be asked refuses a `prepare`; for the rest it is asked again later.
    """
    link, place = watch.link if watch is not None else None, change.places[key]
    if watch is None or link is None:
        return Answered(key, call, "unreachable", "it is not there") if call == "prepare" else None
    term_ms = TERM_NS // _NS_PER_MS
    match call:
        case "prepare":
            if not link.prepare(place.values, change.epoch, place.lease_ms, term_ms, now_ns):
                return Answered(key, call, "unreachable", f"admin {link.state}: {link.detail}")
        case "commit" if watch.instance == place.instance:
            tag = change.tags.get(key, 0)
            link.commit(place.values, change.epoch, place.lease_ms, tag, now_ns)
        case "abort" if watch.instance == place.instance:
            link.abort(change.epoch, now_ns)
        case "release":
            _release(watch, now_ns)
            return Answered(key, call)
    return None


def _place(watch: EngineWatch, values: Mapping[str, float], for_ns: int) -> Place:
    """What is set there: the operator's values, and all else as the engine was started."""
    link = watch.link
    assert link is not None
    hello, lease_ns = link.hello, min(for_ns, LEASE_NS)
    if hello is None:
        return Place("", dict(values), lease_ns // _NS_PER_MS)
    start = {name: hello.knobs[name].start for name in link.held if name in hello.knobs}
    lease_ms = max(1, min(lease_ns // _NS_PER_MS, hello.max_lease_ms))
    return Place(hello.instance, start | dict(values), lease_ms)


def _release(watch: EngineWatch, now_ns: int) -> None:
    """Give back what is held there, and what is promised."""
    if watch.link is not None:
        watch.link.release(0, now_ns)
    watch.let_go()


def _epoch(watch: EngineWatch) -> int:
    return watch.link.last_epoch if watch.link is not None else 0
