"""Before memory runs out: neighbours are held to what they have, then the engine takes no more in.

The kernel kills when a cgroup, or the machine, can't free any more memory; the largest process
goes first, and that is the engine (seed B12). What can be seen before: events of the cgroup, time
tasks stand still for want of memory, and a forecast, how long what is left will last. A burst
fills memory faster than any of these shows: what it may take is planned by `memory_plan`. Pure;
what it is given is read by `controller.memory_watch`.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from controller.actions import Action, Proposal, ReleaseLimit, SetMemoryHigh
from controller.changed import changed
from controller.memory_plan import moved, room_for

HORIZON_S: Final = 10.0
"""Running out sooner than this is a danger: requests that run need seconds to end."""

SUDDEN_S: Final = 2.0
"""And by what was taken in the last half second, sooner than this."""

NEAR: Final = 0.30
"""A forecast is believed only when less than this share of the limit is left: an engine that
loads its model grows fast, too."""
FAR: Final = 0.5
"""Of the machine's memory: nobody takes half of it in a second."""

LEAST: Final = 0.05
"""This share of the limit is kept free. Where less is left, the forecast looks six times as far; an
engine that sits that close under its limit and takes no more is in no danger."""

FAR_S: Final = 60.0

MOST_LOW_EVENTS: Final = 5
MOST_HIGH_EVENTS: Final = 2
"""More in five seconds are a danger (seed B12): the cgroup was reclaimed below its `memory.low`,
or went over its `memory.high`."""

MOST_FULL: Final = 0.10
MOST_SOME: Final = 0.40
"""Larger shares of time in which all tasks, or any, stood still for want of memory are a danger."""

NEIGHBOURS_FIRST_NS: Final = 500_000_000
"""How long holding neighbours may fail to help before the engine is capped."""

HOLD_SLACK: Final = 0.01
"""A neighbour is held to this much above what it has: what is above `memory.high` is reclaimed by
the very write that sets it, and the loop can't wait for that."""

SHARERS: Final = 64
"""The least that each of so many neighbours is held to fits the limit: so many targets a policy
allows unless told otherwise (`agent.max_targets`). A floor that does not go with the limit would
leave all of a small machine's neighbours alone."""

PAGE: Final = 4096
"""A hold is whole pages, of the smallest size there is."""

HOLD_BAND: Final = 0.1
"""One that gave back more than this of what it was held to does not get it again meanwhile."""

CAP_DWELL_NS: Final = 1_000_000_000
CAP_CUT: Final = 0.75
ROOMY: Final = 1.1
"""What was saved is put back when so many times that fits: at the border it would come and go."""

RAISE_AFTER_NS: Final = 3_000_000_000
OVER_AFTER_NS: Final = 10_000_000_000
"""Calm for so long ends it; a cap is raised before, as far as there is room."""


@dataclass(frozen=True, slots=True)
class Bound:
    """A limit that the engine's memory counts against: a cgroup's, or with path "" the machine's.

    `left` bytes of `limit` can still be had. `growth` is bytes a second that are taken, over some
    seconds by a robust fit, `sudden` over the last half second.
    """

    path: str
    limit: int
    left: int
    growth: float = 0.0
    sudden: float = 0.0

    @property
    def lasts_s(self) -> float:
        """How long what is left lasts; infinity while nothing is taken."""
        return max(0, self.left) / self.growth if self.growth > 0 else math.inf

    @property
    def share_left(self) -> float:
        """Share of the limit that is left; 1 for a limit of nothing."""
        return self.left / self.limit if self.limit else 1.0

    @property
    def spare(self) -> float:
        """What can be planned with, in bytes: what is left but `LEAST`, below 0 when it is less."""
        return self.left - LEAST * self.limit

    def covers(self, path: str) -> bool:
        """Whether the memory of the cgroup `path` counts against it, too."""
        return not self.path or path == self.path or path.startswith(f"{self.path}/")


@dataclass(frozen=True, slots=True)
class NeighbourMemory:
    """A neighbour whose memory can be limited: `used` bytes now, never held below `least`.

    Under a small limit it may be less: see `SHARERS`. `shared` where another engine has it held as
    well.
    """

    name: str
    cgroup: str
    used: int
    least: int
    shared: bool = False


@dataclass(frozen=True, slots=True)
class MemoryView:
    """All that is known of an engine's memory.

    Events are of the last five seconds, `some` and `full` shares of the last two. `per_request` is
    how many bytes a running request takes by its end, None while that is not known. Those that run
    have yet to take as much as `unfilled` of them, and in the last minute as much as `most_had` of
    them was had at once.
    """

    bounds: tuple[Bound, ...] = ()
    low_events: int = 0
    high_events: int = 0
    some: float = 0.0
    full: float = 0.0
    per_request: float | None = None
    neighbours: tuple[NeighbourMemory, ...] = ()
    unfilled: float = 0.0
    most_had: float = 0.0

    @property
    def tightest(self) -> Bound | None:
        """The bound with the smallest share left."""
        return min(self.bounds, key=lambda bound: bound.share_left, default=None)

    @property
    def near(self) -> bool:
        """Whether it has to be looked at more often, and neighbours with it."""
        return any(b.share_left < NEAR or b.lasts_s < 3 * HORIZON_S for b in self.bounds)

    @property
    def far(self) -> bool:
        """Whether no limit but the machine's is there, and most of its memory free."""
        return all(not b.path and b.share_left > FAR for b in self.bounds) and not self.near

    @property
    def pressed(self) -> bool:
        """Whether the kernel says that tasks stood still, or that a limit was hit."""
        return bool(self.low_events or self.high_events or self.some or self.full)

    def more_requests(self) -> float:
        """How many more may run by what is left; infinity where that is not known, may be < 0."""
        if not self.per_request:
            return math.inf
        more = min((b.spare / self.per_request for b in self.bounds), default=math.inf)
        return more - self.unfilled

    def room_for(self, running: int) -> float:
        """How many may run, each to its end, while `running` do; infinity where not known."""
        left = min((bound.left for bound in self.bounds), default=math.inf)
        return room_for(left, self.per_request, running - self.unfilled, self.most_had)


@dataclass(frozen=True, slots=True)
class Danger:
    """Memory that is running out: against which bound, and how that is known.

    `growing` where what is taken says so; else fewer requests need not help.
    """

    bound: Bound
    why: str
    growing: bool = False


@dataclass(frozen=True, slots=True)
class Cappable:
    """An engine whose running cap can be set: its `value` in force, and the `least` allowed.

    `running` is None while the engine does not say.
    """

    value: float
    least: float
    running: int | None = None


@dataclass(frozen=True, slots=True)
class SentinelMemory:
    """What is in force, and since when."""

    why: str = ""
    """The danger, in words; empty when there is none."""
    danger_ns: int | None = None
    """Since when there has been one."""
    calm_ns: int | None = None
    """Since when there has been none, None while there is or when all is over."""
    holds: Mapping[str, int] = field(default_factory=dict)
    """Neighbours and the bytes each is held to."""
    cap: float | None = None
    """The most that may run, None without a cap."""
    cap_why: str = ""
    saved: float | None = None
    """What the cap was before, to be put back."""
    capped_ns: int = 0
    """When the cap was last changed."""
    restore: float | None = None
    """Set for the one tick in which it is put back."""

    def without(self, name: str) -> "SentinelMemory":
        """The same, but that neighbour is held no more."""
        return replace(self, holds={n: held for n, held in self.holds.items() if n != name})

    @property
    def active(self) -> bool:
        """Whether there is a danger, or something of the last one is not over yet."""
        return bool(self.why or self.holds) or self.calm_ns is not None


def danger_of(view: MemoryView) -> Danger | None:
    """Whether memory is running out: by what is left, by the forecast, by what the kernel says."""
    if not (view.bounds or view.pressed):
        return None
    for bound in sorted(view.bounds, key=lambda each: each.share_left):
        horizon_s = FAR_S if bound.share_left < LEAST else HORIZON_S
        if bound.share_left < NEAR and bound.lasts_s < horizon_s:
            last = f"last {bound.lasts_s:.1f} s at {_size(bound.growth)}/s"
            return Danger(bound, f"{_left(bound)} and {last}", growing=True)
        if bound.sudden > 0 and bound.left / bound.sudden < SUDDEN_S:
            taken = f"{_size(bound.sudden)}/s are taken"
            return Danger(bound, f"{_left(bound)}, and {taken}", growing=True)
    bound = view.tightest or Bound("", 0, 0)
    if view.low_events > MOST_LOW_EVENTS:
        return Danger(bound, f"it was reclaimed below memory.low {view.low_events} times in 5 s")
    if view.high_events > MOST_HIGH_EVENTS:
        return Danger(bound, f"it went over memory.high {view.high_events} times in 5 s")
    if view.full > MOST_FULL or view.some > MOST_SOME:
        return Danger(
            bound,
            f"tasks stood still for want of memory {view.some:.0%} of the time, all of them"
            f" {view.full:.0%}",
        )
    return None


def decide_memory(
    view: MemoryView, memory: SentinelMemory, now_ns: int, engine: Cappable | None
) -> tuple[SentinelMemory, Proposal | None]:
    """The next step against the danger, or of the way back; a cap is in the memory it returns.

    `engine` is None where its running cap can't be set now; a cap held is then no more.
    """
    memory = changed(memory, restore=None)
    if engine is None and memory.cap is not None:
        memory = replace(memory, cap=None, saved=None, cap_why="")
    danger = danger_of(view)
    if danger is None:
        return _recover(view, memory, now_ns, engine)
    since_ns = now_ns if memory.danger_ns is None else memory.danger_ns
    memory = replace(memory, why=danger.why, danger_ns=since_ns, calm_ns=None)
    memory, proposal = _hold(view, memory, danger)
    if engine is not None:
        helped = bool(memory.holds) and danger.bound.lasts_s > SUDDEN_S
        if not helped or now_ns - since_ns >= NEIGHBOURS_FIRST_NS:
            memory = _cap(view, memory, danger, now_ns, engine)
    return memory, proposal


def _hold(
    view: MemoryView, memory: SentinelMemory, danger: Danger
) -> tuple[SentinelMemory, Proposal | None]:
    """Neighbours that take from the same memory are held to what they have."""
    holds = dict(memory.holds)
    actions: list[Action] = []
    most_least = danger.bound.limit // SHARERS // PAGE * PAGE or math.inf
    for each in view.neighbours:
        old, least = holds.get(each.name), int(min(each.least, most_least))
        high = max(least, int((1 + HOLD_SLACK) * each.used) // PAGE * PAGE)
        taken = each.used > least if old is None else high < (1 - HOLD_BAND) * old
        if danger.bound.covers(each.cgroup) and taken:
            holds[each.name] = high
            actions.append(SetMemoryHigh(each.name, high, old))
    if not actions:
        return memory, None
    return replace(memory, holds=holds), Proposal(tuple(actions), danger.why)


def _cap(
    view: MemoryView, memory: SentinelMemory, danger: Danger, now_ns: int, engine: Cappable
) -> SentinelMemory:
    """No more than run now; fewer, if what is left is not enough, or is not known to be."""
    if memory.cap is not None and now_ns - memory.capped_ns < CAP_DWELL_NS:
        return memory
    value = memory.cap if memory.cap is not None else engine.value
    more = view.more_requests()
    if engine.running is None:
        wanted = CAP_CUT * value if danger.growing else value
    elif memory.cap is not None and engine.running > value:
        # those above the cap are still ending: only what does not fit either is taken off
        wanted = engine.running + more
    else:
        wanted = engine.running + min(0.0, more)
        # growth that ends with those that run is what the cap was planned for
        planned = 0 <= more < math.inf
        if memory.cap is not None and danger.growing and not planned:
            wanted = min(wanted, CAP_CUT * value)
    cap = float(max(engine.least, min(value, math.floor(wanted) if wanted < value else value)))
    saved = engine.value if memory.cap is None else memory.saved
    return replace(memory, cap=cap, cap_why=danger.why, saved=saved, capped_ns=now_ns)


def _recover(
    view: MemoryView, memory: SentinelMemory, now_ns: int, engine: Cappable | None
) -> tuple[SentinelMemory, Proposal | None]:
    if memory.danger_ns is None and memory.calm_ns is None and not memory.holds:
        return _plan(view, memory, now_ns, engine, settled=True), None
    if memory.calm_ns is None:
        memory = replace(memory, calm_ns=now_ns)
    memory = replace(memory, danger_ns=None, why="")
    calm_ns = now_ns - (memory.calm_ns or now_ns)
    over = calm_ns >= OVER_AFTER_NS
    if memory.cap is None or calm_ns >= RAISE_AFTER_NS:
        memory = _plan(view, memory, now_ns, engine, settled=over)
    if not over:
        return memory, None
    return _let_go(view, replace(memory, calm_ns=None), calm_ns)


def _plan(
    view: MemoryView,
    memory: SentinelMemory,
    now_ns: int,
    engine: Cappable | None,
    *,
    settled: bool,
) -> SentinelMemory:
    """The cap where memory holds fewer than may run; moved, and put back, as what it holds does."""
    if engine is None:
        return memory
    fits = view.room_for(engine.running or 0)
    cap_why = memory.cap_why
    if view.per_request:
        cap_why = f"memory has room for {fits:.1f} requests of {_size(view.per_request)}"
    if memory.cap is None:
        if engine.running is None or fits >= engine.value:
            return memory
        cap = float(max(engine.least, math.floor(fits)))
        return replace(memory, cap=cap, cap_why=cap_why, saved=engine.value, capped_ns=now_ns)
    assert memory.saved is not None
    if settled and fits >= ROOMY * memory.saved:
        return replace(memory, cap=None, cap_why="", saved=None, restore=memory.saved)
    if now_ns - memory.capped_ns < CAP_DWELL_NS:
        return memory
    cap = moved(memory.cap, fits, engine.least, memory.saved)
    if cap == memory.cap:
        return memory
    return replace(memory, cap=cap, cap_why=cap_why, capped_ns=now_ns)


def _let_go(
    view: MemoryView, memory: SentinelMemory, calm_ns: int
) -> tuple[SentinelMemory, Proposal | None]:
    shared = {each.name for each in view.neighbours if each.shared}
    actions = tuple(
        ReleaseLimit(name, "memory_high", held)
        for name, held in memory.holds.items()
        if name not in shared
    )
    memory = replace(memory, holds={}) if memory.holds else memory
    if not actions:
        return memory, None
    return memory, Proposal(actions, f"memory has not run short for {calm_ns / 1e9:.0f} s")


def _left(bound: Bound) -> str:
    place = f"in cgroup {bound.path}" if bound.path else "of the machine"
    return f"{_size(bound.left)} of {_size(bound.limit)} {place} are left"


def _size(count: float) -> str:
    return f"{count / (1 << 20):.0f} MiB"
