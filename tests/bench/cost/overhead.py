"""What our programs cost at a switch and a wake-up, against those of others.

The load are two processes on one CPU that hand a byte to and fro: it does nothing else, and both of
them are watched by all. Each round plays it without anything, with ours, and with each peer; once
for the time of a turn, once more while the kernel counts the programs' runs.

The counter reads the clock before and after a run, and counts some of that: a program that does
nothing is counted in the same rounds, and what it is said to take is taken off all others.
"""

import os
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from bpf.layout import TargetKind
from bpf.libbpf import Object, count_runs
from bpf.targets import Target
from tests.bench.ground import Ground, ground
from tests.kernel.agent.groups import inside
from tests.kernel.bpf.watched import Watched
from tests.kernel.conftest import TwinGroup

from .counting import Counted, counts, since
from .cpus import divided, keeping_to
from .extent import Extent
from .figures import Figure, Found, alternate, ratios, slowdowns
from .peers import RUN_QUEUE_PEERS, Peer, PeerError, tracing

SOURCE: Final = Path(__file__).with_name("pingpong.c")
NOTHING_SOURCE: Final = Path(__file__).with_name("nothing.bpf.c")
INCLUDES: Final = ("-I", f"/usr/include/{os.uname().machine}-linux-gnu")
SWITCH: Final = "sched_switch"
WAKEUP: Final = "sched_wakeup"
NOTHING: Final = "nothing"
UNWATCHED: Final = "tasks nobody watches"
PEER: Final = "runqlat"
"""The one that the budgets are of: compiled ahead, like ours."""

EDGE_NS: Final = 25_000_000


@dataclass(frozen=True, slots=True)
class Played:
    """One run: how long a turn took, and what the programs ran in the one after it."""

    turn_ns: float
    counted: Counted


class PingPong:
    """The load: two processes of a cgroup, on one CPU."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process
        self._say = process.stdin
        self._hear = process.stdout

    def play(self, turns: int) -> float:
        """So many times there and back; ns of one."""
        assert self._say is not None
        assert self._hear is not None
        self._say.write(f"{turns}\n")
        self._say.flush()
        return float(self._hear.readline())


def measure(extent: Extent) -> Found:
    """The figures `overhead.*` of the scheduler's programs."""
    cpu, others = divided()
    with ground() as on, keeping_to(others), TemporaryDirectory() as made:
        directory = Path(made)
        group = on.make_group("pingpong")
        with pingpong(group, cpu, clang(SOURCE, directory)) as load:
            load.play(extent.turns)
            variants: dict[str, Callable[[], Played]] = {
                "alone": partial(_play, on, load, extent.turns, None),
                "ours": partial(_ours, on, load, extent.turns, group),
                "unwatched": partial(_ours, on, load, extent.turns, on.make_group("other")),
                NOTHING: partial(
                    _nothing, on, load, extent.turns, clang(NOTHING_SOURCE, directory)
                ),
            }
            refused = {}
            for name, peer in RUN_QUEUE_PEERS.items():
                try:
                    with tracing(peer):
                        variants[name] = partial(_peer, on, load, extent.turns, peer)
                except PeerError as error:
                    refused[name] = str(error)
            return figures(alternate(extent.short_rounds, variants), refused)


def figures(runs: Mapping[str, list[Played]], refused: Mapping[str, str]) -> Found:
    """What the runs of each variant come to; `refused` says why a peer has none."""
    turns = {name: [run.turn_ns for run in played] for name, played in runs.items()}
    slower = {name: Figure(slowdowns(turns[name], turns["alone"])) for name in runs}
    switches = {name: Figure(_each(played, runs[NOTHING], SWITCH)) for name, played in runs.items()}
    wakeups = {name: Figure(_each(played, runs[NOTHING], WAKEUP)) for name, played in runs.items()}
    missing = {name: Figure(note=why) for name, why in refused.items()}
    peer = switches.get(PEER, Figure(note=refused.get(PEER, "")))

    def others(found: Mapping[str, Figure]) -> dict[str, Figure]:
        there = {name: found[name] for name in RUN_QUEUE_PEERS if name in found and name != PEER}
        return there | {name: figure for name, figure in missing.items() if name != PEER}

    def ratio(name: str) -> tuple[float, ...]:
        return ratios(switches[name].values, peer.values) if peer.values else ()

    counter = Figure(tuple(run.counted.ns(SWITCH) or 0.0 for run in runs[NOTHING]))
    return {
        "overhead.switch_ns": Figure(
            switches["ours"].values,
            f"two watched tasks; {counter.median:.0f} ns that the counter itself takes are off,"
            " also from the peers",
            {UNWATCHED: switches["unwatched"]},
        ),
        "overhead.wakeup_ns": Figure(
            wakeups["ours"].values,
            "none of our programs is there: the scheduler's own note is read at the switch",
            {PEER: wakeups[PEER]} if PEER in wakeups else {},
        ),
        "overhead.peer_switch_ns": Figure(peer.values, peer.note, others(switches)),
        "overhead.switch_ratio": Figure(
            ratio("ours"), peer.note, {UNWATCHED: Figure(ratio("unwatched"), peer.note)}
        ),
        "overhead.pingpong_slowdown": Figure(
            slower["ours"].values,
            "share by which a turn of two switches and two wake-ups takes longer",
            {UNWATCHED: slower["unwatched"], "programs that do nothing": slower[NOTHING]},
        ),
        "overhead.peer_pingpong_slowdown": Figure(
            slower[PEER].values if PEER in slower else (), peer.note, others(slower)
        ),
    }


def _each(played: list[Played], nothing: list[Played], tracepoint: str) -> tuple[float, ...]:
    """ns of a run at a tracepoint without the counter's own, round by round.

    0 where none of the programs is there; of all programs together where they can't be told apart;
    none where nothing was counted.
    """
    costs = []
    for run, empty in zip(played, nothing, strict=True):
        ran = run.counted
        cost = ran.ns(tracepoint) if ran.by_tracepoint else ran.ns_of_all
        if cost is not None:
            costs.append(cost - (empty.counted.ns(tracepoint) or 0.0))
        elif ran.by_tracepoint:
            costs.append(0.0)
        else:
            return ()
    return tuple(costs)


def _play(on: Ground, load: PingPong, turns: int, pid: int | None) -> Played:
    turn_ns = load.play(turns)
    if pid is None:
        return Played(turn_ns, since({}, {}))
    with counting(on):
        before = counts(pid)
        load.play(turns // 2)
        return Played(turn_ns, since(before, counts(pid)))


def _ours(on: Ground, load: PingPong, turns: int, group: TwinGroup) -> Played:
    with on.watched() as watched:
        watch(watched, group)
        return _play(on, load, turns, os.getpid())


def _nothing(on: Ground, load: PingPong, turns: int, compiled: Path) -> Played:
    """Programs of ours that do nothing."""
    lib, opened, links = on.lib, Object(on.lib, compiled), []
    try:
        opened.load()
        for name, handle in opened.programs().items():
            program = lib.bpf_program__fd(handle)
            links.append(
                lib.check(lib.bpf_raw_tracepoint_open(None, program), f"attach program '{name}'")
            )
        return _play(on, load, turns, os.getpid())
    finally:
        for link in links:
            os.close(link)
        opened.close()


def _peer(on: Ground, load: PingPong, turns: int, peer: Peer) -> Played:
    with tracing(peer) as pid:
        return _play(on, load, turns, pid)


def watch(watched: Watched, group: TwinGroup) -> None:
    """Watch a cgroup's tasks as an engine's."""
    watched.watch(
        Target(
            "pingpong",
            TargetKind.ENGINE,
            wait_edge_ns=EDGE_NS,
            cpu_cgroups=frozenset([group.cpu_id]),
        )
    )


@contextmanager
def counting(on: Ground) -> Iterator[None]:
    """The kernel counts every program's runs meanwhile."""
    fd = count_runs(on.lib)
    try:
        yield
    finally:
        os.close(fd)


@contextmanager
def pingpong(group: TwinGroup, cpu: int, program: Path) -> Iterator[PingPong]:
    """The load, started in `group`."""
    command = inside(group, "taskset", "-c", str(cpu), str(program))
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield PingPong(process)
        finally:
            process.kill()


def clang(source: Path, directory: Path) -> Path:
    """What a source of this directory compiles to: a program, or an object for the kernel."""
    made = directory / source.stem
    target = ("-g", "-target", "bpf", *INCLUDES, "-c") if ".bpf" in source.suffixes else ()
    subprocess.run(["clang", "-O2", *target, "-o", str(made), str(source)], check=True)
    return made
