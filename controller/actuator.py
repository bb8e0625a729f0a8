"""Carries decisions out: knobs to engines, limits to cgroups, and every one of them to the journal.

A decision about limits is told to the agent before it is carried out, and its acknowledgement
after. An engine is asked first, for somebody waits, and the agent told right after that: what we
die in between ends with its lease. In shadow mode a decision is only told. Whatever refuses (a
cgroup file, an engine) ends in an acknowledgement that says so
and a pause for that target, never in an exception in the loop.
"""

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from controller.actions import (
    LimitAction,
    Proposal,
    ReleaseKnobs,
    ReleaseLimit,
    SetKnobs,
    SetWeight,
    changes_of,
)
from controller.attribution import Cause
from controller.batching import BatchMemory
from controller.engines.told import Ack
from controller.forbidden import forbidden_knobs, forbids_weight
from controller.journal_rows import OPERATOR
from controller.limits.cgroup import CgroupError, Group, Hierarchies, cpu_group
from controller.limits.cpu import WEIGHT_FILES, read_weight
from controller.limits.holds import Lapsed
from controller.limits.limiter import Limiter
from controller.limits.memory import HIGH
from controller.neighbour_hands import NeighbourHands, attempt
from controller.policy_model import Mode
from controller.protection import Protection
from controller.watch import EngineWatch
from controller.wire import Channel


@dataclass(slots=True)
class _Pending:
    edge_ns: int | None


class Actuator:
    """The loop's hands. Told of targets by name; `""` in an action means the engine itself."""

    def __init__(
        self,
        channel: Channel,
        limiter: Limiter,
        hierarchies: Hierarchies,
        clock: Callable[[], int] = time.monotonic_ns,
        protection: Protection | None = None,
    ) -> None:
        """Limits go through `limiter`, which keeps the undo list; `clock` is the loop's.

        `protection` says what no limit is set on; by default it is asked of this machine.
        """
        self._channel = channel
        self._clock = clock
        self._limiter = limiter
        self._hierarchies = hierarchies
        self.neighbours = NeighbourHands(
            limiter, protection or Protection(hierarchies, clock=clock), self.event, clock
        )
        self._pending: dict[int, _Pending] = {}
        self._reactions: list[int] = []
        self._tag = 0
        self._guard_lost = False

    def heartbeat(self, now_ns: int) -> None:
        """Tell the guard that we live; say so once when it is gone."""
        if not self._limiter.heartbeat(now_ns) and not self._guard_lost:
            self._guard_lost = True
            self.event("guard_lost", "guard", {})

    def find_group(self, cgroup: str | None) -> tuple[Group | None, str, int | None]:
        """The group that rules a cgroup's CPU, why there is none, and its weight without us."""
        if cgroup is None:
            return None, "shares its cgroup with others: its CPU weight can't be set", None
        try:
            group = cpu_group(self._hierarchies, cgroup)
            held = next((h for h in self._limiter.held() if h.group == group), None)
            if held is not None:
                return group, "", None
            # one that is idle is so by its owner's will
            return group, "", read_weight(group) or None
        except CgroupError as error:
            return None, str(error), None

    def set_neighbours(
        self,
        cgroups: Mapping[str, str | None],
        engines: Mapping[str, EngineWatch],
        *,
        freezable: bool = False,
    ) -> None:
        """The neighbours there are now, by name, and their cgroups; others get theirs back.

        `freezable`: the class of one of them allows a freeze.
        """
        found = {name: self.find_group(cgroup)[0] for name, cgroup in cgroups.items()}
        self.neighbours.take_on(
            {name: group for name, group in found.items() if group is not None},
            [watch.group for watch in engines.values() if watch.group is not None],
            freezable=freezable,
        )

    def carry_out(
        self,
        watch: EngineWatch,
        mode: Mode,
        cause: Cause,
        proposal: Proposal,
        edge_ns: int | None,
    ) -> int:
        """Journal the decision, and do it in control mode; returns the decision's tag."""
        self._tag += 1
        limits: list[LimitAction] = []
        lost = False
        for action in proposal.actions if mode == "control" else ():
            if isinstance(action, SetKnobs | ReleaseKnobs):
                lost |= not self._ask_engine(watch, action, edge_ns)
            else:
                limits.append(action)
        signals = dict(watch.verdict.evidence) | {"backpressure": watch.pressure.value}
        ack = "shadow" if mode == "shadow" else "pending"
        self._decided(watch, mode, str(cause), proposal, signals, ack)
        if lost:
            now_ns = self._clock()
            self.acknowledged(Ack(self._tag, "lost", 0, "no connection to the engine"), now_ns)
        if limits:
            self._set_limits(watch, limits, proposal.reason, edge_ns)
        return self._tag

    def by_hand(
        self,
        watch: EngineWatch,
        mode: Mode,
        old: Mapping[str, float],
        values: Mapping[str, float],
        reason: str,
    ) -> int:
        """Journal that an operator decided; returns the decision's tag."""
        self._tag += 1
        proposal = Proposal((SetKnobs(values, old),), reason)
        self._decided(watch, mode, OPERATOR, proposal, {}, "pending")
        return self._tag

    def acknowledged(self, ack: Ack, now_ns: int) -> int | None:
        """Journal an engine's answer; the time from the edge that led to it, if one did."""
        self._tell_ack(ack.tag, ack.ack, ack.ack_ns, ack.detail)
        pending = self._pending.pop(ack.tag, None)
        if pending is None or pending.edge_ns is None or ack.ack not in {"applied", "pending"}:
            return None
        return now_ns - pending.edge_ns

    def take_reactions(self) -> list[int]:
        """Times from an edge to a limit read back, since the last call."""
        reactions, self._reactions = self._reactions, []
        return reactions

    def check_limits(self, engines: Mapping[str, EngineWatch]) -> None:
        """Find limits that others wrote or undid, and let go of them."""
        self.neighbours.check()
        try:
            noticed = self._limiter.check()
        except CgroupError as error:
            self.event("limits", "undo list", {"error": str(error)})
            return
        for each in noticed:
            if isinstance(each, Lapsed):
                file = each.held.file
                self.event("limit_lapsed", str(file), {})
            else:
                file = each.entry.file
                self.event("foreign_write", str(file), {"found": each.found})
            self._let_go(engines, file)

    def give_back_knobs(self, watch: EngineWatch, now_ns: int) -> None:
        """Release the engine's lease."""
        if watch.link is not None and watch.link.held:
            watch.link.release(0, now_ns)
        watch.core = replace(watch.core, batch=BatchMemory())

    def give_back_limits(self, reason: str) -> None:
        """Undo every limit."""
        try:
            report = self._limiter.release_all()
        except CgroupError as error:
            self.event("undo", "limits", {"reason": reason, "error": str(error)})
            return
        self.neighbours.forget_all()
        if report.restored or report.kept or report.foreign:
            self.event("undo", "limits", {"reason": reason, "restored": len(report.restored)})

    def obey(self, watch: EngineWatch, now_ns: int) -> None:
        """Give back what is held for an engine and its policy does not allow."""
        name, detail = watch.policy.name, "the policy does not allow it any more"
        knobs = forbidden_knobs(watch.policy, watch.core.batch.point)
        if knobs:
            self.give_back_knobs(watch, now_ns)
            self.event("given_back", name, {"what": ", ".join(knobs), "reason": detail})
        if watch.group is not None and forbids_weight(watch.policy, watch.cpu.weight):
            self._give_back(name, watch.group)
            watch.cpu = replace(watch.cpu, weight=None, raised=False)
            self.event("given_back", name, {"what": "cpu_weight", "reason": detail})

    def drop(self, watch: EngineWatch, others: Collection[EngineWatch], now_ns: int) -> None:
        """An engine is gone from the targets: give back what we hold for it and close it.

        What neighbours are held to stays while there are `others`, whose calm ends it.
        """
        self.give_back_knobs(watch, now_ns)
        if watch.group is not None:
            self._give_back(watch.policy.name, watch.group)
        if not others and not watch.follows:
            self.neighbours.give_all_back()
        wanted = {name for other in others for name in other.sentinel.holds}
        for name, held in watch.sentinel.holds.items():
            if name not in wanted:
                gone = "the engine is gone"
                self.neighbours.do(ReleaseLimit(name, "memory_high", held), gone)
        watch.close()

    def reset(self) -> None:
        """An operator changed the mode: what others wrote before may be limited again."""
        self._limiter.reset()
        self.neighbours.reset()

    def event(self, kind: str, subject: str, detail: Mapping[str, Any]) -> None:
        """Journal a change of state."""
        self._channel.send(
            {
                "type": "event",
                "mono_ns": self._clock(),
                "kind": kind,
                "subject": subject,
                "detail": dict(detail),
            }
        )

    def _ask_engine(
        self, watch: EngineWatch, action: SetKnobs | ReleaseKnobs, edge_ns: int | None
    ) -> bool:
        """Whether it could be asked."""
        now_ns, link = self._clock(), watch.link
        if isinstance(action, SetKnobs):
            self._pending[self._tag] = _Pending(edge_ns)
            return link is not None and link.set(action.values, self._tag, now_ns)
        return link is not None and link.release(self._tag, now_ns)

    def _set_limits(
        self,
        watch: EngineWatch,
        actions: Iterable[LimitAction],
        reason: str,
        edge_ns: int | None,
    ) -> None:
        """One answer for all of them: refused if one was."""
        began_ns = self._clock()
        refusals = [
            why for action in actions if (why := self._set_limit(watch, action, reason)) is not None
        ]
        now_ns = self._clock()
        word = "refused" if refusals else "applied"
        self._tell_ack(self._tag, word, now_ns - began_ns, "; ".join(refusals))
        if not refusals and edge_ns is not None:
            self._reactions.append(now_ns - edge_ns)

    def _set_limit(self, watch: EngineWatch, action: LimitAction, reason: str) -> str | None:
        """Carry one action out; why it was refused, or None."""
        if action.target:
            return self.neighbours.do(action, reason)
        group = watch.group
        if isinstance(action, ReleaseLimit):
            return self._release(group)
        if not isinstance(action, SetWeight):
            return "nothing but its weight is set on an engine"
        if group is None:
            why: str | None = "its cgroup is gone"
        else:
            weight, limiter = action.weight, self._limiter
            why = attempt(lambda: limiter.set_weight(group, weight, reason), group, self.event)
        if why is not None:
            watch.base_weight = None
            watch.cpu = replace(watch.cpu, weight=None, raised=False)
        return why

    def _release(self, group: Group | None) -> str | None:
        if group is None:
            return "its cgroup is gone"
        try:
            report = self._limiter.release(group)
        except CgroupError as error:
            return str(error)
        return "; ".join(each.why for each in report.kept) or None

    def _give_back(self, subject: str, group: Group) -> None:
        why = self._release(group)
        if why is not None:
            self.event("undo", subject, {"error": why})

    def _let_go(self, engines: Mapping[str, EngineWatch], file: Path) -> None:
        for watch in engines.values():
            ours = watch.group is not None and watch.group.directory == file.parent
            if ours and file.name in WEIGHT_FILES.values():
                watch.cpu = replace(watch.cpu, weight=None, raised=False)
        if file.name == HIGH:
            for name, group in self.neighbours.groups.items():
                for watch in engines.values() if group.directory == file.parent else ():
                    watch.sentinel = watch.sentinel.without(name)
        self.neighbours.let_go(file)

    def _tell_ack(self, tag: int, ack: str, ack_ns: int, detail: str) -> None:
        self._channel.send(
            {"type": "ack", "tag": tag, "ack": ack, "ack_us": ack_ns // 1000, "detail": detail}
        )

    def _decided(
        self,
        watch: EngineWatch,
        mode: Mode,
        cause: str,
        proposal: Proposal,
        signals: Mapping[str, float],
        ack: str,
    ) -> None:
        """Journal a decision under the tag it has."""
        changes = changes_of(proposal, watch.policy.name, watch.key)
        self._channel.send(
            {
                "type": "decision",
                "tag": self._tag,
                "mono_ns": self._clock(),
                "engine": watch.policy.name,
                "mode": mode,
                "cause": cause,
                "action": [change.as_dict() for change in changes],
                "signals": signals,
                "reason": proposal.reason,
                "ack": ack,
            }
        )
