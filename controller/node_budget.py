"""The CPU of one machine divided among its engines, by what meeting each one's SLO is worth.

Seed B4: group what is compatible, then a knapsack. Engines that share CPUs form a group; within it
an engine's SLO is worth its `value` and costs the cores it wants, and those are chosen that are
worth most and fit (0/1 knapsack). What is left goes to the others by value for each core. So two
engines in trouble don't raise their weights against each other until neither has an advantage.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Final

EXACT: Final = 8
"""Up to so many engines every choice is looked at; of more the best for each core are taken."""

FULL: Final = 0.95
"""A group that wants less than this share of its CPUs needs no dividing."""

LEAST_SHARE: Final = 0.05
"""Of a group's CPUs, for an engine that was not chosen: it must answer, if late."""

LEAST_WEIGHT: Final = 100
"""No engine is given less than the normal weight, so that neighbours do not pass it."""

SMOOTHING: Final = 0.3
"""Of each second's figure in the mean of what an engine wants."""

BAND: Final = 0.25
"""Weights are divided anew when one is off by more than this share."""


@dataclass(frozen=True, slots=True)
class Claim:
    """An engine's claim to CPU: `cores` it wants, what its SLO is worth, and the CPUs it may use.

    What it wants is what it uses and what it waits for while others have the CPU.
    """

    name: str
    value: float
    cores: float
    cpus: frozenset[int] = frozenset()


def groups(claims: Iterable[Claim]) -> list[list[Claim]]:
    """Claims that have CPUs in common, directly or through others."""
    found: list[tuple[set[int], list[Claim]]] = []
    for claim in claims:
        cpus, members = set(claim.cpus), [claim]
        apart = []
        for other_cpus, others in found:
            if other_cpus & cpus:
                cpus |= other_cpus
                members = others + members
            else:
                apart.append((other_cpus, others))
        found = [*apart, (cpus, members)]
    return [members for _, members in found]


def divide(claims: Sequence[Claim], capacity: float) -> dict[str, float]:
    """Cores for each claim, together at most `capacity`, whatever unit that is in.

    Everybody has what it wants where that fits; else as the module says.
    """
    if sum(claim.cores for claim in claims) <= capacity:
        return {claim.name: claim.cores for claim in claims}
    least = LEAST_SHARE * capacity
    chosen = _worth_most(claims, capacity, least)
    grants = {
        claim.name: claim.cores if claim in chosen else min(claim.cores, least) for claim in claims
    }
    left = capacity - sum(grants.values())
    for claim in sorted(claims, key=_density, reverse=True):
        more = min(max(0.0, left), claim.cores - grants[claim.name])
        grants[claim.name] += more
        left -= more
    return grants


def weight_caps(claims: Iterable[Claim], most: int) -> dict[str, int]:
    """The highest CPU weight of each engine: `most`, or its part of it where CPUs are short.

    Weights of a group stand to each other as the cores that each is given.
    """
    caps: dict[str, int] = {}
    for group in groups(claims):
        capacity = float(len({cpu for claim in group for cpu in claim.cpus}))
        wanted = sum(claim.cores for claim in group)
        if len(group) < 2 or wanted <= FULL * capacity:
            caps.update((claim.name, most) for claim in group)
            continue
        grants = divide(group, capacity)
        largest = max(grants.values())
        for name, cores in grants.items():
            caps[name] = max(LEAST_WEIGHT, round(most * cores / largest)) if largest else most
    return caps


def smoothed(before: float | None, now: float) -> float:
    """An exponential mean of what an engine wants."""
    return now if before is None else before + SMOOTHING * (now - before)


def is_off(before: Mapping[str, int], now: Mapping[str, int]) -> bool:
    """Whether weights are so far from those before that they are to be divided anew."""
    return before.keys() != now.keys() or any(
        abs(weight - before[name]) > BAND * before[name] for name, weight in now.items()
    )


def _density(claim: Claim) -> tuple[float, float, str]:
    return claim.value / max(claim.cores, 1e-9), claim.value, claim.name


def _worth_most(claims: Sequence[Claim], capacity: float, least: float) -> frozenset[Claim]:
    """Claims that fit in full beside the least of the others and are worth most together."""

    def fits(chosen: Iterable[Claim]) -> bool:
        full = set(chosen)
        return capacity >= sum(c.cores if c in full else min(c.cores, least) for c in claims)

    if len(claims) > EXACT:
        taken: list[Claim] = []
        for claim in sorted(claims, key=_density, reverse=True):
            if fits([*taken, claim]):
                taken.append(claim)
        return frozenset(taken)
    choices = (
        frozenset(choice)
        for count in range(len(claims) + 1)
        for choice in combinations(claims, count)
    )
    return max(
        (choice for choice in choices if fits(choice)),
        key=lambda choice: (sum(c.value for c in choice), -sum(c.cores for c in choice)),
        default=frozenset(),
    )
