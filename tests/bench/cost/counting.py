"""What the kernel counts of a process's BPF programs, ours or a peer's, by their tracepoints.

Read from /proc/PID/fdinfo, where the kernel shows programs with their run counters and links with
the tracepoint they are on (bpf_prog_show_fdinfo and bpf_raw_tp_link_show_fdinfo of
kernel/bpf/syscall.c; the counters since 5.1). Programs whose descriptor was closed are not seen.
"""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from bpf.libbpf import Runs


@dataclass(frozen=True, slots=True)
class Counted:
    """Runs by tracepoint, and of all programs together; `most` ran the one that ran most often."""

    by_tracepoint: Mapping[str, Runs]
    total: Runs
    most: int

    def ns(self, tracepoint: str) -> float | None:
        """One run on a tracepoint; None if nothing ran there."""
        ran = self.by_tracepoint.get(tracepoint, Runs())
        return ran.ns / ran.count if ran.count else None

    @property
    def ns_of_all(self) -> float | None:
        """All programs together, for each run of the one that ran most often."""
        return self.total.ns / self.most if self.most else None


Counts = Mapping[int, tuple[str, Runs]]
"""Tracepoint (or nothing) and runs, by program id."""


def counts(pid: int) -> Counts:
    """Every program that a process holds, and what it ran so far."""
    shown = []
    for path in Path(f"/proc/{pid}/fdinfo").iterdir():
        with suppress(FileNotFoundError):
            shown.append(fields(path.read_text()))
    return of_fields(shown)


def since(before: Counts, after: Counts) -> Counted:
    """What ran between two looks."""
    by_tracepoint: dict[str, Runs] = {}
    everything, most = Runs(), 0
    for number, (tracepoint, ran) in after.items():
        _, earlier = before.get(number, ("", Runs()))
        new = Runs(ran.count - earlier.count, ran.ns - earlier.ns)
        everything, most = _sum(everything, new), max(most, new.count)
        if tracepoint:
            by_tracepoint[tracepoint] = _sum(by_tracepoint.get(tracepoint, Runs()), new)
    return Counted(by_tracepoint, everything, most)


def fields(text: str) -> dict[str, str]:
    """The lines of a file of fdinfo: `name:` and a value."""
    return {
        name: value.strip()
        for name, colon, value in (line.partition(":") for line in text.splitlines())
        if colon
    }


def of_fields(shown: Iterable[Mapping[str, str]]) -> Counts:
    """Programs joined with the links that say where they are."""
    shown = list(shown)
    places = {int(each["prog_id"]): each["tp_name"] for each in shown if "tp_name" in each}
    return {
        number: (places.get(number, ""), Runs(int(each["run_cnt"]), int(each["run_time_ns"])))
        for each in shown
        if "run_cnt" in each
        for number in [int(each["prog_id"])]
    }


def _sum(one: Runs, other: Runs) -> Runs:
    return Runs(one.count + other.count, one.ns + other.ns)
