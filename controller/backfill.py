"""What the SLO leaves over goes back to the work that was held for it, the most deserving first.

A neighbour deserves by what it was held back, weighted with its class: `held_back_s · cpu_share`,
the CPU-seconds that it would have used beside what it did use since it is held (seed B8's
back-fill; its retry interval is `retry_ms`, which `neighbour_limits` keeps between freezes). So of
two that lost as much the one of the higher class comes first, and one of a lower class comes first
once it has lost enough more.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

GROWTH: Final = 1.25
"""All quotas together grow by this in one step: faster, and the harm of one step is felt."""

EVENLY: Final = 0.5
"""Share of a step that goes to all in proportion to what they have, so that nobody waits for
somebody else's turn alone; the rest goes to the most deserving first."""

MOST_GROWTH: Final = 2.0
"""No quota grows by more than this in one step."""

PRESSING: Final = 0.8
"""One that uses less than this share of its quota is not held by it: raising it costs nobody."""


@dataclass(frozen=True, slots=True)
class HeldWork:
    """A neighbour held to a quota: what it may use and what it does, in cores, and what it lost."""

    name: str
    quota_cores: float
    used_cores: float
    held_back_s: float = 0.0
    cpu_share: float = 1.0

    @property
    def deserves(self) -> float:
        """What puts one before another."""
        return self.held_back_s * self.cpu_share


def deal(held: Iterable[HeldWork]) -> dict[str, float]:
    """The next quota of each, in cores.

    Of those that press against their quota, all together grow by `GROWTH`: half of that in
    proportion, the rest to the most deserving first, up to twice what each has.
    """
    pressing: list[HeldWork] = []
    quotas: dict[str, float] = {}
    for each in held:
        quotas[each.name] = each.quota_cores * GROWTH
        if each.used_cores >= PRESSING * each.quota_cores:
            pressing.append(each)
    step = (GROWTH - 1) * sum(each.quota_cores for each in pressing)
    left = (1 - EVENLY) * step
    for each in pressing:
        quotas[each.name] = each.quota_cores * (1 + EVENLY * (GROWTH - 1))
    for each in sorted(pressing, key=lambda each: (-each.deserves, each.name)):
        room = MOST_GROWTH * each.quota_cores - quotas[each.name]
        given = min(left, room)
        quotas[each.name] += given
        left -= given
    return quotas


def most_deserving(names: Iterable[str], deserves: Mapping[str, float]) -> str | None:
    """Who comes first; None of nobody."""
    return min(names, key=lambda name: (-deserves.get(name, 0.0), name), default=None)


@dataclass(frozen=True, slots=True)
class Account:
    """What became of a neighbour while it was held, by quota or freeze; all but `wanted` only grow.

    `wanted_cores` is what it used when it was first held, and stands for what it would have used.
    """

    wanted_cores: float = 0.0
    held_ns: int = 0
    used_ns: int = 0
    held_back_ns: int = 0
    since_held_back_ns: int = 0
    """Held back since the present hold began."""

    holding: bool = False

    def take(self, elapsed_ns: int, ran_ns: int, used_cores: float, held: bool) -> "Account":
        """The account after `elapsed_ns` more, in which it ran for `ran_ns`."""
        if not held:
            return replace(self, holding=False) if self.holding else self
        begins = not self.holding
        wanted = used_cores if begins else max(self.wanted_cores, used_cores)
        back_ns = max(0, int(wanted * elapsed_ns) - ran_ns)
        return Account(
            wanted,
            self.held_ns + elapsed_ns,
            self.used_ns + ran_ns,
            self.held_back_ns + back_ns,
            (0 if begins else self.since_held_back_ns) + back_ns,
            True,
        )
