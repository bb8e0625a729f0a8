"""What the page is told: the JSON at /page.json.

Only what helps to see how the engines are: no request paths, no clients' addresses, no process
ids, for the port knows no users.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

from agent.agent_view import ApiError, JsonObject, Order
from agent.page.columns import GAP_BOUNDS_MS, KEPT, STEP_S, TTFT_BOUNDS_MS, Columns

VERSION: Final = 1
"""Goes up when a field changes its meaning or goes; new fields may come at any time."""

DECISIONS: Final = 200
FOR_BLAME_S: Final = 30.0
_FRESH_S: Final = 1.0

_LATENCIES: Final = ("ttft_ms", "gap_ms")
_FIGURES: Final = (
    "found",
    "detail",
    "slo",
    "cause",
    "cause_meaning",
    "running",
    "waiting",
    "kv_use",
    "requests_per_s",
    "chunks_per_s",
    "attainment",
    "stall_rate",
    "cpu_weight",
    "knobs",
    *_LATENCIES,
)

Gpus = Callable[[], Sequence[Mapping[str, Any]]]
"""How busy each GPU was: `device`, `from_s`, `step_s`, and `rows` with `name` and `sm_percent`."""


class Answers(Protocol):
    """What of the admin API's answers the page needs (`agent.view.View`)."""

    def status(self) -> JsonObject:
        """The whole agent."""

    def blame(self, engine: str, seconds: float) -> list[JsonObject]:
        """Who had the CPU while an engine waited for it."""

    def journal(
        self, limit: int, engine: str | None, before: int | None, order: Order
    ) -> JsonObject:
        """Decisions and events."""


class PageAnswer:
    """Makes the answer, from any thread. What costs is made at most once a second for all."""

    def __init__(self, view: Answers, columns: Columns, gpus: Gpus = tuple) -> None:
        self._view = view
        self._columns = columns
        self._gpus = gpus
        self._made_s = float("-inf")
        self._made: JsonObject = {}

    def __call__(self, after: int) -> JsonObject:
        """Everything; of columns, those that have a higher number than `after`.

        And of decisions, those since a step before that column began.
        """
        now_s = time.monotonic()
        if now_s - self._made_s >= _FRESH_S:
            self._made, self._made_s = self._make(), now_s
        # when column 0 began, on the clock of people
        zero_s = time.time() - now_s
        return self._made | {
            "now_s": zero_s + now_s,
            "zero_s": zero_s,
            "step": int(now_s // STEP_S),
            "decisions": [
                each
                for each in self._made["decisions"]
                if after < 0 or each["at_s"] >= zero_s + (after - 1) * STEP_S
            ],
            "columns": {
                name: [each.as_dict() for each in self._columns.after(name, after)]
                for name in (engine["name"] for engine in self._made["engines"])
            },
        }

    def _make(self) -> JsonObject:
        status = self._view.status()
        loop = status["loop"]
        return {
            "version": VERSION,
            "step_s": STEP_S,
            "kept": KEPT,
            "bounds_ms": {"ttft": TTFT_BOUNDS_MS, "gap": GAP_BOUNDS_MS},
            "sits": {
                "version": status["version"],
                "mode": status["mode"],
                "uptime_s": status["uptime_s"],
                "controller_alive": status["controller"]["alive"],
                "controller_restarts": status["controller"]["restarts"],
                "follows_streams": status["kernel"]["follows_streams"],
                "late_ms": None if loop is None else loop["late_ms"]["p99"],
                "reaction_ms": None if loop is None else loop["reaction_ms"]["p50"],
                "problems": status["problems"],
                "injected": status.get("injected"),
            },
            "engines": [
                {"name": engine["name"]}
                | {name: engine[name] for name in _FIGURES}
                | {"blame": self._view.blame(engine["name"], FOR_BLAME_S)}
                for engine in status["engines"]
            ],
            "neighbours": status["neighbours"],
            "decisions": self._decisions(),
            "gpus": list(self._gpus()),
        }

    def _decisions(self) -> list[JsonObject]:
        try:
            rows = self._view.journal(DECISIONS, None, None, "newest")["decisions"]
        except ApiError:
            return []  # the problems say that the journal can't be read
        oldest_ns = (time.time() - KEPT * STEP_S) * 1e9
        return [
            {
                "id": row["id"],
                "at_s": row["wall_ns"] / 1e9,
                **{name: row[name] for name in ("engine", "mode", "cause", "reason", "ack")},
                "action": row["action"],
                "verdict": (row["outcome"] or {}).get("verdict"),
            }
            for row in rows
            if row["wall_ns"] >= oldest_ns
        ]
