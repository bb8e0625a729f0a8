"""The weights that tenants of the machine have by themselves, looked at once a second.

A tenant is an engine or a neighbour whose policy gives it a base `weight`; the laws are in
`controller.tenants`. An engine's latency stands for how it meets its SLO; a neighbour has none, so
only its memory counts.
"""

from collections.abc import Mapping
from typing import Final

from controller.limits.cgroup import Group
from controller.memory_reader import MemoryReader, Reading
from controller.signals import Signals
from controller.tenants import cpu_weight

EVERY_NS: Final = 1_000_000_000
SMOOTHING: Final = 0.2
"""Of each second's attainment in the mean: a weight follows some seconds, not one late chunk."""


def memory_use_percent(reading: Reading) -> float:
    """What a group has of its own limit, or of the machine's memory where it has none."""
    if reading.used is None or not reading.levels:
        return 0.0
    level = reading.levels[0]
    return 100.0 * reading.used / level.limit if level.limit else 0.0


def attainment_of(signals: Signals) -> float | None:
    """Share of the gaps and first chunks in the window that were in time; None without any."""
    kernel = signals.kernel
    counted = kernel.gaps + kernel.first_chunks
    late = kernel.gaps_over + kernel.ttft_over
    return max(0.0, 1 - late / counted) if counted else None


class Tenancy:
    """Keeps what the weights rest on. `weights` has those of the last look, by name."""

    def __init__(self) -> None:
        self.weights: Mapping[str, int] = {}
        self._attained: dict[str, float] = {}
        self._readers: dict[str, tuple[Group, MemoryReader]] = {}
        self._looked_ns = 0

    def look(
        self,
        now_ns: int,
        bases: Mapping[str, int],
        groups: Mapping[str, Group],
        seen: Mapping[str, tuple[Signals, float]],
    ) -> None:
        """Weigh every tenant again, if a second has passed.

        `bases` has each tenant's base weight, `groups` its cgroup; `seen` what an engine's window
        shows and the attainment it promises. Who has no cgroup of its own is no tenant.
        """
        if now_ns - self._looked_ns < EVERY_NS:
            return
        self._looked_ns = now_ns
        tenants = {name: base for name, base in bases.items() if base and name in groups}
        for name in self._readers.keys() - tenants.keys():
            self._readers.pop(name)[1].close()
        self.weights = {
            name: cpu_weight(base, self._ratio(name, seen.get(name)), self._memory(name, groups))
            for name, base in tenants.items()
        }

    def close(self) -> None:
        """Close what is open."""
        for _, reader in self._readers.values():
            reader.close()
        self._readers.clear()

    def _ratio(self, name: str, seen: tuple[Signals, float] | None) -> float:
        if seen is None:
            return 1.0
        signals, promised = seen
        attained = attainment_of(signals)
        before = self._attained.get(name, 1.0)
        if attained is not None:
            ratio = min(1.0, attained / promised)
            self._attained[name] = before + SMOOTHING * (ratio - before)
        return self._attained.get(name, 1.0)

    def _memory(self, name: str, groups: Mapping[str, Group]) -> float:
        group, reader = self._readers.get(name, (None, None))
        if reader is None or group != groups[name]:
            if reader is not None:
                reader.close()
            reader = MemoryReader(groups[name])
            self._readers[name] = groups[name], reader
        return memory_use_percent(reader.read())
