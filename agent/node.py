"""The kernel side as the daemon uses it: loaded programs, watched targets, counters and events.

Where nothing can be loaded (no privilege, no BTF, no libbpf) it stands in with counters that stay
zero and says why, so that what needs no kernel still works.
"""

import errno
import logging
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final

from agent.discovery import Found, Surroundings
from bpf.bcc_loader import load_bcc
from bpf.features import Features, is_bpffs, open_libbpf, possible_cpus, probe
from bpf.histogram import EMPTY, Histogram
from bpf.layout import (
    COUNTERS,
    HEALTH,
    Counters,
    Event,
    EventKind,
    Health,
    TargetKind,
    kind_of,
    parse_event,
)
from bpf.libbpf import Libbpf, LibbpfError, Ring, Runs
from bpf.loader import Plan, Programs, load
from bpf.readers import (
    CounterReader,
    Culprit,
    HistogramReader,
    Role,
    RoleReader,
    read_culprits,
)
from bpf.run_counting import RunCounting
from bpf.targets import Target, TargetTable
from bpf.tiers import BCC_LIMITS, Tier, choose_tier, tier_problem
from controller.policy_model import Engine, Policy
from controller.start import Handles

EDGE_SHARE: Final = 0.25
"""A single wait for the CPU of this share of the gap SLO wakes the controller."""

MOST_EVENTS: Final = 20_480
"""Taken at once: all that the ring can hold, and so all that was there. What comes meanwhile does
not keep the rest of the agent waiting, however fast streams come and go."""

HISTOGRAMS: Final = {"ttft": "first_chunks", "gap": "gaps", "wait": "waits"}
"""Each with the counter of what comes into it."""

_LOG: Final = logging.getLogger("sits.node")


class Node:
    """What this kernel gives us. Only `features` are known before `load`."""

    def __init__(self, policy: Policy) -> None:
        """Ask the kernel what it allows."""
        self._policy = policy
        self._lib = open_libbpf()
        self.features: Features = probe(self._lib)
        self.problems: list[str] = []
        self.tier: Tier = "none"
        self.handles: Handles
        self._reader: CounterReader
        self._own_fds: list[int] = []
        self.programs: Programs | None = None
        self._table: TargetTable | None = None
        self._ring: Ring | None = None
        self._histograms: dict[str, HistogramReader] = {}
        self._roles: RoleReader | None = None
        self._counting: RunCounting | None = None

    def set_policy(self, policy: Policy) -> None:
        """Watch by another policy from the next `watch` on; thresholds follow it."""
        self._policy = policy

    def load(
        self, on_event: Callable[[Event], None], wants_firsts: Callable[[], bool] = lambda: True
    ) -> None:
        """Load or adopt; never raises for what the kernel refuses, see `problems`.

        `on_event` is told of first chunks only where `wants_firsts`.
        """

        def take(raw: bytes) -> None:
            if kind_of(raw) != EventKind.FIRST or wants_firsts():
                on_event(parse_event(raw))

        lib = self._lib
        rows = self._policy.agent.max_targets + 1  # row 0 is nobody's
        self.tier = choose_tier(self.features, self._policy.agent.tier)
        if lib is not None and self.tier != "none":
            self._load(lib, rows, take)
        elif lib is None:
            self.problems.append("nothing is measured: libbpf.so.1 was not found")
        elif self.features.missing_capabilities:
            missing = ", ".join(self.features.missing_capabilities)
            self.problems.append(f"nothing is measured: this process lacks {missing}")
        else:
            self.problems.append(f"nothing is measured: {tier_problem(self.features)}")
        cpus = possible_cpus(lib) if lib is not None else os.cpu_count() or 1
        self.handles = self._handles(rows, cpus)
        self._reader = CounterReader(self.handles.counters, self.handles.health, rows, cpus)

    @property
    def rows(self) -> Mapping[str, int]:
        """Each watched target's row by name."""
        return self._table.rows if self._table is not None else {}

    @property
    def how(self) -> str:
        """How the programs came to be loaded: fresh, kept, adopted, or none."""
        return self.programs.how if self.programs is not None else "none"

    def fileno(self) -> int | None:
        """Readable when many events are there, see bpf/life.h; None without the kernel side."""
        return self._ring.fileno() if self._ring is not None else None

    def consume(self) -> None:
        """Hand on all events there are."""
        if self._ring is not None:
            self._ring.consume()

    def watch(self, found: Surroundings) -> list[str]:
        """Watch exactly these targets; returns what could not be done."""
        if self._table is None or self.programs is None:
            return []
        policies = {engine.name: engine for engine in self._policy.engines}
        targets = [_engine(policies[e.name], e) for e in found.engines if e.present]
        targets += [_neighbour(n) for n in found.neighbours if n.present]
        try:
            problems = [
                f"{name} is not watched: more targets than agent.max_targets"
                f" = {self._policy.agent.max_targets}"
                for name in self._table.apply(targets)
            ]
        except LibbpfError as error:
            # a table is full: what is in it is watched
            problems = [f"not all that the targets are is watched: {error}"]
        if self.programs.follows_streams:
            problems += self._attach(found.engines)
        return problems

    def counters(self, name: str) -> Counters:
        """What a target did so far; zeros if it is not watched."""
        row = self._row(name)
        return self._reader.counters(row) if row is not None else Counters()

    def histogram(self, which: str, name: str) -> Histogram:
        """A target's histogram: which is ttft, gap or wait."""
        row = self._row(name)
        reader = self._histograms.get(which)
        return reader.read(row) if reader is not None and row is not None else EMPTY

    def _row(self, name: str) -> int | None:
        return self._table.row(name) if self._table is not None else None

    def health(self) -> Health:
        """What our own limits cost."""
        return self._reader.health()

    def tick(self, now_s: float) -> None:
        """Do what is to be done now and then; call it a few times a second."""
        if self._counting is None:
            return
        try:
            self._counting.tick(now_s)
        except LibbpfError as error:
            # to have runs counted takes CAP_SYS_ADMIN, which the unit keeps from us on purpose
            if error.errno != errno.EPERM:
                self.problems.append(f"how often and how long programs run is not known: {error}")
            self._counting = None

    def program_runs(self) -> tuple[dict[str, Runs], float]:
        """What each of our programs ran while that was counted, and for how many seconds it was."""
        counting = self._counting
        return (counting.runs(), counting.counted_s) if counting is not None else ({}, 0.0)

    def culprits(self) -> list[Culprit]:
        """Who held the CPU while targets waited, the worst first, since programs were loaded."""
        return read_culprits(self.programs.map("culprits")) if self.programs is not None else []

    def roles(self) -> list[Role]:
        """What the targets' threads did, by name."""
        return self._roles.read() if self._roles is not None else []

    def close(self) -> None:
        """Let go; what is pinned goes on counting."""
        self._reader.close()
        if self._roles is not None:
            self._roles.close()
        if self._ring is not None:
            self._ring.close()
        if self._counting is not None:
            self._counting.close()
        if self.programs is not None:
            self.programs.close()
        for fd in self._own_fds:
            os.close(fd)

    def _load(self, lib: Libbpf, rows: int, take: Callable[[bytes], None]) -> None:
        pin_dir: Path | None = self._policy.agent.pin_dir
        if pin_dir is not None and not is_bpffs(pin_dir):
            self.problems.append(
                f"counters start anew with every start of the agent: {pin_dir} is not on a BPF"
                " file system (`mount -t bpf bpf /sys/fs/bpf`)"
            )
            pin_dir = None
        try:
            plan = Plan(self.features, rows, pin_dir)
            self.programs = load(lib, plan) if self.tier == "btf" else load_bcc(lib, plan)
        except (LibbpfError, OSError) as error:
            why = "the kernel has no BTF, and " if not self.features.btf else ""
            self.problems.append(f"nothing is measured: {why}{error}")
            _LOG.error("%s", error)
            self.tier = "none"
            return
        if self.tier == "bcc":
            self.problems.append(BCC_LIMITS)
        elif not self.programs.follows_streams:
            self.problems.append(
                "streams are not followed: the kernel lacks bpf_loop (5.17), socket storage or a"
                " mounted cgroup2; run-queue delay is measured"
            )
        else:
            self._ring = Ring(lib, self.programs.maps["events"], take, MOST_EVENTS)
        self._counting = RunCounting(self.programs)
        self._table = TargetTable(self.programs)
        self._roles = RoleReader(
            self.programs.map("role_names"), self.programs.maps["roles"], self.programs.cpus
        )
        self._histograms = {
            which: HistogramReader(
                lib, self.programs.maps[f"{which}_histograms"], self.programs.cpus
            )
            for which in HISTOGRAMS
            if f"{which}_histograms" in self.programs.maps
        }

    def _handles(self, rows: int, cpus: int) -> Handles:
        if self.programs is not None:
            maps = self.programs.maps
            return Handles(maps["counters"], maps["health"], maps["edges"], cpus)
        fds = []
        for name, size in (("counters", rows * COUNTERS.size), ("health", HEALTH.size)):
            fds.append(os.memfd_create(f"sits-no-{name}"))
            # whole pages, as the kernel's own array maps have
            os.truncate(
                fds[-1], -(-size * cpus // os.sysconf("SC_PAGESIZE")) * os.sysconf("SC_PAGESIZE")
            )
        self._own_fds += fds
        return Handles(fds[0], fds[1], None, cpus)

    def _attach(self, engines: Iterable[Found]) -> list[str]:
        assert self.programs is not None
        problems = []
        wanted = {}
        for engine in engines:
            if engine.attach is not None:
                try:
                    wanted[engine.attach.stat().st_ino] = engine
                except OSError:
                    continue
        for gone in self.programs.attached_cgroups() - wanted.keys():
            self.programs.detach(gone)
        for cgroup_id, engine in wanted.items():
            assert engine.attach is not None
            try:
                self.programs.attach(engine.attach, cgroup_id)
            except (LibbpfError, OSError) as error:
                problems.append(f"{engine.name}: streams are not followed: {error}")
        return problems


def _engine(policy: Engine, found: Found) -> Target:
    return Target(
        name=found.name,
        kind=TargetKind.ENGINE,
        ttft_slo_ns=int(policy.slo.ttft_ms * 1e6),
        gap_slo_ns=int(policy.slo.gap_ms * 1e6),
        wait_edge_ns=int(policy.slo.gap_ms * 1e6 * EDGE_SHARE),
        first_chunk_deadline_ns=int(policy.slo.first_chunk_ms * 1e6),
        cpu_cgroups=found.cpu_ids,
        processes=found.processes,
        stream_cgroups=found.stream_ids,
        ports=found.ports,
    )


def _neighbour(found: Found) -> Target:
    return Target(
        name=found.name,
        kind=TargetKind.NEIGHBOUR,
        cpu_cgroups=found.cpu_ids,
        processes=found.processes,
    )
