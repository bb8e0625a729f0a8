"""The fast loop: collect, decide, actuate; every tick, and at once when the kernel raises an edge.

One thread, one selector, no call in it that waits for anybody. Decisions are made by the pure
functions of `cpu_limits` and `batching`; here is only the order, the clock and the wiring. A tick
is about a few engines, so that none is long: those whose turn it is, or those with an edge.
"""

import gc
import selectors
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any, Final, Protocol

from bpf.layout import Edge
from bpf.readers import CounterReader
from controller.actions import Proposal
from controller.actuator import Actuator
from controller.backpressure import Queues
from controller.batching import BatchMemory
from controller.changed import changed
from controller.cpu_limits import CpuMemory
from controller.engines.client import EngineClient
from controller.engines.link import EngineLink
from controller.figures import Figures
from controller.hands import Hands
from controller.memory_round import decide_memory_for, look_at_memory
from controller.memory_sentinel import SentinelMemory
from controller.neighbour_watch import NeighbourWatch, in_turn
from controller.node import Node
from controller.pace import EDGE_SPACING_NS, period_ms, what_is_due
from controller.policy import policy_from_json
from controller.policy_model import Engine, Mode, Policy
from controller.rank_watches import RankWatches
from controller.ranks import merged
from controller.recording import Inputs, Recordings, decide_batch_of, decide_cpu_of
from controller.rollback import Trial
from controller.signals import Signals
from controller.timer import Timer
from controller.timing import Timing
from controller.turn import Turn
from controller.warm import SAVE_NS, Learnt, parse_learnt
from controller.watch import EngineWatch
from controller.watch_status import status_of
from controller.wire import Channel, EngineTarget, Message, parse_targets

STATUS_EVERY_NS: Final = 250_000_000
CALM_STATUS_EVERY_NS: Final = 1_000_000_000
"""While there is little to tell: a status message costs as much as a round."""
LIMITS_EVERY_NS: Final = 500_000_000
"""So that what somebody else wrote is left to him, and told, within a second."""
SWEEP_NS: Final = 10_000_000_000
"""Garbage is collected beside decisions where Python does not do it in their middle. What is left
to it are cycles, and those come of errors: ten seconds of them are little."""

NOT_OURS: Final = frozenset({"lease_held", "set_refused", "foreign_write", "lease_given_up"})
"""Notices of an engine after which we hold none of its knobs any more."""

NOT_THE_SAME: Final = frozenset({"engine_restarted", "engine_changed", "engine_lost"})
"""Notices after which nothing that was learnt of an engine need be true any more."""

HURRIES: Final = frozenset({"targets", "policy", "inject"})
"""Messages after which there is more to look at, or other."""

PAUSED_NS: Final = 2_000_000_000
"""A tick that comes so late follows a pause: we were stopped, or the machine was."""

LATE_NS: Final = 5_000_000


class Edges(Protocol):
    """Where edges come from: a `Ring` that hands them to `Loop.on_edge`."""

    def fileno(self) -> int:
        """Readable when there are some."""

    def consume(self) -> int:
        """Hand on all there are; returns how many."""


class Loop:
    """Runs until the agent is gone."""

    def __init__(
        self,
        policy: Policy,
        channel: Channel,
        reader: CounterReader,
        actuator: Actuator,
        cpus: int,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """`clock` is CLOCK_MONOTONIC in ns, but for tests."""
        self._policy = policy
        self._mode: Mode = policy.mode
        self._channel = channel
        self._reader = reader
        self._actuator = actuator
        self._cpus = cpus
        self._clock = clock
        self._hands = Hands(channel, actuator)
        self._engines: dict[str, EngineWatch] = {}
        self._ranks = RankWatches()
        self._neighbours: dict[str, NeighbourWatch] = {}
        self._node = Node(cpus)
        self._rows: set[int] = set()
        self._edges: dict[int, int] = {}
        self._turn = Turn()
        self._injected: tuple[float, int] = (0.0, 0)
        self._learnt: dict[str, Learnt] = {}
        self._saved_ns = 0
        self._selector = selectors.DefaultSelector()
        self._registered: dict[str, EngineClient] = {}
        self._last_tick_ns: int | None = None
        self._status_ns = 0
        self._limits_ns = 0
        self._swept_ns = 0
        self._edge_tick_ns = 0
        self._due_ns = 0
        self._news = False
        self._calm = False
        self._recordings = Recordings()
        self._ticks = 0
        self._late = 0
        self._timings = {
            name: Timing() for name in ("collect", "decide", "actuate", "tick", "reaction", "late")
        }

    def on_edge(self, edge: Edge) -> None:
        """Note that a threshold was crossed; the next turn of `run` ticks at once."""
        if edge.slot in self._rows:
            self._edges.setdefault(edge.slot, edge.at_ns)

    def run(self, edges: Edges | None) -> None:
        """Tick until the agent's end of the channel closes."""
        self._selector.register(self._channel, selectors.EVENT_READ, self._on_agent)
        if edges is not None:
            self._selector.register(edges, selectors.EVENT_READ, edges.consume)
        timer = Timer()
        self._selector.register(timer, selectors.EVENT_READ, timer.clear)
        self._due_ns = self._clock()
        try:
            while True:
                edges_due_ns = self._edges_due_ns()
                timer.set(min(self._due_ns, edges_due_ns or self._due_ns) - self._clock())
                self.listen(None)
                now_ns = self._clock()
                due = what_is_due(now_ns, self._due_ns, self._edges_due_ns())
                if due == "edges":
                    self.tick_on_edges(now_ns)
                    # calm as it was, it is no more
                    self._due_ns = min(self._due_ns, now_ns + self._period_ns())
                elif due == "tick":
                    self._timings["late"].add(now_ns - self._due_ns)
                    self._late += now_ns - self._due_ns > LATE_NS
                    self.tick(now_ns, self._turn.take(self._all()))
                    self._due_ns = now_ns + self._period_ns()
        except EOFError:
            pass
        finally:
            self.stop()
            timer.close()

    def listen(self, wait_s: float | None) -> None:
        """Take in what comes within `wait_s`, or whenever: messages, engines' answers, edges."""
        for key, _ in self._selector.select(wait_s):
            key.data()
        now_ns = self._clock()
        edges_due_ns = self._edges_due_ns()
        if edges_due_ns is not None and now_ns >= edges_due_ns:
            return  # somebody is late; the rest has time until the tick
        self._take_answers(now_ns)
        self._follow_hands(now_ns)

    def _edges_due_ns(self) -> int | None:
        """When there is to be a tick about edges; None where there are none."""
        return self._edge_tick_ns + EDGE_SPACING_NS if self._edges else None

    def tick(self, now_ns: int, watches: Sequence[EngineWatch] | None = None) -> None:
        """One round about these engines, or about all; what is due beside that comes after it."""
        self._news = False
        self._actuator.neighbours.follow_freezes()
        if self._last_tick_ns is not None and now_ns - self._last_tick_ns >= PAUSED_NS:
            self._resume(now_ns, now_ns - self._last_tick_ns)
        for each in in_turn(list(self._neighbours.values()), self._ticks):
            run_ns = self._reader.run_ns(each.target.row)
            each.take(now_ns, run_ns, self._actuator.neighbours.is_held(each.target.name))
        watches = self._all() if watches is None else watches
        decided = self._round(now_ns, watches)
        self._actuator.heartbeat(now_ns)
        for watch in watches:
            watch.look_ahead()
            watch.look_around(now_ns)
        look_at_memory(self._all(), self._actuator.neighbours.free_groups, now_ns)
        groups = self._actuator.neighbours.groups
        self._node.look(self._policy, now_ns, self._all(), self._neighbours.values(), groups)
        self._last_tick_ns = now_ns
        if now_ns - self._limits_ns >= LIMITS_EVERY_NS:
            self._limits_ns = now_ns
            self._actuator.check_limits(self._engines)
            self._look_for_ranks(now_ns)
        if now_ns - self._saved_ns >= SAVE_NS:
            self._saved_ns = now_ns
            self._hand_over_learnt()
        self._follow_hands(now_ns)
        self._follow_links(now_ns, watches)
        self._take_answers(now_ns)
        # turning inputs into text takes as long as a round, and is left to ticks without decisions
        if not decided and not self._sample(now_ns, watches):
            self._recordings.hand_over(self._channel)
        if not decided and now_ns - self._swept_ns >= SWEEP_NS and not gc.isenabled():
            self._swept_ns = now_ns
            gc.collect()
        if now_ns - self._status_ns >= (CALM_STATUS_EVERY_NS if self._calm else STATUS_EVERY_NS):
            self._status_ns = now_ns
            self._channel.flush()
            # an agent that does not read gets no more of what it can do without
            if not self._channel.wants_write:
                self._channel.send(self._status())

    def tick_on_edges(self, now_ns: int) -> None:
        """A round about the engines that raised an edge, and nothing beside that."""
        watches = [watch for watch in self._all() if watch.row in self._edges]
        self._edge_tick_ns = now_ns
        self._round(now_ns, watches)
        self._edges.clear()
        self._follow_links(now_ns, watches)
        self._take_answers(now_ns)

    def stop(self) -> None:
        """Give everything back and close what is open."""
        self._give_back("the controller stops")
        for watch in self._all():
            watch.close()
        self._node.close()
        self._selector.close()

    def _resume(self, now_ns: int, paused_ns: int) -> None:
        """Nothing that was going on before a pause says anything about now."""
        self._actuator.event("loop_paused", "loop", {"for_ms": paused_ns // 1_000_000})
        for watch in self._all():
            watch.resume(now_ns)

    def _round(self, now_ns: int, watches: Sequence[EngineWatch]) -> bool:
        """Collect, decide, actuate; whether anything was decided."""
        signals = [self._collect(now_ns, watch) for watch in watches]
        collected_ns = self._clock()
        decisions = []
        if self._mode != "observe":
            decisions = self._decide(self._face(zip(watches, signals, strict=True)))
        decided_ns = self._clock()
        for watch, inputs, proposal in decisions:
            edge_ns = self._edges.get(watch.row)
            tag = self._actuator.carry_out(watch, self._mode, inputs.cause, proposal, edge_ns)
            self._recordings.decided(tag, watch.policy.name, inputs)
            watch.restart_window()
        actuated_ns = self._clock()
        for watch in watches:
            self._edges.pop(watch.row, None)
        self._timings["collect"].add(collected_ns - now_ns)
        self._timings["decide"].add(decided_ns - collected_ns)
        if decisions:
            self._timings["actuate"].add(actuated_ns - decided_ns)
        self._timings["tick"].add(actuated_ns - now_ns)
        self._ticks += 1
        return bool(decisions)

    def _sample(self, now_ns: int, watches: Iterable[EngineWatch]) -> bool:
        """Write down now and then what there was to decide on; whether it was time to."""
        seen = [
            (watch, watch.signals)
            for watch in watches
            if watch.wants_sample(now_ns) and watch.signals is not None
        ]
        for watch, inputs in self._face(seen) if seen else ():
            watch.sampled_ns = now_ns
            self._recordings.sampled(watch.policy.name, inputs, watch.steps)
        return bool(seen)

    def _collect(self, now_ns: int, watch: EngineWatch) -> Signals:
        watch.look_first(now_ns)
        value, until_ns = self._injected
        return watch.take(
            now_ns,
            self._reader.counters(watch.row),
            sum(each.ran_ns for each in self._neighbours.values()),
            value if now_ns < until_ns else 0.0,
            self._policy.controller.neighbour_pressure,
        )

    def _face(
        self, seen: Iterable[tuple[EngineWatch, Signals]]
    ) -> list[tuple[EngineWatch, Inputs]]:
        """All that is to be decided on."""
        hands, node = self._actuator.neighbours, self._node
        limitable = hands.limitable(
            each.view(node.tenants.get(each.target.name))
            for each in self._neighbours.values()
            if each.target.limit and each.target.cgroup is not None
        )
        pressure = self._policy.controller.neighbour_pressure
        return [
            (watch, watch.inputs(self._mode, signals, pressure, node.view(watch, limitable)))
            for watch, signals in seen
        ]

    def _decide(
        self, faced: list[tuple[EngineWatch, Inputs]]
    ) -> list[tuple[EngineWatch, Inputs, Proposal]]:
        if self._mode == "observe":
            return []
        decisions = []
        hands = self._actuator.neighbours
        for watch, faced_with in faced:
            # what the engine before decided about the neighbours holds for this one too
            inputs = changed(faced_with, cpu=changed(faced_with.cpu, hold=hands.hold))
            proposal = decide_memory_for(watch, inputs, self._actuator.event)
            if proposal is not None:
                decisions.append((watch, inputs, proposal))
            watch.cpu, proposal = decide_cpu_of(inputs)
            hands.hold = watch.cpu.hold
            if proposal is not None:
                decisions.append((watch, inputs, proposal))
            watch.core, proposal = decide_batch_of(inputs, watch.sentinel)
            if proposal is not None:
                decisions.append((watch, inputs, proposal))
        return decisions

    def _period_ns(self) -> int:
        holding = self._hands.active or self._actuator.neighbours.holding
        watches = self._all()
        ms = period_ms(self._policy.controller, watches, holding=holding)
        if self._news:
            ms = min(ms, self._policy.controller.scheduler_tick_interval_ms)
        self._calm = ms > self._policy.controller.scheduler_tick_interval_ms
        return int(ms * 1e6) // self._turn.ticks(len(watches))

    def _hurry(self, now_ns: int) -> None:
        """There is news: what comes of it is wanted soon, however calm it is."""
        self._news, self._status_ns = True, 0
        self._due_ns = min(self._due_ns, now_ns)

    def _follow_hands(self, now_ns: int) -> None:
        if self._hands.active:
            self._hands.tick(self._by_key(), now_ns)

    def _follow_links(self, now_ns: int, watches: Iterable[EngineWatch]) -> None:
        for watch in watches:
            if watch.link is not None:
                watch.link.tick(now_ns)
                watch.link.on_writable(now_ns)
        # first all that went, then all that came: a new connection may have an old one's number
        links = {key: watch.link for key, watch in self._by_key().items() if watch.link}
        for key, known in list(self._registered.items()):
            if key not in links or links[key].client is not known:
                self._selector.unregister(self._registered.pop(key))
        for key, link in links.items():
            client = link.client
            if client is not None and key not in self._registered:
                self._selector.register(client, selectors.EVENT_READ, self._reader_of(link))
                self._registered[key] = client

    def _reader_of(self, link: EngineLink) -> Callable[[], None]:
        return lambda: link.on_readable(self._clock())

    def _take_answers(self, now_ns: int) -> None:
        for watch in self._all():
            if watch.link is None:
                continue
            for ack in watch.link.take_acks():
                reaction_ns = self._actuator.acknowledged(ack, now_ns)
                if reaction_ns is not None:
                    self._timings["reaction"].add(reaction_ns)
            for notice in (*watch.link.take_notices(), *watch.figures.take_notices()):
                self._hurry(now_ns)
                if notice.kind in NOT_OURS:
                    watch.let_go()
                    self._hands.let_go(watch, notice.detail)
                elif notice.kind in NOT_THE_SAME:
                    watch.forget()
                    if notice.kind == "engine_restarted":
                        watch.figures = Figures()
                elif notice.kind == "engine_seen":
                    watch.remember(self._learnt)
                self._actuator.event(notice.kind, watch.key, {"detail": notice.detail})
        for reaction_ns in self._actuator.take_reactions():
            self._timings["reaction"].add(reaction_ns)

    def _on_agent(self) -> None:
        if self._channel.wants_write:
            self._channel.flush()
        for message in self._channel.receive():
            self.take(message)

    def take(self, message: Message) -> None:
        """Do what a message of the agent says."""
        if message["type"] in HURRIES:
            self._hurry(self._clock())
        match message["type"]:
            case "targets":
                self._set_targets(message)
            case "mode":
                self._set_mode(message["mode"], message.get("reason", ""))
            case "policy":
                self._set_policy(policy_from_json(message["policy"]), message["afresh"])
            case "learnt":
                self._learnt = {
                    key: learnt
                    for key, raw in message["engines"].items()
                    if (learnt := parse_learnt(raw)) is not None
                }
            case "inject":
                until_ns = self._clock() + int(message["duration_ms"] * 1e6)
                self._injected = (message["value"], until_ns)
            case "by_hand":
                self._hands.ask(message, self._by_key(), self._mode, self._clock())
            case "recorded":
                self._hands.recorded(message, self._by_key(), self._clock())
            case "unfinished":
                self._hands.take_up(message, self._by_key(), self._clock())
            case "hand_back":
                names = message["engines"] or None
                reason = message["reason"]
                given = self._hands.give_back(names, reason, self._by_key(), self._clock())
                self._channel.send({"type": "handed_back", "id": message["id"], "engines": given})
            case "queues":
                for watch in self._all():
                    if (queues := message["engines"].get(watch.policy.name)) is not None:
                        watch.queues = Queues(**queues)

    def _set_targets(self, message: Message) -> None:
        engines, neighbours = parse_targets(message)
        policies = {engine.name: engine for engine in self._policy.engines}
        old = self._engines
        kept = {
            target.name: old.pop(target.name)
            for target in engines
            if target.name in old and self._is_same(old[target.name], target)
        }
        # first what went gives back, so that what comes finds its cgroup as it is without us
        for watch in old.values():
            self._actuator.drop(watch, kept.values(), self._clock())
        self._engines = {
            target.name: kept.get(target.name) or self._watch(policies[target.name], target)
            for target in engines
        }
        self._look_for_ranks(self._clock())
        known = self._neighbours
        self._neighbours = {}
        self._hands.mark(self._by_key())
        self._follow_links(self._clock(), self._all())
        limitable = {each.name: each.cgroup if each.limit else None for each in neighbours}
        freezable = [each.name for each in neighbours if each.limit and each.freeze_ms]
        self._actuator.set_neighbours(limitable, self._engines, freezable=bool(freezable))
        can_be_idle = self._actuator.neighbours.may_be_idle
        for each in neighbours:
            its = changed(each, idle=each.limit and each.idle and each.name in can_be_idle)
            self._neighbours[each.name] = NeighbourWatch(its, known.get(each.name))
        floors = {each.name: each.min_cores for each in neighbours}
        idle = [name for name, each in self._neighbours.items() if each.target.idle]
        self._actuator.neighbours.respect(floors, freezable, idle)
        self._rows = {watch.row for watch in self._engines.values()}

    def _all(self) -> list[EngineWatch]:
        """Every engine, and every further rank of one."""
        return [*self._engines.values(), *self._ranks.all]

    def _by_key(self) -> dict[str, EngineWatch]:
        return {watch.key: watch for watch in self._all()}

    def _look_for_ranks(self, now_ns: int) -> None:
        """See which ranks came and went."""
        lease_ms = self._policy.controller.lease_ms
        for watch in self._ranks.look(self._engines.values(), lease_ms, now_ns):
            self._actuator.drop(watch, (), now_ns)

    def _hand_over_learnt(self) -> None:
        """Tell the agent what to keep over a restart, where it changed."""
        for watch in self._engines.values():
            key, learnt = watch.learnt(self._learnt)
            if learnt is None or self._learnt.get(key) == learnt:
                continue
            self._learnt[key] = learnt
            self._channel.send({"type": "learnt", "key": key, "learnt": learnt.as_dict()})

    def _is_same(self, watch: EngineWatch, target: EngineTarget) -> bool:
        group, _, _ = self._actuator.find_group(target.cgroup)
        return watch.row == target.row and watch.group == group

    def _watch(self, engine: Engine, target: EngineTarget) -> EngineWatch:
        group, detail, weight = self._actuator.find_group(target.cgroup)
        socket = self._policy.socket_of(engine)
        watch = EngineWatch(engine, target.row, group, self._policy.controller.lease_ms, socket)
        watch.base_weight, watch.group_detail = weight, detail
        return watch

    def _set_policy(self, policy: Policy, afresh: Collection[str]) -> None:
        """Go on under another policy; targets that come or go with it follow in a message.

        What is held stays unless the policy forbids it; engines in `afresh` start from nothing.
        """
        self._policy = policy
        engines = {engine.name: engine for engine in policy.engines}
        for watch in self._all():
            engine = engines.get(watch.policy.name)
            if engine is None:
                continue
            watch.adopt(engine, policy.controller.lease_ms)
            self._actuator.obey(watch, self._clock())
            if engine.name in afresh and watch.by_hand is None:
                self._actuator.give_back_knobs(watch, self._clock())

    def _set_mode(self, mode: Mode, reason: str) -> None:
        if mode == self._mode:
            return
        if self._mode == "control":
            self._give_back(f"mode {mode}: {reason}")
        self._actuator.reset()
        self._actuator.neighbours.forget_all()
        for watch in self._all():
            watch.cpu, watch.sentinel = CpuMemory(), SentinelMemory()
            watch.core = replace(watch.core, batch=BatchMemory(), trial=Trial())
            if watch.group is not None and watch.base_weight is None:
                # refused before; after a change of mode it may be tried again
                _, watch.group_detail, watch.base_weight = self._actuator.find_group(
                    watch.group.path
                )
        self._actuator.event("mode", mode, {"from": self._mode, "reason": reason})
        self._mode = mode
        self._channel.send(self._status())

    def _give_back(self, reason: str) -> None:
        self._hands.give_back(None, reason, self._by_key(), self._clock())
        for watch in self._all():
            self._actuator.give_back_knobs(watch, self._clock())
        self._actuator.give_back_limits(reason)

    def _status(self) -> dict[str, Any]:
        return {
            "type": "status",
            "mode": self._mode,
            "engines": {
                name: merged(status_of(each) for each in (watch, *self._ranks.of(watch)))
                for name, watch in self._engines.items()
            },
            "neighbours": {
                name: each.status() | self._actuator.neighbours.status(name)
                for name, each in self._neighbours.items()
            },
            "loop": {
                "ticks": self._ticks,
                "late_ticks": self._late,
                **{name: timing.as_message() for name, timing in self._timings.items()},
            },
        }
