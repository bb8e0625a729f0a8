"""Cgroups, each a target: what watching them takes, and whether their turns are counted."""

import json
import os
import signal
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

from bpf.loader import Plan, load
from bpf.readers import CounterReader
from bpf.targets import TargetTable
from tests.bench.ground import Ground, Part
from tests.bench.scale.streams import watching
from tests.bench.scale.usage import usage
from tests.kernel.agent.rig import Sitsd
from tests.kernel.bpf.child import child
from tests.kernel.conftest import TwinGroup

HERE: Final = Path(__file__).parent
COUNTED_S: Final = 3.0


def measure(ground: Ground, count: int, seconds: float) -> Part:
    """`count` cgroups of neighbours, each with a process that wakes once a second."""
    top = ground.make_group("crowd")
    rows = count + 1
    targets = f'[neighbours.crowd]\ncgroup = "/{top.cpu.name}/*"\n'
    with below(top, count) as groups, watching(ground, targets, max_targets=rows) as sitsd:
        directories = [str(each) for each in sorted({top.cpu, top.v2})]
        with child(str(HERE / "sleepers.py"), str(count), *directories) as sleepers:
            sleepers.tell()
            pids: list[int] = json.loads(sleepers.answer())
            began_s = time.monotonic()
            sitsd.status(lambda status: present(status["neighbours"]) == count)
            found_s = time.monotonic() - began_s
            cost = usage(sitsd, seconds)
            turns = counted_turns(ground, sitsd, rows + 1, groups, pids)
        began_s = time.monotonic()
        sitsd.status(lambda status: present(status["neighbours"]) == 0)
        gone_s = time.monotonic() - began_s
    return cost.as_dict() | {
        "cgroups": count,
        "found_s": round(found_s, 2),
        "gone_s": round(gone_s, 2),
        **turns,
    }


@contextmanager
def below(top: TwinGroup, count: int) -> Iterator[list[TwinGroup]]:
    """Cgroups below another; those in them are to be gone at the end."""
    groups = [TwinGroup(top.v2 / f"c{n}", top.cpu / f"c{n}") for n in range(count)]
    for group in groups:
        for directory in {group.v2, group.cpu}:
            directory.mkdir()
    try:
        yield groups
    finally:
        for group in groups:
            group.remove()


def present(neighbours: Iterable[dict[str, object]]) -> int:
    """How many of them are there."""
    return sum(bool(each["found"]) for each in neighbours)


def counted_turns(
    ground: Ground, sitsd: Sitsd, rows: int, groups: Sequence[TwinGroup], pids: Sequence[int]
) -> Part:
    """Turns on a CPU by our count and by the scheduler's own, while all processes began stopped.

    Hardened kernels may run no tracing program in the context of their host's own tasks, and so
    miss a turn that follows one of them. To count one that was not, or none at all, is wrong.
    """
    programs = load(ground.lib, Plan(ground.features, rows, sitsd.site.pin_dir))
    with closing(programs):
        assert programs.how == "adopted"
        table = TargetTable(programs).rows
        names = [f"crowd/{group.cpu.name}" for group in groups]
        maps = programs.maps
        with closing(
            CounterReader(maps["counters"], maps["health"], rows, programs.cpus)
        ) as reader:

            def both() -> list[tuple[int, int]]:
                return [
                    (reader.counters(table[name]).waits, turns(pid))
                    for name, pid in zip(names, pids, strict=True)
                ]

            with stopped(pids):
                before = both()
            time.sleep(COUNTED_S)
            with stopped(pids):
                after = both()
            health = reader.health()
    grown = [(b[0] - a[0], b[1] - a[1]) for a, b in zip(before, after, strict=True)]
    return {
        "turns": sum(true for _, true in grown),
        "turns_counted": sum(seen for seen, _ in grown),
        "wrong": sum(seen > true or (true > 0 and not seen) for seen, true in grown),
        "lost": health.storage_full + health.culprits_full + health.roles_full,
    }


@contextmanager
def stopped(pids: Sequence[int]) -> Iterator[None]:
    """None of them runs meanwhile."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        while any(state(pid) != "T" for pid in pids):
            time.sleep(0.01)
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def state(pid: int) -> str:
    """One letter, as in proc(5)."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def turns(pid: int) -> int:
    """How often it came on a CPU (Documentation/scheduler/sched-stats.rst)."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[2])
