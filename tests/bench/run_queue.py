"""Run-queue delay against libbpf-tools' runqlat: the same process at the same time.

runqlat counts in powers of two of a microsecond, we in eighths of an octave of nanoseconds; a slot
of ours that one of its bounds divides is divided in proportion. The process is named to runqlat by
`--pid`: by `--cgroup` it would go by the task that wakes.
"""

import re
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
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
TURNS: Final = 2_000

_LINE: Final = re.compile(r"^\s*(\d+) -> \d+\s*: (\d+)", re.MULTILINE)


def measure(ground: Ground) -> Part:
    """The largest difference between the two in a bucket, as a share of all waits."""
    runqlat = shutil.which(RUNQLAT)
    if runqlat is None:
        return {"skipped": f"{RUNQLAT} is not here: it comes with Debian's {PACKAGE}"}
    group = ground.make_group("sleeper")
    with (
        ground.watched() as watched,
        child(SLEEPER, str(THREADS), str(TURNS), group=group, cpu=CPU) as sleeper,
        child("task.py", "burn", group=ground.make_group("neighbour"), cpu=CPU) as burner,
    ):
        cgroups = frozenset([group.cpu_id])
        row = watched.watch(Target("sleeper", TargetKind.NEIGHBOUR, cpu_cgroups=cgroups))
        burner.tell()
        with subprocess.Popen(
            ["stdbuf", "-oL", runqlat, "--pid", str(sleeper.pid)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as peer:
            try:
                assert peer.stdout is not None
                said = peer.stdout.readline()
                if "Tracing" not in said:
                    return {"skipped": f"runqlat can't run here: {said.strip()}"}
                sleeper.wait_until_it_blocks()
                before = watched.histogram("wait_histograms", row)
                sleeper.tell()
                sleeper.answer()
                sleeper.wait_until_it_blocks()
                ours = watched.histogram("wait_histograms", row).since(before)
                time.sleep(0.1)
                peer.send_signal(signal.SIGINT)
                theirs = parse(peer.stdout.read())
            finally:
                peer.kill()
    mine = by_power_of_two(ours)
    return {
        "worst_bucket_difference": round(worst_difference(mine, theirs), 4),
        "waits": ours.count,
        "peer_waits": sum(theirs),
        "buckets": [[round(a), b] for a, b in zip(mine, theirs, strict=True)],
    }


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
