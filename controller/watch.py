"""What the loop keeps of one engine between ticks, and what it makes of it."""

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from bpf.layout import Counters
from controller.attribution import Cause, Verdict, attribute
from controller.backpressure import Backpressure, Queues, backpressure, send_pressure
from controller.batching import BatchMemory, BatchView
from controller.core import SLOW_NS, CoreState, learn_steps, phase_ns
from controller.cpu_limits import CpuMemory, CpuView
from controller.engines.link import EngineLink
from controller.engines.page import STEP_SLOTS, EngineNow, Step
from controller.figures import Figures
from controller.limits.cgroup import CgroupError, Group
from controller.limits.throttling import ThrottlingReader
from controller.memory_sentinel import MemoryView, SentinelMemory
from controller.memory_watch import MemoryWatch
from controller.policy_model import Engine, Mode
from controller.predict.buckets import BUCKET_NS, Buckets
from controller.predict.chooser import Chooser, Outlook
from controller.pressure import Pressure, PressureReader
from controller.progress import Progress, Stall
from controller.ranks import is_pattern
from controller.recording import Inputs
from controller.rollback import Trial
from controller.signals import Sample, Signals, between
from controller.step_model import as_felt, is_outlier
from controller.unsent import UnsentWatch
from controller.warm import Learnt, fingerprint, model_of, note, prompt_class, trim_of

WINDOW_NS: Final = 500_000_000
ARRIVALS_NS: Final = 5_000_000_000
ARRIVALS_EVERY_NS: Final = 100_000_000
OUTLOOK_S: Final = 3
"""How far the load is looked ahead: a budget is set for what comes before it can be set again, and
the prompts it lets in take seconds."""

PLANNED_SHARE: Final = 0.9
"""The load is planned for with this chance of being enough: a mean is too little half the time."""

LOOK_EVERY_NS: Final = 1_000_000_000
"""What the kernel says of an engine's cgroups explains what is late: it is read so often while
nothing is."""
LOOK_CLOSELY_NS: Final = 250_000_000
"""And so often while something is."""
SAMPLE_EVERY_NS: Final = 1_000_000_000
UNTUNED_SAMPLE_EVERY_NS: Final = 10_000_000_000
"""Of an engine without knobs there are no steps to fit a model to."""
LEARNT_A_TICK: Final = 4
"""Steps of one tick that a trusted model learns from; an engine may do more than that."""
LOAD_EVERY_NS: Final = 100_000_000
LOADS_KEPT: Final = 24
"""More than come between two status messages, so that a late one loses none."""
STALL_NS: Final = 200_000_000
"""A standstill shorter than this is not called one, however short a gap has to be."""


class EngineWatch:
    """One engine: its policy, its row, its link, its recent past and what we hold of it."""

    def __init__(
        self,
        policy: Engine,
        row: int,
        group: Group | None,
        lease_ms: int,
        socket: Path | None = None,
        *,
        follows: bool = False,
    ) -> None:
        """`socket` is where its adapter serves it; without one it serves itself, or nobody does.

        One that `follows` is a further rank of an engine: its CPU is looked after with the first.
        """
        self.policy = policy
        self.follows = follows
        self.gone_ns: int | None = None
        """Since when a rank's socket has been gone."""
        self.by_hand: Mapping[str, Any] | None = None
        """What an operator set, or is about to; the knobs are not ours to decide on meanwhile."""
        self.row = row
        self.group = group
        self.base_weight: int | None = None
        self.group_detail = ""
        socket = socket or policy.admin_socket
        self.link = EngineLink(socket, lease_ms) if socket else None
        self.is_removed = False
        """Whether the socket is gone while its connection lasts."""
        self.core = CoreState(slow_after_ns=SLOW_NS + phase_ns(row))
        self.memory = MemoryWatch(group)
        self.sentinel = SentinelMemory()
        self.cpu = CpuMemory()
        self.signals: Signals | None = None
        self.verdict = Verdict(Cause.NONE)
        self.pressure = Backpressure()
        self.queues = Queues()
        self.cause_ns: dict[str, int] = {}
        self.throttled_ns = 0
        self.looked_ns = 0
        self.sampled_ns = 0
        """When what is decided on was last written down for replay."""
        self.group_pressure = Pressure()
        self._pressure_reader = PressureReader(group) if group is not None else None
        self._throttling_reader = ThrottlingReader(group) if group is not None else None
        self.figures = Figures()
        self._progress = Progress()
        self._unsent = UnsentWatch(policy.slo.gap_ms * 1e6)
        self._samples: deque[Sample] = deque()
        self._steps: deque[Step] = deque()
        self._last_step: Step | None = None
        self._disturbed: deque[int] = deque(maxlen=STEP_SLOTS)
        self._arrivals: deque[tuple[int, int]] = deque()
        # half a second from layer 2, so that no tick of an engine has both
        self._buckets = Buckets(BUCKET_NS + (phase_ns(row) + SLOW_NS // 2) % SLOW_NS)
        self._came: deque[float] = deque()
        self._chooser = Chooser(OUTLOOK_S, PLANNED_SHARE)
        self.loads: deque[tuple[int, ...]] = deque(maxlen=LOADS_KEPT)
        """The engine's queues, the newest last."""

    def take(
        self,
        now_ns: int,
        counters: Counters,
        neighbours_ns: int,
        injected: float,
        neighbour_pressure: float,
    ) -> Signals:
        """Add one tick's figures; returns the signals of the window they end.

        Above a share of `neighbour_pressure` others are to blame; below it what they take is part
        of how long the engine's steps are, which the model learns.
        """
        fresh, engine = self._shown(now_ns)
        self._disturbed.extend(step.index for step in fresh if is_outlier(self.core.model, step))
        pressure = self.group_pressure
        self._keep(Sample(now_ns, counters, self.throttled_ns, neighbours_ns, pressure), fresh)
        self._keep_load(now_ns, engine)
        shown = self.link.now if self.link is not None else None
        self._progress.take(now_ns, counters, shown, pressure, self._used_ns)
        signals = between(
            self._samples[0],
            self._samples[-1],
            engine,
            self._steps,
            self._arrival_rate(now_ns, engine),
            injected,
            self._stall(),
            self._unsent.take(now_ns, counters),
            self._disturbed,
            self.figures.doubted_ns(now_ns),
        )
        elapsed_ns = now_ns - self.signals.now_ns if self.signals is not None else 0
        self.signals = signals
        self.core = learn_steps(self.core, self._felt(fresh), signals, neighbour_pressure)
        self._last_step = fresh[-1] if fresh else self._last_step
        self.pressure = backpressure(
            signals,
            self.policy.slo.ttft_ms,
            self.queues.accept_fill,
            send_pressure(counters, self.queues),
        )
        self.verdict = attribute(signals, self.policy.slo, neighbour_pressure)
        if signals.at_risk:
            cause = str(self.verdict.cause)
            self.cause_ns[cause] = self.cause_ns.get(cause, 0) + elapsed_ns
        return signals

    def _felt(self, fresh: Sequence[Step]) -> Sequence[Step]:
        """Those to learn from."""
        if not self.core.model.trusted or len(fresh) <= LEARNT_A_TICK:
            return as_felt(fresh, self._last_step)
        return as_felt(fresh[-LEARNT_A_TICK:], fresh[-LEARNT_A_TICK - 1])

    def _shown(self, now_ns: int) -> tuple[Sequence[Step], EngineNow | None]:
        """The steps that ended and what the engine does now, as far as it can be built on."""
        if self.link is None:
            return (), None
        if self.figures.wants_anew(now_ns):
            self.link.look_anew()
        fresh = self.link.read_page()
        engine = self.figures.take(now_ns, self.link)
        return (fresh, engine) if self.figures.doubt is None else ((), None)

    @property
    def key(self) -> str:
        """Its name, and which rank it is where there may be several."""
        if self.link is None or not is_pattern(self.policy.admin_socket):
            return self.policy.name
        return f"{self.policy.name}/{self.link.path.name}"

    @property
    def instance(self) -> str | None:
        """Which start of the engine it is, once it has said."""
        return self.link.hello.instance if self.link is not None and self.link.hello else None

    @property
    def at_risk(self) -> bool:
        """Whether something was late, or nothing got through, in the window before."""
        return self.signals is not None and self.signals.at_risk

    @property
    def waits(self) -> bool:
        """Whether there was work at the last tick and nothing new had come of it."""
        return self._progress.waits

    @property
    def holds(self) -> bool:
        """Whether anything of it is held, or would be in mode control, by whomever."""
        held = self.link is not None and self.link.held
        by_laws = self.cpu.weight is not None or self.sentinel.active or self.core.batch.point
        return bool(held or by_laws or self.by_hand is not None)

    @property
    def steps(self) -> Collection[Step]:
        """The engine's steps in the window."""
        return self._steps

    @property
    def outlook(self) -> Outlook:
        """The prompt tokens a second of the next seconds."""
        return self._chooser.outlook

    @property
    def paused(self) -> str:
        """Why nothing is decided for a while, empty while it is."""
        trial = self.core.trial
        waits = self.signals is not None and self.signals.now_ns < trial.paused_until_ns
        return trial.reason if waits else ""

    @property
    def filled(self) -> float:
        """Share of the KV cache set aside for requests that they have filled; 1 if not known."""
        engine = self.signals.engine if self.signals is not None else None
        if engine is None or not engine.kv_used or self._last_step is None:
            return 1.0
        return min(1.0, self._last_step.kv_tokens / engine.kv_used) or 1.0

    def inputs(
        self,
        mode: Mode,
        signals: Signals,
        neighbour_pressure: float,
        cpu_view: CpuView,
    ) -> Inputs:
        """All that is to be decided on at this tick."""
        policy, link = self.policy, self.link
        batch_view = None
        decidable = self.by_hand is None and link is not None and link.can_set
        if decidable and link is not None and link.hello is not None:
            batch_view = BatchView(
                link.hello.knobs,
                policy.slo,
                policy.knobs,
                link.hello.graph_sizes,
                policy.relegation.max_deferral_ms,
                link.change_ns,
            )
        return Inputs(
            mode,
            policy.slo,
            neighbour_pressure,
            signals,
            self.verdict.cause,
            cpu_view,
            self.cpu,
            batch_view,
            self.core,
            memory_view=self.memory.view if policy.limits.memory else MemoryView(),
            sentinel=self.sentinel,
        )

    def wants_sample(self, now_ns: int) -> bool:
        """Whether it is time to write down what is decided on."""
        every_ns = SAMPLE_EVERY_NS if self.link is not None else UNTUNED_SAMPLE_EVERY_NS
        return now_ns - self.sampled_ns >= every_ns

    def look_ahead(self) -> None:
        """Take what came into the outlook, once a second: no decision has to wait for that."""
        while self._came:
            self._chooser.observe(self._came.popleft())

    def look_first(self, now_ns: int) -> None:
        """Read what no decision may be without: what stops the engine, while something is late.

        And all there is before the first: what grew until then is not of the first window.
        """
        if not self.looked_ns:
            self.look_around(now_ns)
        elif self.at_risk:
            self._look_at_quota()

    def look_around(self, now_ns: int) -> None:
        """Read what the kernel says of the engine's cgroups, if it is time to.

        That takes as long as a decision, and explains what is late the tick after as well.
        """
        if now_ns - self.looked_ns < (LOOK_CLOSELY_NS if self.at_risk else LOOK_EVERY_NS):
            return
        self.looked_ns = now_ns
        if self._throttling_reader is not None:
            # another file may be in its place
            self._throttling_reader.close()
        self._look_at_quota()
        self.look()

    def look(self) -> None:
        """Read what memory and want of a CPU cost it, and whether its socket is there."""
        if self._pressure_reader is not None:
            self.group_pressure = self._pressure_reader.read()
        if self.link is not None:
            self.is_removed = self.link.client is not None and not self.link.path.exists()

    def _look_at_quota(self) -> None:
        if self._throttling_reader is None:
            return
        try:
            self.throttled_ns = self._throttling_reader.throttled_ns()
        except CgroupError as error:
            self.group_detail = str(error)

    def close(self) -> None:
        """Close what is open."""
        for reader in (self._pressure_reader, self._throttling_reader):
            if reader is not None:
                reader.close()
        self.memory.close()
        if self.link is not None:
            self.link.close()

    def adopt(self, policy: Engine, lease_ms: int) -> None:
        """Go on under another policy of the same engine, with what is held and learnt."""
        if policy.slo != self.policy.slo:
            self._unsent = UnsentWatch(policy.slo.gap_ms * 1e6)
            # what was late by the old SLO says nothing of the new one
            self.core = replace(self.core, trial=Trial())
            self.restart_window()
        self.policy = policy
        if self.link is not None:
            self.link.set_lease(lease_ms)

    def move(self, socket: Path, lease_ms: int) -> None:
        """Its admin socket is another one from now on."""
        if self.link is not None:
            self.link.close()
        self.link = EngineLink(socket, lease_ms)
        self.forget()

    def restart_window(self) -> None:
        """Judge what follows by itself: something was just changed."""
        if self._samples:
            last = self._samples[-1]
            self._samples.clear()
            self._samples.append(last)
        self._steps.clear()

    def resume(self, now_ns: int) -> None:
        """Nobody looked for a while: begin with what is to be seen from now on."""
        self._samples.clear()
        self._steps.clear()
        self._arrivals.clear()
        self._progress = Progress()
        self._unsent = UnsentWatch(self.policy.slo.gap_ms * 1e6)
        self.looked_ns = 0
        self.figures.resume(now_ns)
        self.memory.forget()
        self.cpu = replace(self.cpu, calm_ns=None, idle_ns=None, trouble_ns=None)
        self.core = replace(self.core, slow_ns=None, idle_ns=None, disturbed=False)
        if self.link is not None:
            self.link.resume(now_ns)
            # steps that the pause came between say nothing of how long one takes
            self.link.read_page()
            self._last_step = None

    def let_go(self) -> None:
        """Somebody else has the knobs: what we held of them is no more."""
        self.core = replace(self.core, batch=BatchMemory())
        self.sentinel = replace(self.sentinel, cap=None, saved=None, restore=None)

    def forget(self) -> None:
        """The engine started anew: nothing learnt or held of it is true any more."""
        self.core = CoreState(slow_after_ns=SLOW_NS + phase_ns(self.row))
        self.memory.forget()
        self.sentinel = replace(self.sentinel, cap=None, saved=None, restore=None)
        self._arrivals.clear()
        self._steps.clear()
        self._disturbed.clear()
        self._last_step = None

    def remember(self, known: Mapping[str, Learnt]) -> None:
        """Begin with what an earlier run learnt of this engine, if it did."""
        key = self._fingerprint
        if key in known and not self.core.model.steps:
            model = model_of(known[key])
            self.core = replace(self.core, model=model, trim=trim_of(known[key], self._lengths))

    def learnt(self, known: Mapping[str, Learnt]) -> tuple[str, Learnt | None]:
        """The engine's fingerprint and what is to be remembered of it."""
        key, core = self._fingerprint, self.core
        return key, note(known.get(key), core.model, core.trim, self._lengths) if key else None

    @property
    def _fingerprint(self) -> str:
        """Empty for an engine that does not say who it is."""
        if self.link is None or self.link.hello is None:
            return ""
        return fingerprint(self.policy.name, self.link.hello)

    @property
    def _lengths(self) -> int:
        """The class of the prompts that the engine has had so far."""
        now = self.link.now if self.link is not None else None
        if now is None or not now.requests_total:
            return 0
        return prompt_class(now.prompt_tokens_total / now.requests_total)

    def _used_ns(self) -> int | None:
        """Asked while nothing comes of the work: then why has to be known soon too."""
        self.look()
        return self._pressure_reader.used_ns() if self._pressure_reader is not None else None

    def _stall(self) -> Stall | None:
        """The standstill that matters to the window."""
        stall = self._progress.stall
        if stall is None or stall.until_ns < self._samples[0].now_ns:
            return None
        long = stall.until_ns - stall.since_ns >= max(STALL_NS, self.policy.slo.gap_ms * 1e6)
        return stall if long else None

    def _keep(self, sample: Sample, steps: Sequence[Step]) -> None:
        self._samples.append(sample)
        while len(self._samples) > 2 and self._samples[1].now_ns <= sample.now_ns - WINDOW_NS:
            self._samples.popleft()
        self._steps.extend(steps)
        while self._steps and self._steps[0].end_ns < self._samples[0].now_ns:
            self._steps.popleft()
        while self._disturbed and (not self._steps or self._disturbed[0] < self._steps[0].index):
            self._disturbed.popleft()

    def _keep_load(self, now_ns: int, engine: EngineNow | None) -> None:
        """The engine's queues once every `LOAD_EVERY_NS` of the clock, for the agent's stages."""
        index = now_ns // LOAD_EVERY_NS
        if engine is None or (self.loads and self.loads[-1][0] == index):
            return
        self.loads.append(
            (index, engine.waiting, engine.running, engine.requests_total, engine.finished_total)
        )

    def _arrival_rate(self, now_ns: int, engine: EngineNow | None) -> float:
        """Prompt tokens a second to plan for: what came in the last seconds, or what may come."""
        if engine is None:
            return 0.0
        self._came.extend(self._buckets.take(now_ns, engine.prompt_tokens_total))
        arrivals = self._arrivals
        if arrivals and engine.prompt_tokens_total < arrivals[-1][1]:
            arrivals.clear()
        if not arrivals or now_ns - arrivals[-1][0] >= ARRIVALS_EVERY_NS:
            arrivals.append((now_ns, engine.prompt_tokens_total))
        while len(arrivals) > 2 and arrivals[1][0] <= now_ns - ARRIVALS_NS:
            arrivals.popleft()
        elapsed_ns = now_ns - arrivals[0][0]
        if elapsed_ns < ARRIVALS_EVERY_NS:
            return 0.0
        came = (engine.prompt_tokens_total - arrivals[0][1]) / (elapsed_ns / 1e9)
        return max(came, self._chooser.outlook.plan)
