"""What the daemon's main thread writes and the API's threads read, under one lock."""

import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from agent.discovery import Found, Surroundings
from agent.gpu import Gpus
from agent.growth import Growth
from agent.history import History
from agent.lately import Lately
from agent.streams import StreamLog
from controller.policy_model import Policy

STATUS_STALE_S: Final = 2.0
"""A controller that has said nothing for this long is not shown as if it had."""

PEAKS: Final = ("longest_step_ms", "queue_age_ms", "stopped_ms")
"""Evidence of the controller of which the largest value of a second is kept."""

PAST_KEPT: Final = 480
"""Two minutes of status messages in which something grew."""


class State:
    """The agent's memory. Every method may be called from any thread."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.streams = StreamLog()
        self.lock = threading.RLock()
        self.started_s = time.monotonic()
        self.gpus = Gpus(0)
        self.mps: Callable[[], list[dict[str, Any]]] = list
        """How each limit on an MPS daemon's clients stands."""
        self._surroundings = Surroundings()
        self._adapters: Mapping[str, Mapping[str, Any]] = {}
        self._status: Mapping[str, Any] | None = None
        self._status_s = 0.0
        self._histories: defaultdict[str, History] = defaultdict(History)
        self._problems: dict[str, list[str]] = {}
        self._decisions: Counter[tuple[str, str]] = Counter()
        self._knob_changes: Counter[tuple[str, str]] = Counter()
        self._leases_lost: Counter[str] = Counter()
        self._ends: Counter[tuple[str, str]] = Counter()
        self._untold: Counter[tuple[str, str]] = Counter()
        self._good: Counter[str] = Counter()
        self._lately: defaultdict[str, Lately] = defaultdict(Lately)
        self._causes: dict[str, _Growing] = {}
        self._lost: dict[str, _Growing] = {}
        self._peaks: dict[str, dict[str, float]] = {}
        self._slow: Counter[tuple[str, str]] = Counter()
        self.candidates: list[dict[str, Any]] = []
        """Who took the CPU and is not named, the worst first; replaced as a whole."""
        self.culprits: defaultdict[str, Growth[tuple[int, str]]] = defaultdict(Growth)
        self.threads: defaultdict[str, Growth[str]] = defaultdict(Growth)

    def set_policy(self, policy: Policy) -> None:
        """Go on under another policy; what is known of engines that it has not is forgotten."""
        names = {engine.name for engine in policy.engines}
        with self.lock:
            self.policy = policy
            for kept in (self._histories, self.culprits, self.threads):
                for name in kept.keys() - names:
                    del kept[name]

    def set_surroundings(self, surroundings: Surroundings) -> None:
        """Take what discovery found."""
        with self.lock:
            self._surroundings = surroundings

    def set_adapters(self, adapters: Mapping[str, Mapping[str, Any]]) -> None:
        """How the adapters stand, by engine; those that do not serve are a problem."""
        with self.lock:
            self._adapters = adapters
        self.set_problems(
            "adapters",
            [
                f"{name}: its {each['kind']} adapter is {each['state']}: {each['detail']}"
                for name, each in adapters.items()
                if each["state"] in {"down", "unreachable"}
            ],
        )

    def adapter(self, engine: str) -> Mapping[str, Any] | None:
        """How the engine's adapter stands, None if it has none."""
        with self.lock:
            return self._adapters.get(engine)

    def found(self, engine: str) -> Found:
        """Where an engine is."""
        with self.lock:
            return next(
                (f for f in self._surroundings.engines if f.name == engine),
                Found(engine, detail="not looked for yet"),
            )

    def engines(self) -> tuple[Found, ...]:
        """The engines as discovery saw them last; none before its first look."""
        with self.lock:
            return self._surroundings.engines

    def neighbours(self) -> tuple[Found, ...]:
        """The neighbours there are."""
        with self.lock:
            return self._surroundings.neighbours

    def set_status(self, message: Mapping[str, Any]) -> None:
        """Take the controller's status."""
        with self.lock:
            self._status, self._status_s = message, time.monotonic()
            for name, engine in message["engines"].items():
                self._causes.setdefault(name, _Growing()).take(engine["cause_ns"])
                self._lost.setdefault(name, _Growing()).take(engine["lost"])
                peaks = self._peaks.setdefault(name, {})
                for figure in PEAKS:
                    value = engine["evidence"].get(figure, 0.0)
                    peaks[figure] = max(value, peaks.get(figure, 0.0))

    @property
    def heard_s(self) -> float:
        """When the controller last said how things stand, on the monotonic clock."""
        with self.lock:
            return self._status_s

    def heard_since(self, at_ns: int) -> bool:
        """Whether the controller has said how things stand since then."""
        with self.lock:
            return self._status_s * 1e9 > at_ns

    def status(self) -> Mapping[str, Any] | None:
        """The controller's last status, None when it is too old to be true."""
        with self.lock:
            fresh = time.monotonic() - self._status_s < STATUS_STALE_S
            return self._status if fresh else None

    def engine_status(self, engine: str) -> Mapping[str, Any] | None:
        """One engine's part of it."""
        status = self.status()
        fields = status["engines"].get(engine) if status is not None else None
        return fields if isinstance(fields, Mapping) else None

    def cause_ns(self, engine: str) -> dict[str, int]:
        """How long each cause put an engine's SLO at risk, over all controllers there were."""
        with self.lock:
            growing = self._causes.get(engine)
            return dict(growing.totals) if growing is not None else {}

    def causes_since(self, engine: str, since_ns: int) -> dict[str, int]:
        """How long each cause was at work since a moment, to within a status message."""
        with self.lock:
            growing = self._causes.get(engine)
            return growing.since(since_ns) if growing is not None else {}

    def lost(self, engine: str) -> dict[str, int]:
        """What an engine lost to its own limits, over all controllers there were."""
        with self.lock:
            growing = self._lost.get(engine)
            return dict(growing.totals) if growing is not None else {}

    def take_peaks(self, engine: str) -> dict[str, float]:
        """The largest of some figures since the last call."""
        with self.lock:
            return self._peaks.pop(engine, {})

    def history(self, engine: str) -> History:
        """An engine's history; hold `lock` while it is used."""
        return self._histories[engine]

    def set_problems(self, source: str, problems: list[str]) -> None:
        """Replace what is wrong according to `source`."""
        with self.lock:
            self._problems[source] = problems

    def problems(self) -> list[str]:
        """Everything that is wrong now."""
        with self.lock:
            return [text for texts in self._problems.values() for text in texts]

    def count_decision(self, engine: str, cause: str) -> None:
        """Count a decision."""
        with self.lock:
            self._decisions[engine, cause] += 1

    def decisions(self) -> dict[tuple[str, str], int]:
        """Decisions by engine and cause."""
        with self.lock:
            return dict(self._decisions)

    def count_knobs(self, engine: str, knobs: Iterable[str]) -> None:
        """Count changes that were asked of an engine."""
        with self.lock:
            self._knob_changes.update((engine, knob) for knob in knobs)

    def knob_changes(self) -> dict[tuple[str, str], int]:
        """Changes by engine and knob."""
        with self.lock:
            return dict(self._knob_changes)

    def count_lease_lost(self, engine: str) -> None:
        """Count a lease that ended before it was given back."""
        with self.lock:
            self._leases_lost[engine] += 1

    def leases_lost(self, engine: str) -> int:
        """Leases that ended before they were given back."""
        with self.lock:
            return self._leases_lost[engine]

    def count_end(self, engine: str, reason: str, good: bool, untold: str | None = None) -> None:
        """Count a stream that ended; `untold` is why it had no first token, if it had none."""
        with self.lock:
            self._ends[engine, reason] += 1
            if untold is not None:
                self._untold[engine, untold] += 1
            self._good[engine] += good
            self._lately[engine].take(time.monotonic(), good)

    def count_slow(self, engine: str, cause: str) -> None:
        """Count a stream that was slow."""
        with self.lock:
            self._slow[engine, cause] += 1

    def slow(self, engine: str) -> dict[str, int]:
        """Streams that were slow, by cause."""
        with self.lock:
            return {cause: n for (name, cause), n in self._slow.items() if name == engine}

    def ends(self, engine: str) -> dict[str, int]:
        """Streams that ended, by reason."""
        with self.lock:
            return {reason: n for (name, reason), n in self._ends.items() if name == engine}

    def untold(self, engine: str) -> dict[str, int]:
        """Streams that ended without a first token, by why."""
        with self.lock:
            return {why: n for (name, why), n in self._untold.items() if name == engine}

    def good(self, engine: str) -> int:
        """Streams that met the SLO."""
        with self.lock:
            return self._good[engine]

    def attainment(self, engine: str, seconds: float) -> float | None:
        """Share of the streams that ended in the last `seconds` and were good; None without any."""
        with self.lock:
            return self._lately[engine].good_share(time.monotonic(), seconds)


class _Growing:
    """Sums of figures that begin again whenever their source does."""

    def __init__(self) -> None:
        self.totals: Counter[str] = Counter()
        self._last: Mapping[str, int] = {}
        self._past: deque[tuple[int, Mapping[str, int]]] = deque(maxlen=PAST_KEPT)

    def take(self, figures: Mapping[str, int]) -> None:
        """Add what came since the last call."""
        if figures == self._last and self._past:
            return
        for name, value in figures.items():
            last = self._last.get(name, 0)
            self.totals[name] += value - last if value >= last else value
        self._last = dict(figures)
        self._past.append((time.monotonic_ns(), dict(self.totals)))

    def since(self, at_ns: int) -> dict[str, int]:
        """What came since the last call before `at_ns`, or as much of it as is known."""
        before: Mapping[str, int] = {}
        for then_ns, totals in reversed(self._past):
            before = totals
            if then_ns <= at_ns:
                break
        return {name: value - before.get(name, 0) for name, value in self.totals.items()}
