"""Cgroups that no table of the policy names, and that took the CPU an engine waited for.

The kernel counts for each engine how long it waited while a task of which cgroup had the CPU.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from agent.cgroup_paths import CgroupPaths
from controller.limits.protected import Kept, why_path

WINDOW_NS: Final = 10_000_000_000
KEPT_NS: Final = 60_000_000_000
"""One that was found is looked at until it has taken nothing for so long."""

LEAST_SHARE: Final = 0.1
"""Of what an engine lost to others: less is not worth a name."""

LEAST_NS: Final = 50_000_000
"""Lost in the window: half a per cent of it."""

Taken = Mapping[tuple[int, str], tuple[int, ...]]
"""By cgroup id and command: ns of waiting, and waits."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A cgroup by its id: for whom it was found, its command, what it took and of how much."""

    cgroup: int
    engine: str
    command: str
    wait_ns: int
    share: float


def candidates(taken: Mapping[str, Taken], named: Collection[int]) -> list[Candidate]:
    """Who took the most of each engine's loss in a window, the worst first.

    `named` are the ids of cgroups that the policy names, the engines' own included.
    """
    found: dict[int, Candidate] = {}
    for engine, culprits in taken.items():
        by_cgroup: dict[int, tuple[int, str]] = {}
        for (cgroup, command), (wait_ns, *_) in culprits.items():
            before, name = by_cgroup.get(cgroup, (0, command))
            by_cgroup[cgroup] = before + wait_ns, name
        lost_ns = sum(wait_ns for wait_ns, _ in by_cgroup.values())
        for cgroup, (wait_ns, command) in by_cgroup.items():
            share = wait_ns / lost_ns if lost_ns else 0.0
            if cgroup in named or wait_ns < LEAST_NS or share < LEAST_SHARE:
                continue
            if cgroup not in found or wait_ns > found[cgroup].wait_ns:
                found[cgroup] = Candidate(cgroup, engine, command, wait_ns, share)
    return sorted(found.values(), key=lambda each: -each.wait_ns)


class Candidates:
    """The candidates of the last look, and those that were found before and still take CPU."""

    def __init__(self, paths: CgroupPaths, kept: Kept) -> None:
        """`kept` are the cgroups of the agent and of PID 1."""
        self._paths = paths
        self._kept = kept
        self._seen: dict[int, tuple[int, Candidate, str]] = {}

    def take(self, now_ns: int, found: Iterable[Candidate], taking: Collection[int]) -> None:
        """Take a look's candidates; `taking` are the cgroups that took anything at all."""
        new = {each.cgroup: each for each in found}
        paths = {
            cgroup: path
            for cgroup in {*new, *self._seen}
            if (path := self._paths.path(cgroup)).startswith("/")
        }
        for cgroup, path in paths.items():
            if cgroup in new:
                self._seen[cgroup] = now_ns, new[cgroup], path
            elif cgroup in taking:
                self._seen[cgroup] = now_ns, *self._seen[cgroup][1:]
        self._seen = {
            cgroup: each
            for cgroup, each in self._seen.items()
            if cgroup in paths and now_ns - each[0] < KEPT_NS
        }

    def limitable(self) -> tuple[str, ...]:
        """The paths of those that could be neighbours: what is protected by name is none."""
        return tuple(
            path for _, _, path in self._seen.values() if why_path(path, self._kept) is None
        )

    def answer(self) -> list[dict[str, Any]]:
        """For the admin API, the worst first."""
        ordered = sorted(self._seen.values(), key=lambda each: -each[1].wait_ns)
        return [
            {
                "cgroup": path,
                "command": each.command,
                "engine": each.engine,
                "wait_ms": each.wait_ns / 1e6,
                "share": each.share,
                "protected": why_path(path, self._kept),
            }
            for _, each, path in ordered
        ]
