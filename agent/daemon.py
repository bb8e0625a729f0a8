"""`sitsd`: loads the programs, finds the targets, follows streams, serves, supervises.

One thread does all that; the HTTP servers have threads of their own and only read. It ends on
SIGTERM or SIGINT, giving everything back; pinned programs go on counting until it comes again.
"""

import logging
import os
import select
import time
from collections.abc import Collection, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Final

from prometheus_client import CollectorRegistry

from agent.adapters import Adapters
from agent.advisor import Advisor
from agent.annotations import Annotations
from agent.api import MAX_POLICY_BODY_BYTES, admin_app
from agent.candidates import Candidates
from agent.cgroup_paths import CgroupPaths
from agent.changes import Changes
from agent.discovery import Discovery
from agent.exporter import metrics_server
from agent.gateway import gateway_routes
from agent.gpu import Gpus
from agent.gpu_owners import Owners
from agent.history import Moment
from agent.http import HttpError, unix_server
from agent.judge import Judge
from agent.learnt import LearntFile
from agent.leaving import Leaving
from agent.lock import LockError, take_lock
from agent.log_lines import log_event
from agent.main_thread import MainThread
from agent.messages import Messages
from agent.metrics import FiguresCollector
from agent.moments import Moments
from agent.mps import MpsLimits
from agent.node import Node
from agent.node_labels import NodeLabels, labels_of
from agent.notify import notify
from agent.outcomes import AFTER_NS, Outcomes
from agent.page.answer import PageAnswer
from agent.page.app import page_routes
from agent.page.columns import Columns
from agent.policies import Hands, Policies
from agent.recorder import Recorder
from agent.roles import operators_only
from agent.sampler import Sampler
from agent.scrape import ControllerFigures, Sources, figures_of
from agent.spans import Meanwhile
from agent.state import State
from agent.stream_cause import StreamVerdict
from agent.streams import take
from agent.supervisor import Supervisor
from agent.targets import targets_of
from agent.tracing import start_tracing
from agent.versions import Versions
from agent.view import View
from agent.watchdog import watchdog
from bpf.layout import Event, EventKind
from controller.journal import Event as JournalEvent
from controller.journal import EventRow, Journal, JournalError
from controller.limits.cgroup import read_hierarchies
from controller.limits.protected import Kept, own_paths
from controller.limits.undo import UNDO_NAME, describe, run_undo
from controller.log_output import set_log_level
from controller.policy_model import Mode, Policy
from controller.start import Started

JOURNAL_NAME: Final = "journal.db"
LEARNT_NAME: Final = "learnt.json"
LOCK_NAME: Final = "sitsd.lock"

NO_CONTROLLER: Final = (
    "the controller does not run: it is started again; limits are undone, and engines are at their"
    " start values or under a lease that runs out"
)

_TICK_S: Final = 0.5
"""A turn waits so long for somebody to say something."""

_EARLY_S: Final = 0.25
"""What is due so soon is done in a turn that is made anyway."""

_ALONE_TICK_S: Final = 0.1
"""As long as there is no controller."""

_MOMENT_S: Final = 1.0
_LOAD_WINDOW_S: Final = 60.0
_PAST_EVENTS: Final = 1000
_LOG: Final = logging.getLogger("sits.daemon")


class StartError(RuntimeError):
    """The daemon can't start; the message says why."""


class Daemon:
    """Everything of one run."""

    def __init__(self, policy: Policy, source: Path, first: Started | None = None) -> None:
        """Set everything up; `StartError` if something that must be there can't be.

        `first` is a controller that waits for its handles, if one was started already.
        """
        self._policy = policy
        agent = policy.agent
        set_log_level(agent.log_level)
        for directory in (agent.run_dir, agent.state_dir, agent.admin_socket.parent):
            try:
                directory.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise StartError(f"could not make directory {directory}: {error}") from None
        try:
            self._lock = take_lock(agent.run_dir / LOCK_NAME)
        except LockError as error:
            raise StartError(str(error)) from None
        self._undo_path = agent.run_dir / UNDO_NAME
        for line in describe(run_undo(self._undo_path)):
            _LOG.warning("an earlier run left limits behind: %s", line)
        try:
            journal = Journal(agent.state_dir / JOURNAL_NAME)
        except JournalError as error:
            raise StartError(str(error)) from None
        journal.lose_pending()
        self._recorder = Recorder(journal)
        self._learnt = LearntFile(agent.state_dir / LEARNT_NAME)
        # what starts meanwhile is ready when the programs are
        self._supervisor = Supervisor(
            policy,
            self._undo_path,
            self._forget_open,
            lambda: (self._learnt.message(), self._changes.unfinished()),
            first,
        )
        self._outcomes = Outcomes(self._recorder.outcome)
        self._state = State(policy)
        self._gpu_owners = Owners()
        self._gpus = Gpus(policy.agent.gpu_interval_ms, self._gpu_owners.owner)
        self._state.gpus = self._gpus
        self._labels = NodeLabels(policy.agent.nfd_file)
        self._advisor = Advisor()
        self._columns = Columns()
        hierarchies = read_hierarchies()
        self._discovery = Discovery(policy, hierarchies)
        ours = own_paths(hierarchies.v1_cpu is not None, (1, os.getpid()))
        self._asked = policy
        self._annotations = Annotations()
        self._candidates = Candidates(CgroupPaths(hierarchies), Kept(ours))
        self._leaving = Leaving()
        self._slos = {engine.name: engine.slo for engine in policy.engines}
        self._versions = Versions()
        self._versions.ask({engine.name: engine.version_header for engine in policy.engines})
        self._names: Mapping[int, str] = {}
        self._judge = Judge(self._state, self._slos, self._take)
        self._tracing, problem = start_tracing(policy, self._meanwhile)
        self._state.set_problems("spans", [problem] if problem else [])
        self._node = Node(policy)
        self._sampler = Sampler(self._node.counters, self.wake)
        self._moments = Moments(
            self._state,
            self._node,
            self._advisor,
            self._columns,
            self._candidates,
            self._discovery,
        )
        self._stopping = False
        self._reload_asked = False
        self._mode_asked: tuple[Mode, str] | None = None
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._main = MainThread(self.wake)
        self._watchdog = watchdog()
        self._changes = Changes(
            self._recorder,
            self._main,
            self._tell_controller,
            self.wake,
            journal.open_changes(),
        )
        self._messages = Messages(
            self._state,
            self._sampler,
            self._recorder,
            self._changes,
            self._learnt,
            self._tracing,
            self._await_outcome,
            self._event,
        )
        hands = Hands(
            enforce=self._enforce,
            note=self._event,
            mode=lambda: self._supervisor.mode,
            load=self._load,
            gaps=lambda engine: self._node.histogram("gap", engine),
        )
        self._policies = Policies(policy, source, self._main, hands, _past(journal))
        view = View(
            self._state,
            self._node,
            self._sampler,
            journal,
            hierarchies,
            self._policies,
            self._changes,
            self._controller_fields,
            self._ask_mode,
            self._inject,
        )
        sources = Sources(
            self._state,
            self._node,
            self._sampler,
            self._advisor,
            self._versions,
            self._gpus,
            self._recorder,
            self._policies,
            self._tracing,
            self._controller_figures,
        )
        registry = CollectorRegistry()
        registry.register(FiguresCollector(lambda: figures_of(sources)))
        with ExitStack() as undo:
            undo.callback(self._recorder.close)
            undo.callback(self._supervisor.stop)
            try:
                self._admin = unix_server(
                    agent.admin_socket,
                    admin_app(view, operators_only(lambda: self._policies.policy.agent.operators)),
                    max_body=MAX_POLICY_BODY_BYTES,
                )
                undo.callback(self._admin.stop)
                more = {
                    **page_routes(PageAnswer(view, self._columns, self._gpus.heat.answer)),
                    **gateway_routes(self._loads),
                }
                self._metrics = metrics_server(agent, registry, self._healthz, more)
            except HttpError as error:
                raise StartError(str(error)) from None
            undo.pop_all()
        # only now, when nothing can refuse the start any more
        self._node.load(self._on_event, self._wants_firsts)
        self._state.set_problems("kernel", self._node.problems)
        self._adapters = Adapters(policy)
        self._mps = MpsLimits(policy.agent.mps_dir, self._event, self.wake)
        self._state.mps = self._mps.status
        self._supervisor.handles = self._node.handles

    def run(self) -> None:
        """Serve until `stop`."""
        self._admin.start()
        self._metrics.start()
        self._sampler.start()
        self._event("start", "sitsd", {"mode": self._policy.mode, "loaded": self._node.how})
        _LOG.info(
            "started in mode %s, metrics at %s, programs %s",
            self._policy.mode,
            self._metrics.address,
            self._node.how,
        )
        look_at_s = moment_at_s = 0.0
        try:
            while not self._stopping:
                now_s = time.monotonic()
                every_s = self._policy.agent.discovery_interval_ms / 1e3
                if now_s >= look_at_s - min(_EARLY_S, every_s / 4):
                    self._look()
                    if look_at_s == 0.0:
                        notify("READY=1")
                    look_at_s = max(look_at_s, now_s) + every_s
                if now_s >= moment_at_s - _EARLY_S:
                    moment_at_s = max(moment_at_s, now_s) + _MOMENT_S
                    self._look_inside()
                    self._moments.take()
                # first of all: what holds the SLO is not to wait for what watches a GPU
                self._supervisor.tick()
                self._node.tick(now_s)
                self._adapters.tick()
                self._state.set_adapters(self._adapters.status())
                self._gpus.tick()
                self._mps.tick(self._policy, self._supervisor.mode, self._state.engines())
                heard_s = max(self._state.heard_s, self._supervisor.started_s)
                self._watchdog.tick(now_s, self._supervisor.pid is not None, now_s - heard_s)
                self._change_policy()
                self._change_mode()
                self._changes.tick()
                self._supervisor.tell_queues(self._sampler.queues(), now_s)
                for message in self._supervisor.receive():
                    self._messages.take(message)
                self._judge.settle()
                self._outcomes.settle(time.monotonic_ns(), self._moment)
                tick_s = _TICK_S if self._supervisor.pid is not None else _ALONE_TICK_S
                self._wait(min(now_s + tick_s, look_at_s, moment_at_s, self._adapters.due_s))
        finally:
            self.close()

    def _wait(self, until_s: float) -> None:
        """Sleep until then, or until somebody wakes us, and take the events that came meanwhile.

        The controller wakes us by speaking, the kernel once events begin to fill their ring:
        streams begin and end many times a second, and no turn is made for each of them.
        """
        waker = select.poll()
        for fd in (self._wake_read, self._supervisor.fileno(), self._node.fileno()):
            if fd is not None:
                waker.register(fd, select.POLLIN)
        waker.poll(max(0.0, until_s - time.monotonic()) * 1e3)
        self._node.consume()
        with suppress(BlockingIOError):
            os.read(self._wake_read, 64)

    def stop(self) -> None:
        """End `run` soon; safe in a signal handler."""
        self._stopping = True
        self.wake()

    def reload(self) -> None:
        """Have the policy file read again soon; safe in a signal handler."""
        self._reload_asked = True
        self.wake()

    def wake(self) -> None:
        """Have the next turn come now; from any thread, and safe in a signal handler."""
        # a full pipe wakes as well, and one that is closed needs to wake nobody
        with suppress(OSError):
            os.write(self._wake_write, b".")

    def close(self) -> None:
        """Give everything back and close it."""
        notify("STOPPING=1")
        self._main.close()
        self._policies.give_up("the agent stops")
        self._metrics.stop()
        self._admin.stop()
        self._mps.stop()
        self._supervisor.stop()
        self._changes.close("the agent stops")
        self._adapters.stop()
        self._gpus.stop()
        self._labels.close()
        self._sampler.stop()
        self._judge.settle(at_once=True)
        if self._tracing is not None:
            self._tracing.close()
        self._event("stop", "sitsd", {})
        self._node.close()
        self._recorder.close()
        for fd in (self._wake_read, self._wake_write, self._lock):
            os.close(fd)

    def _look(self) -> None:
        surroundings = self._discovery.look()
        # an engine that is gone ended its streams: that has to be heard while its row has its name
        self._node.consume()
        if any(not found.present for found in surroundings.engines):
            self._judge.settle(at_once=True)
        surroundings = self._leaving.hold(surroundings, self._state.streams.under_way)
        for found in surroundings.engines:
            if not found.present:
                self._state.streams.forget(found.name)
        surroundings, said = self._annotations.add(self._asked, surroundings)
        if said.policy != self._policy:
            self._adopt(said.policy, ())
        self._state.set_problems("annotations", said.problems)
        self._state.set_surroundings(surroundings)
        self._gpu_owners.set_surroundings(surroundings)
        problems = self._node.watch(surroundings)
        # only now: a connection without a stream is told apart from one that is not followed
        self._sampler.watch(surroundings.engines)
        problems += [
            f"{found.name}: {found.detail}" for found in surroundings.engines if found.detail
        ]
        self._state.set_problems("targets", problems)
        rows = self._node.rows
        self._names = {row: name for name, row in rows.items()}
        self._supervisor.set_targets(targets_of(surroundings, rows, self._policy))

    def _wants_firsts(self) -> bool:
        """Whether anybody asks when first chunks came, before their streams end."""
        return self._tracing is not None or self._policies.running is not None

    def _on_event(self, event: Event) -> None:
        name = self._names.get(event.stream.slot)
        if name is None or name not in self._slos:
            return
        self._sampler.heard(name, event.stream.connection)
        self._policies.stream(name, event)
        self._judge.take(name, event)

    def _take(self, name: str, event: Event, verdict: StreamVerdict) -> None:
        cause, evidence = str(verdict.cause), verdict.evidence
        starts = event.kind is EventKind.START
        version = self._versions.of(name, event.head) if starts else None
        slo = self._slos[name]
        ended = take(self._state.streams, event, name, slo, cause, evidence, version)
        if ended is not None:
            self._state.count_end(name, ended.reason, ended.good, ended.untold)
            self._versions.count(ended)
        if self._tracing is not None:
            self._tracing.stream(name, event, ended)

    def _meanwhile(self, engine: str, since_ns: int) -> Meanwhile:
        seconds = (time.monotonic_ns() - since_ns) / 1e9
        window = None
        if seconds >= _MOMENT_S:
            with self._state.lock:
                window = self._state.history(engine).window(seconds)
        return Meanwhile(
            pid=min(self._state.found(engine).pids, default=None),
            wait_ns=window.counters.wait_ns if window is not None else None,
        )

    def _tell_controller(self, message: Mapping[str, Any]) -> bool:
        return self._supervisor.send(message)

    def _forget_open(self) -> None:
        self._policies.controller_died()
        self._changes.controller_died()
        self._outcomes.forget()
        self._recorder.forget_open()
        if self._tracing is not None:
            self._tracing.forget_open()

    def _look_inside(self) -> None:
        """What is wrong with the agent itself, and with the GPUs."""
        if self._tracing is not None:
            problem = self._tracing.problem
            said = f"spans do not reach the collector: {problem}"
            self._state.set_problems("spans", [said] if problem else [])
        self._state.set_problems("gpu", self._gpus.problems)
        self._state.set_problems("mps", self._mps.problems)
        self._labels.show(labels_of(self._state.status()))
        self._state.set_problems("labels", [self._labels.problem] if self._labels.problem else [])
        journal = self._recorder.journal
        lost = journal.dropped + self._recorder.dropped
        said = (
            f"{journal.error}: {lost} rows are lost; nothing can be set by hand, the rest goes on"
        )
        self._state.set_problems("journal", [said] if journal.failing else [])
        if self._supervisor.pid is not None:
            self._state.set_problems("controller", [])
            return
        self._state.set_problems("engines", [])
        self._state.set_problems("controller", [NO_CONTROLLER])

    def _await_outcome(self, message: Mapping[str, Any]) -> None:
        engine, now = message["engine"], self._moment(message["engine"])
        with self._state.lock:
            earlier = self._state.history(engine).moment(now.at_ns - AFTER_NS)
        self._outcomes.decided(message["tag"], engine, now, earlier)

    def _moment(self, engine: str) -> Moment:
        """How an engine stands now, as far as outcomes need it."""
        return Moment(
            time.monotonic_ns(),
            self._node.counters(engine),
            ended=sum(self._state.ends(engine).values()),
            good=self._state.good(engine),
        )

    def _event(
        self, kind: str, subject: str, detail: Mapping[str, Any], mono_ns: int | None = None
    ) -> None:
        log_event(kind, subject, detail)
        self._recorder.event(
            JournalEvent(mono_ns or time.monotonic_ns(), kind, subject, dict(detail))
        )

    def _ask_mode(self, mode: Mode, reason: str) -> None:
        self._mode_asked = (mode, reason)
        self.wake()

    def _loads(self) -> Mapping[str, Mapping[str, Any] | None]:
        """What each engine says of its load now."""
        statuses = {e.name: self._state.engine_status(e.name) for e in self._policy.engines}
        return {name: each["now"] if each is not None else None for name, each in statuses.items()}

    def _inject(self, value: float, seconds: float, reason: str) -> bool:
        message = {"type": "inject", "value": value, "duration_ms": seconds * 1e3}

        def tell() -> bool:
            told = self._supervisor.send(message)
            if told and self._tracing is not None:
                self._tracing.injection(value, seconds, reason)
            return told

        told = self._main.call(tell)
        if told:
            detail = {"value": value, "seconds": seconds, "reason": reason}
            self._event("injected", "backpressure", detail)
        return told

    def _change_mode(self) -> None:
        if self._mode_asked is not None:
            (mode, reason), self._mode_asked = self._mode_asked, None
            self._policies.give_up(f"an operator set mode {mode}")
            if mode != self._supervisor.mode:
                self._outcomes.forget()
            self._supervisor.set_mode(mode, reason)

    def _change_policy(self) -> None:
        self._main.run()
        if self._reload_asked:
            self._reload_asked = False
            self._policies.reload_here()
        self._policies.tick(time.monotonic_ns())
        problem = self._policies.problem
        self._state.set_problems("policy", [problem] if problem else [])

    def _load(self, engine: str) -> float:
        """An engine's requests a second."""
        with self._state.lock:
            window = self._state.history(engine).window(_LOAD_WINDOW_S)
        return window.counters.requests / window.seconds if window and window.seconds else 0.0

    def _enforce(self, policy: Policy, mode: Mode | None, afresh: Collection[str]) -> None:
        """Go on under another policy, everywhere and at once."""
        self._asked = policy
        self._adopt(policy, afresh)
        if mode is not None:
            self._supervisor.set_mode(mode, "the policy says so")
        self._look()

    def _adopt(self, policy: Policy, afresh: Collection[str]) -> None:
        slos = {engine.name: engine.slo for engine in policy.engines}
        if slos != self._slos:
            # what was late by another SLO is no outcome
            self._outcomes.forget()
        self._judge.set_slos(slos)
        if self._tracing is not None:
            self._tracing.set_slos(slos)
        self._policy, self._slos = policy, slos
        set_log_level(policy.agent.log_level)
        self._state.set_policy(policy)
        self._advisor.keep(set(slos))
        self._columns.keep(slos)
        self._versions.ask({engine.name: engine.version_header for engine in policy.engines})
        self._discovery.policy = policy
        self._node.set_policy(policy)
        self._adapters.set_policy(policy)
        self._gpus.set_interval(policy.agent.gpu_interval_ms)
        self._labels.move(policy.agent.nfd_file)
        self._supervisor.set_policy(policy, afresh)

    def _controller_fields(self) -> Mapping[str, Any]:
        asked = self._mode_asked
        return {
            "mode": asked[0] if asked is not None else self._supervisor.mode,
            "alive": self._state.status() is not None and self._supervisor.pid is not None,
            "pid": self._supervisor.pid,
            "restarts": max(0, self._supervisor.restarts),
        }

    def _controller_figures(self) -> ControllerFigures:
        up = bool(self._controller_fields()["alive"])
        return ControllerFigures(self._supervisor.mode, up, max(0, self._supervisor.restarts))

    def _healthz(self) -> tuple[bool, dict[str, Any]]:
        alive = self._controller_fields()["alive"]
        problems = list(self._node.problems)
        if not alive:
            problems.append("the controller does not answer")
        # what is measured without pins, or without streams, is less, but it is well
        well = alive and self._node.programs is not None
        return well, {"problems": problems, "mode": self._supervisor.mode}


def _past(journal: Journal) -> list[EventRow]:
    """The last events there are, newest first; none if the journal can't be read."""
    try:
        return journal.recent_events(_PAST_EVENTS)
    except JournalError:
        return []
