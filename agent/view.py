"""What the admin API answers, made from the daemon's state (`agent.agent_view.AgentView`)."""

import time
from collections import Counter
from collections.abc import Callable, Mapping
from importlib.metadata import version
from itertools import islice
from typing import Any, Final

from agent.agent_view import ApiError, JsonObject, Order
from agent.cgroup_paths import CgroupPaths
from agent.changes import Changes
from agent.discovery import Found
from agent.doctor import doctor_answer
from agent.history import Window
from agent.injection import Injection
from agent.main_thread import BusyError
from agent.neighbours_answer import neighbour_rows, neighbours_answer
from agent.node import Node
from agent.policies import Policies
from agent.sampler import Sampler
from agent.stages_answer import sockets_answer, stages_answer
from agent.state import State
from agent.streams import Ended
from bpf.features import kernel_release
from bpf.histogram import Histogram
from bpf.layout import Counters
from controller.attribution import MEANING, Cause
from controller.journal import Journal, JournalError
from controller.limits.cgroup import Hierarchies
from controller.policy_model import Engine, Mode
from controller.timing import histogram_of

WINDOW_S: Final = 10.0
ATTAINMENT_S: Final = 60.0
SHOWN: Final = 10
NO_CONTROLLER_TO_TELL: Final = "the controller does not run: nobody takes note"
_TOTALS: Final = (
    "requests",
    "responses",
    "first_chunks",
    "chunks",
    "gaps",
    "gaps_over",
    "ttft_over",
    "ends_complete",
    "ends_early",
    "ends_unstarted",
    "deadlines_missed",
    "retransmits",
    "errors",
    "body_bytes",
)


class View:
    """Answers from any thread."""

    def __init__(
        self,
        state: State,
        node: Node,
        sampler: Sampler,
        journal: Journal,
        hierarchies: Hierarchies,
        policies: Policies,
        changes: Changes,
        controller: Callable[[], Mapping[str, Any]],
        change_mode: Callable[[Mode, str], None],
        inject: Callable[[float, float, str], bool],
    ) -> None:
        """`controller` tells of its process, `change_mode` asks for another mode.

        `inject` says whether there was a controller to tell of a value, for seconds, and why.
        """
        self._state = state
        self._node = node
        self._sampler = sampler
        self._journal = journal
        self._cgroups = CgroupPaths(hierarchies)
        self.policies = policies
        self.changes = changes
        self._controller = controller
        self._change_mode = change_mode
        self._inject = inject
        self._injected: Injection | None = None

    def status(self) -> JsonObject:
        """The whole agent."""
        state, node = self._state, self._node
        status = state.status()
        held = status["neighbours"] if status is not None else {}
        health = node.health()
        return {
            "version": version("sits"),
            "mode": self._controller()["mode"],
            "uptime_s": time.monotonic() - state.started_s,
            "kernel": {
                "release": kernel_release(),
                "loaded": node.how,
                "follows_streams": node.programs is not None and node.programs.follows_streams,
                "detail": "; ".join(node.problems),
            },
            "controller": {key: self._controller()[key] for key in ("alive", "pid", "restarts")},
            "engines": self.engines()["engines"],
            "neighbours": neighbour_rows(state.neighbours(), held),
            "candidates": state.candidates,
            "loop": _loop(status["loop"]) if status is not None else None,
            "health": {name: getattr(health, name) for name in type(health).__slots__},
            "journal": {"dropped": self._journal.dropped, "error": self._journal.error},
            "gpu": state.gpus.status(),
            "mps": state.mps(),
            "injected": self._still_injected(),
            "policy": self.policies.status(),
            "problems": state.problems(),
        }

    def engines(self) -> JsonObject:
        """Every engine of the policy."""
        return {"engines": [self._engine(engine) for engine in self._state.policy.engines]}

    def neighbours(self) -> JsonObject:
        """Who shares the machine, by what class each may be held, and who took the CPU unnamed."""
        state = self._state
        status = state.status()
        held = status["neighbours"] if status is not None else {}
        return neighbours_answer(
            state.policy, neighbour_rows(state.neighbours(), held), state.candidates
        )

    def gpu(self) -> JsonObject:
        """The GPUs, and the limits on clients of MPS daemons."""
        return self._state.gpus.answer() | {"mps": self._state.mps()}

    def streams(self, engine: str | None, after: int | None, limit: int) -> JsonObject:
        """Ended streams after a sequence number, or the newest."""
        log = self._state.streams
        found, last = (
            log.newest(limit, engine) if after is None else log.after(after, limit, engine)
        )
        return {"streams": [each.as_dict() for each in found], "next": last}

    def explain(self, engine: str, seconds: float) -> JsonObject:
        """Why an engine was slow."""
        if engine not in {each.name for each in self._state.policy.engines}:
            raise ApiError(404, f"no engine {engine} in the policy")
        since_ns = time.monotonic_ns() - int(seconds * 1e9)
        with self._state.lock:
            window = self._state.history(engine).window(seconds)
            threads = self._state.threads[engine].window(since_ns)
        streams = self._state.streams.recent(engine, since_ns)
        slow = sorted((s for s in streams if not s.good), key=_slowness, reverse=True)
        causes = _causes(window)
        return {
            "engine": engine,
            "seconds": seconds,
            "verdict": _verdict(engine, causes, len(slow), len(streams), window),
            "causes": causes,
            "evidence": _evidence(window),
            "culprits": self.blame(engine, seconds),
            "threads": [
                {
                    "name": name,
                    "wait_ms": wait_ns / 1e6,
                    "waits": waits,
                    "wait_other_ms": wait_other_ns / 1e6,
                    "run_ms": run_ns / 1e6,
                    "involuntary_switches": involuntary,
                }
                for name, (wait_ns, waits, wait_other_ns, run_ns, involuntary) in islice(
                    threads.items(), SHOWN
                )
            ],
            "stream_causes": dict(Counter(each.cause for each in slow if each.cause != "none")),
            "slow_streams": [each.as_dict() for each in slow[:SHOWN]],
            "decisions": self._decisions(engine, time.time_ns() - int(seconds * 1e9)),
        }

    def blame(self, engine: str, seconds: float) -> list[JsonObject]:
        """Who had the CPU while an engine of the policy waited for it, the most first."""
        with self._state.lock:
            found = self._state.culprits[engine].window(time.monotonic_ns() - int(seconds * 1e9))
        return [
            {
                "cgroup": self._cgroups.path(cgroup),
                "command": command,
                "wait_ms": wait_ns / 1e6,
                "waits": waits,
            }
            for (cgroup, command), (wait_ns, waits) in islice(found.items(), SHOWN)
        ]

    def stages(self, engine: str, seconds: float, factor: float, floor: float | None) -> JsonObject:
        """What flows and queues in an engine's stages, and which one holds requests up."""
        sampler = self._sampler
        samples = sampler.samples(engine, seconds)
        return stages_answer(engine, samples, sampler.sockets(engine), factor, floor)

    def journal(
        self, limit: int, engine: str | None, before: int | None, order: Order
    ) -> JsonObject:
        """Decisions and events; `ApiError` 503 if the journal can't be read."""
        try:
            if order == "worst":
                decisions = self._journal.worst(limit, engine)
            else:
                decisions = self._journal.recent(limit, engine, before)
            return {
                "decisions": [row.as_dict() for row in decisions],
                "events": [row.as_dict() for row in self._journal.recent_events(limit)],
            }
        except JournalError as error:
            raise ApiError(503, str(error)) from None

    def policy(self) -> JsonObject:
        """The policy in force."""
        return self.policies.policy.as_dict() | {"source": self.policies.source}

    def doctor(self) -> JsonObject:
        """What this kernel and these privileges allow; what our limits and programs cost."""
        state, agent = self._state, self.policies.policy.agent
        return doctor_answer(self._node, agent, self._journal, state.gpus.look, state.mps())

    def set_mode(self, mode: Mode, reason: str) -> JsonObject:
        """Ask for another mode; it is in force within a tick."""
        self._change_mode(mode, reason)
        return {"mode": mode}

    def inject(self, value: float, seconds: float, reason: str) -> JsonObject:
        """Take an upstream's word for backpressure."""
        try:
            told = self._inject(value, seconds, reason)
        except BusyError as error:
            raise ApiError(503, str(error)) from None
        if not told:
            raise ApiError(503, NO_CONTROLLER_TO_TELL)
        self._injected = Injection(
            "backpressure", value, reason, time.monotonic() + seconds, self._controller()["pid"]
        )
        return {"what": "backpressure", "value": value, "seconds": seconds}

    def _still_injected(self) -> JsonObject | None:
        if self._injected is None:
            return None
        return self._injected.answer(time.monotonic(), self._controller()["pid"])

    def _engine(self, engine: Engine) -> JsonObject:
        state = self._state
        found = state.found(engine.name)
        status = state.engine_status(engine.name)
        with state.lock:
            window = state.history(engine.name).window(WINDOW_S)
        now = status["now"] if status is not None else None
        totals = self._node.counters(engine.name)
        return {
            "name": engine.name,
            "found": found.present,
            "detail": _detail(found, status),
            "pids": sorted(found.pids),
            "cgroup": found.cgroup,
            "ports": sorted(found.ports),
            "slo": {
                "ttft_ms": engine.slo.ttft_ms,
                "gap_ms": engine.slo.gap_ms,
                "attainment": engine.slo.attainment,
            },
            **_from_status(status),
            "adapter": state.adapter(engine.name),
            "running": now["running"] if now is not None else None,
            "waiting": now["waiting"] if now is not None else None,
            "deferred": now["deferred"] if now is not None else None,
            "kv_use": now["kv_use"] if now is not None else None,
            "sockets": sockets_answer(self._sampler.sockets(engine.name)),
            "streams_active": state.streams.under_way(engine.name),
            **_from_window(window),
            "attainment": state.attainment(engine.name, ATTAINMENT_S),
            "totals": {name: getattr(totals, name) for name in _TOTALS},
            "no_first_token": state.untold(engine.name),
        }

    def _decisions(self, engine: str, since_wall_ns: int) -> list[JsonObject]:
        """An engine's decisions since then; none if the journal can't be read."""
        try:
            rows = self._journal.recent(SHOWN, engine)
        except JournalError:
            return []
        return [row.as_dict() for row in rows if row.wall_ns >= since_wall_ns]


def _from_status(status: Mapping[str, Any] | None) -> JsonObject:
    if status is None:
        return {
            "admin": {
                "state": "none",
                "detail": "the controller does not say: it starts, or does not run",
            },
            "admin_sockets": [],
            "engine": None,
            "knobs": {},
            "backpressure": None,
            "cause": str(Cause.NONE),
            "cause_meaning": MEANING[Cause.NONE],
            "evidence": {},
            "cpu_weight": None,
            "model": None,
            "plan": None,
            "memory": None,
        }
    now_ns = time.monotonic_ns()
    names = (
        "admin",
        "engine",
        "knobs",
        "backpressure",
        "cause",
        "cause_meaning",
        "evidence",
        "cpu_weight",
        "model",
        "plan",
        "memory",
    )
    sockets = [_socket(each, now_ns) for each in status["admin_sockets"]]
    return {name: status.get(name) for name in names} | {"admin_sockets": sockets}


def _socket(status: Mapping[str, Any], now_ns: int) -> JsonObject:
    """An admin socket, with times that are left in place of moments of our clock."""
    lease, by_hand = status["lease"], status["by_hand"]
    if lease is not None:
        left_s = max(0.0, (lease["ends_ns"] - now_ns) / 1e9)
        lease = {"owner": lease["owner"], "ours": lease["ours"], "left_s": left_s}
    if by_hand is not None:
        left_s = max(0.0, (by_hand["until_ns"] - now_ns) / 1e9)
        by_hand = {name: what for name, what in by_hand.items() if name != "until_ns"}
        by_hand["left_s"] = left_s
    return {**status, "lease": lease, "by_hand": by_hand}


def _from_window(window: Window | None) -> JsonObject:
    counters = window.counters if window is not None else Counters()
    seconds = window.seconds if window is not None else 0.0
    return {
        "window_s": seconds,
        "requests_per_s": counters.requests / seconds if seconds else 0.0,
        "chunks_per_s": counters.chunks / seconds if seconds else 0.0,
        "stall_rate": counters.writes_stalled / counters.writes if counters.writes else None,
        "ttft_ms": _quantiles(window.ttft if window is not None else None),
        "gap_ms": _quantiles(window.gap if window is not None else None),
        "run_queue_ms": _quantiles(window.wait if window is not None else None),
    }


def _quantiles(histogram: Histogram | None, unit_ns: float = 1e6) -> JsonObject:
    def at(q: float) -> float | None:
        value = histogram.quantile_ns(q) if histogram is not None else None
        return value / unit_ns if value is not None else None

    return {"p50": at(0.5), "p99": at(0.99)}


def _loop(loop: Mapping[str, Any]) -> JsonObject:
    reaction = histogram_of(loop["reaction"])
    return {
        "ticks": loop["ticks"],
        "late_ticks": loop["late_ticks"],
        "tick_ms": _quantiles(histogram_of(loop["tick"])),
        "late_ms": _quantiles(histogram_of(loop["late"])),
        **{
            f"{stage}_us": _quantiles(histogram_of(loop[stage]), 1e3)
            for stage in ("collect", "decide", "actuate")
        },
        "reaction_ms": _quantiles(reaction) | {"count": reaction.count},
    }


def _detail(found: Found, status: Mapping[str, Any] | None) -> str:
    weight = status["group_detail"] if status is not None else ""
    return "; ".join(text for text in (found.detail, weight) if text)


def _causes(window: Window | None) -> list[JsonObject]:
    if window is None:
        return []
    total = sum(window.cause_ns.values())
    return [
        {"cause": cause, "meaning": MEANING[Cause(cause)], "share": ns / total, "seconds": ns / 1e9}
        for cause, ns in sorted(window.cause_ns.items(), key=lambda item: -item[1])
        if ns > 0
    ]


def _verdict(
    engine: str, causes: list[JsonObject], slow: int, streams: int, window: Window | None
) -> str:
    if window is None:
        return f"nothing is known of {engine} yet"
    seen = streams or window.counters.requests
    missed = f"{slow} of {streams} streams that ended missed their SLO"
    if not causes:
        return f"{engine} was not slow: {missed}" if seen else f"{engine} had no traffic"
    worst = causes[0]
    told = f"{missed}; " if seen else ""
    return (
        f"{engine}: {told}for {worst['seconds']:.1f} s its SLO was at risk because"
        f" {worst['meaning']} ({worst['share']:.0%} of the time at risk)"
    )


def _evidence(window: Window | None) -> JsonObject:
    """The figures of a window: totals, rates a second, and the worst single values."""
    if window is None:
        return {}
    c = window.counters
    wanted_ns = c.run_ns + c.wait_ns
    seconds = window.seconds or 1.0
    lost = window.lost
    return {
        "requests": c.requests,
        "chunks": c.chunks,
        "gaps_over": c.gaps_over,
        "gaps_unsent": c.gaps_unsent,
        "ttft_over": c.ttft_over,
        "retransmits": c.retransmits,
        "retransmits_per_s": c.retransmits / seconds,
        "loss_probes": c.loss_probes,
        "resets": c.resets_sent + c.resets_received,
        "writes_stalled": c.writes_stalled,
        "writes_held": c.writes_held,
        "blocked_ms": c.blocked_ns / 1e6,
        "read_wait_ms": c.read_wait_ns / c.reads / 1e6 if c.reads else 0.0,
        "run_ms": c.run_ns / 1e6,
        "wait_ms": c.wait_ns / 1e6,
        "wait_other_ms": c.wait_other_ns / 1e6,
        "wait_self_ms": c.wait_self_ns / 1e6,
        "neighbour_pressure": c.wait_other_ns / wanted_ns if wanted_ns else 0.0,
        "involuntary_switches": c.involuntary,
        "throttled_ms": lost.get("throttled_ns", 0) / 1e6,
        "memory_ms": lost.get("memory_ns", 0) / 1e6,
        "memory_limit_hits": lost.get("limit_hits", 0),
        "major_faults": lost.get("major_faults", 0),
        **window.peaks,
    }


def _slowness(stream: Ended) -> float:
    return max(stream.stream.gap_max_ns, stream.stream.ttft_ns or 0)
