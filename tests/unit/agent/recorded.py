"""A view of an agent that shows one recorded moment, in the shapes of the API."""

import copy
import math
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from wsgiref.types import WSGIEnvironment

from agent.agent_view import JsonObject, Order
from agent.api import admin_app
from agent.http import unix_server
from agent.sock_diag import Connection, Listener
from agent.sockets import EngineSockets
from agent.stages import SAMPLE_NS, Load, Sample
from agent.stages_answer import sockets_answer, stages_answer
from controller.policy import Mode, parse_policy

WALL_NS = 1_741_081_200_123_000_000
CGROUP = "/system.slice/chat.service"
POLICY_FILE = "/etc/sits/policy.toml"
POLICY = """
mode = "control"
[agent]
admin_socket = "/run/sits/admin.sock"
[engines.chat]
unit = "chat.service"
admin_socket = "/run/chat/admin.sock"
slo = { ttft_ms = 800, gap_ms = 120 }
[neighbours.batch]
cgroup = "/batch.slice"
"""

SOCKETS = EngineSockets(
    listeners=(Listener(socket.AF_INET, 8000, 0, 128),),
    connections=tuple(
        Connection(9_911_223 + n, 8000, bytes([10, 0, 3, 17]), 51_234 + n, True, 0, 0, 410 * n)
        for n in range(3)
    ),
    seeded=frozenset({9_911_223}),
    in_flight_bytes=1230,
)


def sample(index: int) -> Sample:
    """A tenth of a second in which the waiting queue swings between 3 and 15."""
    waiting = round(9 + 6 * math.sin(index / 15))
    load = Load(waiting, 12, 40 + index // 2 + waiting, 16 + index // 2)
    return Sample(
        index=index,
        at_ns=index * SAMPLE_NS,
        backlog_limit=128,
        requests=load.requests_total,
        reads=load.requests_total,
        writes=41 * index,
        chunks=41 * index,
        ended=load.finished_total,
        looked=index % 2 == 0,
        connections=30,
        in_flight_bytes=820 if index % 3 else 0,
        load=load,
    )


STAGES: JsonObject = stages_answer("chat", [sample(n) for n in range(301)], SOCKETS, 1.5, None)

IDENTITY: JsonObject = {"name": "sits-reference", "version": "0.1.0", "instance": "7d3c91"}
KNOBS: JsonObject = {
    "max_batched_tokens": {"value": 412, "start": 2048, "unit": "tokens", "held": True},
    "max_running": {"value": 16, "start": 16, "unit": "requests", "held": False},
}
ENGINE: JsonObject = {
    "name": "chat",
    "found": True,
    "detail": "",
    "pids": [812, 833],
    "cgroup": CGROUP,
    "ports": [8000],
    "slo": {"ttft_ms": 800.0, "gap_ms": 120.0, "attainment": 0.99},
    "admin": {"state": "connected", "detail": "sits-reference 0.1.0"},
    "admin_sockets": [
        {
            "key": "chat",
            "socket": "/run/chat/admin.sock",
            "state": "connected",
            "detail": "sits-reference 0.1.0",
            "engine": IDENTITY,
            "knobs": KNOBS,
            "pending": {},
            "lease": {"owner": "sits", "ours": True, "left_s": 0.4},
            "last_ack": "applied",
            "removed": False,
            "by_hand": None,
        }
    ],
    "engine": IDENTITY,
    "knobs": KNOBS,
    "running": 12,
    "waiting": 3,
    "deferred": 0,
    "kv_use": 0.61,
    "backpressure": {
        "value": 0.42,
        "accept": 0.0,
        "queue": 0.2,
        "send": 0.0,
        "kv": 0.0,
        "cpu": 0.42,
        "injected": 0.0,
    },
    "cause": "neighbour_cpu",
    "cause_meaning": "other processes take the CPU the engine wants",
    "evidence": {"neighbour_pressure": 0.4127, "wait_other_ms": 412.4, "run_ms": 587.1},
    "cpu_weight": {"value": 1024, "base": 100},
    "sockets": sockets_answer(SOCKETS),
    "window_s": 10.0,
    "requests_per_s": 5.2,
    "chunks_per_s": 410.3,
    "stall_rate": 0.0012,
    "ttft_ms": {"p50": 212.4, "p99": 742.0},
    "gap_ms": {"p50": 21.3, "p99": 183.2},
    "run_queue_ms": {"p50": 0.04, "p99": 14.2},
    "attainment": 0.9714,
    "totals": {
        "requests": 18_204,
        "responses": 18_201,
        "first_chunks": 18_190,
        "chunks": 1_402_331,
        "gaps": 1_384_141,
        "gaps_over": 5120,
        "ttft_over": 96,
        "ends_complete": 18_150,
        "ends_early": 31,
        "ends_unstarted": 11,
        "deadlines_missed": 31,
        "retransmits": 4,
        "errors": 2,
        "body_bytes": 310_244_112,
    },
    "no_first_token": {"client_reset": 9, "server_closed": 2, "error": 2},
    "model": {
        "trusted": True,
        "base_ms": 1.84,
        "prefill_ms": 0.052,
        "decode_ms": 0.31,
        "kv_ms": 0.0002,
        "error": 0.061,
        "steps": 90_412,
    },
    "plan": {
        "margin": 0.87,
        "prompt_tokens_per_s": 6400.0,
        "predictor": "ar",
        "roll_backs": 0,
        "paused": "",
    },
}

UNSEEN: JsonObject = ENGINE | {
    "name": "draft",
    "found": False,
    "detail": "no unit draft.service",
    "pids": [],
    "cgroup": None,
    "ports": [],
    "admin": {"state": "none", "detail": "the policy names no admin socket"},
    "admin_sockets": [],
    "engine": None,
    "knobs": {},
    "running": None,
    "waiting": None,
    "deferred": None,
    "kv_use": None,
    "backpressure": None,
    "cause": "none",
    "cause_meaning": "nothing is wrong",
    "evidence": {},
    "cpu_weight": None,
    "sockets": sockets_answer(EngineSockets()),
    "requests_per_s": None,
    "chunks_per_s": None,
    "stall_rate": None,
    "ttft_ms": {"p50": None, "p99": None},
    "gap_ms": {"p50": None, "p99": None},
    "run_queue_ms": {"p50": None, "p99": None},
    "attainment": None,
    "totals": dict.fromkeys(ENGINE["totals"], 0),
    "no_first_token": {},
    "model": None,
    "plan": None,
}

BATCH_AND_LOGS: list[JsonObject] = [
    {
        "name": "batch",
        "found": True,
        "cgroup": "/batch.slice",
        "detail": "",
        "used_cores": 1.52,
        "quota_cores": 1.5,
        "class": "slo-b",
        "weight": None,
        "idle": False,
        "frozen": False,
        "freezes": 3,
        "protected": None,
        "held_s": 62.0,
        "held_cpu_s": 71.3,
        "held_back_cpu_s": 21.9,
        "frozen_s": 2.4,
        "longest_freeze_s": 0.8,
    },
    {
        "name": "logs",
        "found": False,
        "cgroup": None,
        "detail": "unit logs.service is not running",
        "used_cores": None,
        "quota_cores": None,
        "class": None,
        "weight": None,
        "idle": False,
        "frozen": False,
        "freezes": 0,
        "protected": None,
        "held_s": 0.0,
        "held_cpu_s": 0.0,
        "held_back_cpu_s": 0.0,
        "frozen_s": 0.0,
        "longest_freeze_s": 0.0,
    },
]

BESIDE: JsonObject = {
    "neighbours": BATCH_AND_LOGS,
    "classes": [
        {
            "name": "slo-a",
            "cpu_share": 0.7,
            "freeze_ms": 200,
            "retry_ms": 50,
            "idle": True,
            "neighbours": 0,
        },
        {
            "name": "slo-b",
            "cpu_share": 0.25,
            "freeze_ms": 800,
            "retry_ms": 200,
            "idle": True,
            "neighbours": 1,
        },
    ],
    "candidates": [
        {
            "cgroup": "/system.slice/backup.service",
            "command": "zstd",
            "engine": "chat",
            "wait_ms": 812.0,
            "share": 0.34,
            "protected": None,
        }
    ],
    "limit_found": False,
}

STATUS: JsonObject = {
    "version": "0.1.0",
    "mode": "control",
    "uptime_s": 7461.2,
    "kernel": {
        "release": "6.1.0-28-amd64",
        "loaded": "adopted",
        "follows_streams": True,
        "detail": "pins of an earlier run were taken over",
    },
    "controller": {"alive": True, "pid": 4121, "restarts": 0},
    "engines": [ENGINE],
    "neighbours": BATCH_AND_LOGS,
    "candidates": [],
    "loop": {
        "ticks": 812_345,
        "late_ticks": 12,
        "tick_ms": {"p50": 17.0, "p99": 17.6},
        "late_ms": {"p50": 0.1, "p99": 1.9},
        "collect_us": {"p50": 61.0, "p99": 140.0},
        "decide_us": {"p50": 33.0, "p99": 92.0},
        "actuate_us": {"p50": 120.0, "p99": 410.0},
        "reaction_ms": {"p50": 1.3, "p99": 2.9, "count": 5230},
    },
    "health": {
        "event_drops": 0,
        "edge_drops": 0,
        "storage_full": 0,
        "lost_streams": 0,
        "culprits_full": 0,
        "roles_full": 0,
    },
    "journal": {"dropped": 0, "error": None},
    "policy": {
        "source": POLICY_FILE,
        "file": POLICY_FILE,
        "in_file": True,
        "canary": None,
    },
    "problems": [],
}


def stream(seq: int, **changes: Any) -> JsonObject:
    """One ended stream."""
    return {
        "seq": seq,
        "engine": "chat",
        "connection": 9_911_223,
        "number": 3,
        "remote": "10.0.3.17:51234",
        "remote_port": 51234,
        "path": "/v1/chat/completions",
        "version": None,
        "trace_id": None,
        "status": 200,
        "ttft_ms": 231.0,
        "gap_max_ms": 61.5,
        "gap_mean_ms": 20.9,
        "gaps_over": 0,
        "chunks": 128,
        "body_bytes": 28_114,
        "retransmits": 0,
        "reason": "complete",
        "no_first_token": None,
        "good": True,
        "cause": "none",
        "ended_unix_s": WALL_NS / 1e9 + seq,
        "duration_ms": 2904.1,
    } | changes


STREAMS = [
    stream(1),
    stream(2, gap_max_ms=311.4, gaps_over=4, good=False, cause="neighbour_cpu"),
    stream(
        3, ttft_ms=None, gap_max_ms=None, gap_mean_ms=None, chunks=0, reason="client_reset",
        no_first_token="client_reset", good=False, cause="queue", path="/v1/completions",
    ),
]  # fmt: skip

SPAN: JsonObject = {
    "seconds": 5.0,
    "requests": 20,
    "requests_per_s": 4.0,
    "chunks": 410,
    "gaps": 400,
    "gaps_over": 55,
    "started": 10,
    "ttft_over": 2,
    "ended": 15,
    "good": 9,
    "goodput_per_s": 1.8,
    "violation_share": 0.3375,
}

DECISIONS: list[JsonObject] = [
    {
        "id": 12,
        "wall_ns": WALL_NS,
        "mono_ns": 91_000_000_000,
        "boot_id": "b",
        "engine": "chat",
        "mode": "control",
        "cause": "batch",
        "action": [
            {
                "kind": "knob",
                "target": "chat",
                "knob": "max_batched_tokens",
                "from": 2048,
                "to": 412,
            }
        ],
        "signals": {"longest_step_ms": 91.0},
        "reason": "a step of 12 sequences takes 71.2 ms, against a gap SLO of 120 ms",
        "ack": "applied",
        "ack_us": 212,
        "outcome": {
            "verdict": "better",
            "score": -0.23,
            "load_changed": True,
            "other_decisions": 2,
            "before": SPAN,
            "after": SPAN
            | {
                "requests": 11,
                "requests_per_s": 2.2,
                "gaps_over": 3,
                "ttft_over": 1,
                "good": 14,
                "goodput_per_s": 2.8,
                "violation_share": 0.1075,
            },
        },
    },
    {
        "id": 11,
        "wall_ns": WALL_NS - 2_000_000_000,
        "mono_ns": 89_000_000_000,
        "boot_id": "b",
        "engine": "chat",
        "mode": "control",
        "cause": "neighbour_cpu",
        "action": [
            {"kind": "weight", "target": CGROUP, "knob": "cpu_weight", "from": 100, "to": 1024},
            {
                "kind": "quota",
                "target": "/batch.slice",
                "knob": "cpu_quota",
                "from": None,
                "to": 1.5,
            },
        ],
        "signals": {"neighbour_pressure": 0.41},
        "reason": "neighbours held the CPU for 41% of the time the engine wanted it",
        "ack": "pending",
        "ack_us": None,
        "outcome": None,
    },
]

EVENTS: list[JsonObject] = [
    {
        "id": 5,
        "wall_ns": WALL_NS - 9_000_000_000,
        "mono_ns": 82_000_000_000,
        "boot_id": "b",
        "kind": "engine_seen",
        "subject": "chat",
        "detail": {"pids": [812, 833]},
    }
]

EXPLAIN: JsonObject = {
    "engine": "chat",
    "seconds": 30.0,
    "verdict": "chat: 9 of 41 streams that ended missed their SLO; for 6.2 s its SLO was at risk"
    " because other processes take the CPU the engine wants (82% of the time at risk)",
    "causes": [
        {
            "cause": "neighbour_cpu",
            "meaning": "other processes take the CPU the engine wants",
            "share": 0.82,
        },
        {
            "cause": "batch",
            "meaning": "the engine's steps are too long: its batch is too large",
            "share": 0.18,
        },
    ],
    "evidence": {"neighbour_pressure": 0.4127, "wait_other_ms": 412.4, "gaps_over": 37},
    "culprits": [
        {"cgroup": "/batch.slice", "command": "stress-ng", "wait_ms": 512.3, "waits": 1204}
    ],
    "threads": [
        {
            "name": "EngineCore",
            "wait_ms": 498.2,
            "waits": 911,
            "wait_other_ms": 402.1,
            "run_ms": 540.7,
            "involuntary_switches": 833,
        }
    ],
    "stream_causes": {"neighbour_cpu": 1, "queue": 1},
    "slow_streams": STREAMS[1:],
    "decisions": DECISIONS,
}

LIMITS: JsonObject = {
    "event_drops": 0,
    "edge_drops": 0,
    "storage_full": 0,
    "lost_streams": 3,
    "culprits_full": 0,
    "roles_full": 0,
    "journal_rows": 0,
}
PROGRAMS: list[JsonObject] = [
    {"name": "switch_tasks", "runs": 812_000, "run_ns": 203_000_000, "missed": 0},
    {"name": "stream_out", "runs": 40_500, "run_ns": 72_900_000, "missed": 0},
    {"name": "socket_gone", "runs": 0, "run_ns": 0, "missed": 1},
]
COST: JsonObject = {"limits": LIMITS, "programs": PROGRAMS, "counted_s": 58.0}
FINDINGS: list[JsonObject] = [
    {"name": "libbpf", "ok": True, "detail": "libbpf.so.1 loads", "cost": "nothing is measured"},
    {
        "name": "bpffs",
        "ok": False,
        "detail": "/sys/fs/bpf/sits is not on a BPF file system",
        "cost": "counters start from zero when the agent does",
    },
]


CHANGES: list[JsonObject] = [
    {"key": "engines.chat.slo.gap_ms", "from": 120.0, "to": 80.0, "live": True},
    {"key": "engines.chat.relegation.max_deferral_ms", "from": 60_000, "to": 0, "live": True},
]


CANARY: JsonObject = {
    "state": "running",
    "source": "new.toml",
    "engines": ["chat"],
    "changes": CHANGES,
    "elapsed_s": 84.2,
    "planned_s": 180.0,
    "longest_s": 540.0,
    "turn": "new",
    "reason": "4 of 9 pairs of slices",
    "figures": {
        "chat": {
            "pairs": 4,
            "old": {
                "streams": 141,
                "bad_share": 0.0142,
                "error_share": 0.0,
                "ttft_p95_ms": 410.2,
                "gap_p95_ms": 34.1,
            },
            "new": {
                "streams": 138,
                "bad_share": 0.0217,
                "error_share": 0.0,
                "ttft_p95_ms": 433.9,
                "gap_p95_ms": 30.7,
            },
        }
    },
}


class RecordedPolicies:
    """What is asked about the policy."""

    def __init__(self, note: Callable[..., None]) -> None:
        self._note = note
        self.changes: list[JsonObject] = copy.deepcopy(CHANGES)
        self.in_file = True
        self.previous: str | None = f"{POLICY_FILE}.previous"
        self.canary: JsonObject | None = None

    def diff(self, text: str, source: str) -> JsonObject:
        self._note("diff", text, source)
        return {"source": source, "changes": self.changes}

    def apply(self, text: str, source: str, temporary: bool) -> JsonObject:
        self._note("apply", text, source, temporary)
        return {
            "source": source,
            "changes": self.changes,
            "file": POLICY_FILE,
            "in_file": self.in_file and not temporary,
            "previous": None if temporary else self.previous,
        }

    def try_out(self, text: str, source: str, seconds: float, engine: str | None) -> JsonObject:
        self._note("try_out", text, source, seconds, engine)
        self.canary = copy.deepcopy(CANARY)
        return {
            "source": source,
            "changes": self.changes,
            "file": POLICY_FILE,
            "in_file": True,
            "previous": None,
            "canary": self.canary,
        }

    def abort(self, reason: str) -> JsonObject:
        self._note("abort", reason)
        self.canary = CANARY | {"state": "aborted", "turn": None, "reason": reason}
        return self.status()

    def status(self) -> JsonObject:
        return {
            "source": POLICY_FILE,
            "file": POLICY_FILE,
            "in_file": self.in_file,
            "canary": self.canary,
        }

    def reload(self) -> JsonObject:
        self._note("reload")
        return {
            "source": POLICY_FILE,
            "changes": self.changes,
            "file": POLICY_FILE,
            "in_file": True,
            "previous": None,
        }


CHANGE: JsonObject = {
    "state": "applied",
    "why": "",
    "quorum": 1,
    "left_s": 120.0,
    "engines": {"chat": {"standing": "committed", "detail": ""}},
}


class RecordedChanges:
    """Answers what is asked about changes by hand from its fields."""

    def __init__(self, note: Callable[..., None]) -> None:
        self.answer: JsonObject = copy.deepcopy(CHANGE)
        self.given_back = ["chat"]
        self._note = note

    def ask(
        self, engines: Iterable[str], values: Mapping[str, float], lease_s: float, reason: str
    ) -> JsonObject:
        self._note("set", list(engines), dict(values), lease_s, reason)
        return self.answer

    def give_back(self, engines: Iterable[str], reason: str) -> JsonObject:
        self._note("release", list(engines), reason)
        return {"engines": self.given_back}


GPU: JsonObject = {
    "state": "ok",
    "text": "ok",
    "detail": "",
    "since_unix_s": 1_764_000_000.0,
    "driver": "570.86.15",
    "devices": [
        {
            "name": "0",
            "uuid": "GPU-5d1c",
            "model": "NVIDIA H100 80GB HBM3",
            "lost": "",
            "sm_percent": 87.0,
            "memory_total_bytes": 85_520_809_984,
            "memory_used_bytes": 77_309_411_328,
            "power_w": 598.4,
            "power_limit_w": 700.0,
            "temperature_c": 66.0,
            "throttled": ["power cap"],
            "mig": False,
            "instances": [],
            "processes": [
                {
                    "pid": 5120,
                    "memory_bytes": 76_235_669_504,
                    "sm_percent": 81.0,
                    "instance": "",
                    "target": "chat",
                    "kind": "engine",
                    "command": "VLLM::EngineCor",
                    "cgroup": "/system.slice/vllm.service",
                },
                {
                    "pid": 6001,
                    "memory_bytes": 1_073_741_824,
                    "sm_percent": None,
                    "instance": "",
                    "target": None,
                    "kind": "",
                    "command": "python3",
                    "cgroup": "/user.slice",
                },
            ],
        }
    ],
    "heat": [
        {
            "device": "0",
            "from_s": 1_764_000_000,
            "step_s": 5,
            "rows": [
                {"name": "all", "sm_percent": [0.0, 50.0, None, 87.0]},
                {"name": "chat", "sm_percent": [0.0, 41.5, None, 81.0]},
            ],
        }
    ],
}


class RecordedView:
    """Answers every call from its fields, which a test may change; keeps what it was asked."""

    def __init__(self) -> None:
        self.state: JsonObject = copy.deepcopy(STATUS)
        self.explained: JsonObject = copy.deepcopy(EXPLAIN)
        self.staged: JsonObject = copy.deepcopy(STAGES)
        self.ended: list[JsonObject] = copy.deepcopy(STREAMS)
        self.decisions: list[JsonObject] = copy.deepcopy(DECISIONS)
        self.events: list[JsonObject] = copy.deepcopy(EVENTS)
        self.beside: JsonObject = copy.deepcopy(BESIDE)
        self.seen: JsonObject = copy.deepcopy(GPU)
        self.findings: list[JsonObject] = copy.deepcopy(FINDINGS)
        self.asked: list[tuple[Any, ...]] = []
        self.raises: Exception | None = None
        self.lock = threading.Lock()
        self.policies = RecordedPolicies(self._note)
        self.changes = RecordedChanges(self._note)

    def status(self) -> JsonObject:
        self._note("status")
        return self.state

    def engines(self) -> JsonObject:
        return {"engines": self.state["engines"]}

    def streams(self, engine: str | None, after: int | None, limit: int) -> JsonObject:
        self._note("streams", engine, after, limit)
        found = [item for item in self.ended if engine in (None, item["engine"])]
        if after is None:
            found = found[-limit:]
        else:
            found = [item for item in found if item["seq"] > after][:limit]
        return {"streams": found, "next": found[-1]["seq"] if found else after or 0}

    def explain(self, engine: str, seconds: float) -> JsonObject:
        self._note("explain", engine, seconds)
        return self.explained | {"engine": engine, "seconds": seconds}

    def stages(self, engine: str, seconds: float, factor: float, floor: float | None) -> JsonObject:
        self._note("stages", engine, seconds, factor, floor)
        return self.staged | {"engine": engine}

    def neighbours(self) -> JsonObject:
        self._note("neighbours")
        return self.beside

    def gpu(self) -> JsonObject:
        self._note("gpu")
        return self.seen

    def journal(
        self, limit: int, engine: str | None, before: int | None, order: Order
    ) -> JsonObject:
        self._note("journal", limit, engine, before, order)
        found = [
            item
            for item in self.decisions
            if engine in (None, item["engine"])
            and (before is None or item["id"] < before)
            and (order == "newest" or item["outcome"])
        ]
        return {"decisions": found[:limit], "events": self.events[:limit]}

    def policy(self) -> JsonObject:
        self._note("policy")
        return parse_policy(POLICY, "policy").as_dict() | {"source": POLICY_FILE}

    def doctor(self) -> JsonObject:
        self._note("doctor")
        return {
            "findings": self.findings,
            "limits": LIMITS,
            "programs": PROGRAMS,
            "counted_s": 58.0,
        }

    def set_mode(self, mode: Mode, reason: str) -> JsonObject:
        self._note("set_mode", mode, reason)
        self.state["mode"] = mode
        return {"mode": mode}

    def inject(self, value: float, seconds: float, reason: str) -> JsonObject:
        self._note("inject", value, seconds, reason)
        return {"what": "backpressure", "value": value, "seconds": seconds}

    def _note(self, *call: Any) -> None:
        with self.lock:
            self.asked.append(call)
        if self.raises is not None:
            raise self.raises


def anyone(environ: WSGIEnvironment) -> None:
    """A gate that lets everything through."""


@contextmanager
def served(view: RecordedView, path: Path) -> Iterator[Path]:
    """The API over `view`, on a real socket at `path` meanwhile."""
    with unix_server(path, admin_app(view, anyone)):
        yield path
