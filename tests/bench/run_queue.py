"""Run-queue delay against libbpf-tools' runqlat: the same process at the same time.

runqlat counts in powers of two of a microsecond, we in eighths of an octave of nanoseconds; a slot
of ours that one of its bounds divides is divided in proportion. The process is named to runqlat by
`--pid`: by `--cgroup` it would go by the task that wakes.

Whose program runs second at a switch counts the first one's run time as waiting, some tenths of a
microsecond: no fault of either, but where many waits last a few microseconds it moves a large part
of them over a bucket's bound. So what is compared is a load whose waits are long beside that:
threads that can't take the CPU from a busy loop (SCHED_BATCH) and wait for its slice to end. The
load of short waits is told of too, apart; what its buckets differ by is the difference in stamps.
Each load has two runs, and each of the two programs is first in one of them.
"""

import re
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final

from bpf.histogram import SLOTS, Histogram, upper_bound_ns
from bpf.layout import TargetKind
from bpf.targets import Target
from tests.bench.ground import Ground, Part
from tests.kernel.bpf.child import child

RUNQLAT: Final = "/usr/sbin/runqlat"
PACKAGE: Final = "libbpf-tools"
SLEEPER: Final = str(Path(__file__).parent / "sleeper.py")
BUCKETS: Final = 26
CPU: Final = 0
THREADS: Final = 8
LONG_TURNS: Final = 1_000
SHORT_TURNS: Final = 2_000

_LINE: Final = re.compile(r"^\s*(\d+) -> \d+\s*: (\d+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Counted:
    """The waits of one run by power of two: as we count them and as runqlat does."""

    ours: list[float]
    theirs: list[int]
    waits: int


def measure(ground: Ground) -> Part:
    """The largest difference between the two in a bucket, as a share of all waits."""
    if not Path(RUNQLAT).is_file():
        return {"skipped": f"{RUNQLAT} is not here: it comes with Debian's {PACKAGE}"}
    try:
        long = _load(ground, "batch", LONG_TURNS)
        short = _load(ground, "other", SHORT_TURNS)
    except PeerError as error:
        return {"skipped": f"runqlat can't run here: {error}"}
    return long | {"short_waits": short}


def _load(ground: Ground, policy: str, turns: int) -> Part:
    runs = [_run(ground, policy, turns, ours_first=first) for first in (True, False)]
    mine = [sum(column) for column in zip(*(run.ours for run in runs), strict=True)]
    theirs = [sum(column) for column in zip(*(run.theirs for run in runs), strict=True)]
    return {
        "worst_bucket_difference": round(worst_difference(mine, theirs), 4),
        "by_run": [round(worst_difference(run.ours, run.theirs), 4) for run in runs],
        "waits": sum(run.waits for run in runs),
        "peer_waits": sum(theirs),
        "buckets": [[round(a), b] for a, b in zip(mine, theirs, strict=True)],
    }


class PeerError(RuntimeError):
    """What runqlat said instead of tracing."""


class Peer:
    """runqlat on one process, from when it traces to `counts`."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process
        said = self._read(once=True)
        if "Tracing" not in said:
            raise PeerError(said.strip())

    def counts(self) -> list[int]:
        """End it; its counts by power of two."""
        self._process.send_signal(signal.SIGINT)
        return parse(self._read())

    def _read(self, once: bool = False) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline() if once else self._process.stdout.read()


@contextmanager
def _runqlat(pid: int) -> Iterator[Peer]:
    with subprocess.Popen(
        ["stdbuf", "-oL", RUNQLAT, "--pid", str(pid)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        try:
            yield Peer(process)
        finally:
            process.kill()


def _run(ground: Ground, policy: str, turns: int, ours_first: bool) -> Counted:
    """A process of many threads beside a busy loop, on one CPU."""
    group = ground.make_group("sleeper")
    with (
        child(SLEEPER, str(THREADS), str(turns), policy, group=group, cpu=CPU) as sleeper,
        child("task.py", "burn", group=ground.make_group("neighbour"), cpu=CPU) as burner,
        ExitStack() as stack,
    ):
        burner.tell()
        if ours_first:
            watched = stack.enter_context(ground.watched())
            peer = stack.enter_context(_runqlat(sleeper.pid))
        else:
            peer = stack.enter_context(_runqlat(sleeper.pid))
            watched = stack.enter_context(ground.watched())
        cgroups = frozenset([group.cpu_id])
        row = watched.watch(Target("sleeper", TargetKind.NEIGHBOUR, cpu_cgroups=cgroups))
        sleeper.wait_until_it_blocks()
        before = watched.histogram("wait_histograms", row)
        sleeper.tell()
        sleeper.answer()
        sleeper.wait_until_it_blocks()
        ours = watched.histogram("wait_histograms", row).since(before)
        return Counted(by_power_of_two(ours), peer.counts(), ours.count)


def parse(text: str) -> list[int]:
    """runqlat's counts by power of two of a microsecond, the first for 0 and 1."""
    counts = [0] * BUCKETS
    for low, count in _LINE.findall(text):
        counts[max(0, int(low).bit_length() - 1)] = int(count)
    return counts


def by_power_of_two(histogram: Histogram) -> list[float]:
    """Our counts in runqlat's buckets."""
    lower = [0.0, *(upper_bound_ns(slot) for slot in range(SLOTS - 1))]
    bounds = [0.0, *(1_000.0 * 2**power for power in range(1, BUCKETS)), float("inf")]
    found = []
    for low, high in pairwise(bounds):
        total = 0.0
        for slot, count in enumerate(histogram.slots):
            begin, end = lower[slot], upper_bound_ns(slot)
            if count and begin < high and end > low:
                inside = min(high, end) - max(low, begin)
                total += count * (inside / (end - begin) if end != float("inf") else 1)
        found.append(total)
    return found


def worst_difference(mine: Sequence[float], theirs: Sequence[int]) -> float:
    """Of the shares that a bucket has in either; 1 if either is empty."""
    if not sum(mine) or not sum(theirs):
        return 1.0
    return max(abs(a / sum(mine) - b / sum(theirs)) for a, b in zip(mine, theirs, strict=True))
