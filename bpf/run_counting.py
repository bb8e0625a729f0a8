"""How often our programs run and for how long, by the kernel's own count.

The kernel counts only while somebody has asked it to (bpf(2), BPF_ENABLE_STATS), and reads the
clock twice a run for it. So it is asked for a second in every ten. What is kept is what came in
those seconds, so that others who have it counted too, at other times, change nothing.
"""

import os
from collections.abc import Mapping
from typing import Final

from bpf.libbpf import Runs, count_runs, program_runs
from bpf.loader import Programs

COUNTED_S: Final = 1.0
EVERY_S: Final = 10.0


class RunCounting:
    """Counts now and then, when `tick` is called often enough."""

    def __init__(self, programs: Programs) -> None:
        """Count nothing yet."""
        self._programs = programs
        self._counted: Mapping[str, Runs] = {}
        self._counted_s = 0.0
        self._fd: int | None = None
        self._begun: Mapping[str, Runs] = {}
        self._begun_s = 0.0
        self._next_s: float | None = None

    @property
    def counted_s(self) -> float:
        """For how long runs were counted so far."""
        return self._counted_s

    def runs(self) -> dict[str, Runs]:
        """Each program's runs while they were counted; those that were missed are all of them."""
        counted = self._counted
        return {
            name: Runs(ran.count, ran.ns, now.missed)
            for name, now in self._now().items()
            for ran in [counted.get(name, Runs())]
        }

    def tick(self, now_s: float) -> None:
        """Begin to count, go on or stop; `LibbpfError` if the kernel can't count (before 5.8)."""
        if self._fd is not None:
            if now_s - self._begun_s >= COUNTED_S:
                self._stop(now_s)
        elif self._next_s is None or now_s >= self._next_s:
            self._next_s = now_s + EVERY_S
            self._fd = count_runs(self._programs.lib)
            self._begun, self._begun_s = self._now(), now_s

    def close(self) -> None:
        """Stop for good; what was not counted to its end is forgotten."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _stop(self, now_s: float) -> None:
        ended = self._now()
        self.close()
        self._counted_s += now_s - self._begun_s
        self._counted = {
            name: Runs(
                before.count + ran.count - self._begun[name].count,
                before.ns + ran.ns - self._begun[name].ns,
            )
            for name, ran in ended.items()
            for before in [self._counted.get(name, Runs())]
        }

    def _now(self) -> dict[str, Runs]:
        lib = self._programs.lib
        return {name: program_runs(lib, fd) for name, fd in self._programs.programs.items()}
