"""Finds the policy's targets on this machine: their processes, cgroups and ports.

A target that has cgroups of its own is watched by them: whatever it forks is in. One that shares
its cgroup (a process found by command or port that nobody put anywhere) is watched by process id.
"""

import os
import re
import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import psutil

from agent.cgroup_trees import CgroupTrees
from agent.family import family_of
from agent.groups_within import pods_below, units_below
from agent.listening import Listeners, ListeningPorts
from agent.process_tree import ProcessTree
from controller.limits.cgroup import (
    CgroupError,
    Hierarchies,
    Membership,
    Mount,
    read_membership,
)
from controller.plain import plain
from controller.policy_model import Engine, Match, Neighbour, Policy

ROOT: Final = "/"
FOUND: Final = "found"
"""Begins the name of a neighbour that no table names: `found/CGROUP`."""


@dataclass(frozen=True, slots=True)
class Found:
    """A target as it stands on this machine.

    `cgroup` is its path in the hierarchy that rules the CPU, None where it shares one with others;
    then `processes` are watched one by one. `attach` is the v2 directory its streams pass through,
    `cpu_ids` and `stream_ids` are the cgroup ids, of it and all below it. `detail` says what is
    missing and why. `annotated_class` is what its own environment says, if that is asked for.
    """

    name: str
    pids: frozenset[int] = frozenset()
    cgroup: str | None = None
    attach: Path | None = None
    cpu_ids: frozenset[int] = frozenset()
    stream_ids: frozenset[int] = frozenset()
    processes: frozenset[int] = frozenset()
    ports: frozenset[int] = frozenset()
    detail: str = ""
    annotated_class: str | None = None

    @property
    def present(self) -> bool:
        """Whether there is anything to watch."""
        return bool(self.pids)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """All targets of one look at the machine."""

    engines: tuple[Found, ...] = ()
    neighbours: tuple[Found, ...] = ()


@dataclass(slots=True)
class Discovery:
    """Looks for the targets of one policy. The agent's own processes are never among them."""

    policy: Policy
    hierarchies: Hierarchies
    agent_pid: int = field(default_factory=os.getpid)
    also: tuple[str, ...] = ()
    """Paths of cgroups that are neighbours though no table names them."""

    named: frozenset[int] = frozenset()
    """Ids of the cgroups that the policy's tables name, as of the last look."""

    _units: dict[str, str] = field(default_factory=dict)
    _ports: ListeningPorts = field(default_factory=ListeningPorts)
    _listeners: Listeners = field(default_factory=Listeners)
    _processes: ProcessTree = field(default_factory=ProcessTree)
    _trees: CgroupTrees = field(init=False)
    _family: frozenset[int] | None = None

    def __post_init__(self) -> None:
        self._trees = CgroupTrees((self.hierarchies.v1_cpu, self.hierarchies.v2))

    def look(self) -> Surroundings:
        """One look. What can't be read, because it is just going away, is left out."""
        self._ports.next_look()
        self._processes.next_look()
        self._trees.next_look()
        self._family = None
        commands = self._commands()
        engines = tuple(self._engine(engine, commands) for engine in self.policy.engines)
        taken = {pid for found in engines for pid in found.pids}
        neighbours = [
            found
            for neighbour in self.policy.neighbours
            for found in self._neighbour(neighbour, commands, taken)
        ]
        self.named = frozenset().union(*(found.cpu_ids for found in (*engines, *neighbours)))
        neighbours += self._also(taken, {found.cgroup for found in neighbours})
        return Surroundings(engines, tuple(neighbours))

    def _ours(self) -> frozenset[int]:
        """The agent's own processes, read once a look, and only where somebody asks."""
        if self._family is None:
            self._family = family_of(self.agent_pid)
        return self._family

    def _also(self, taken: set[int], known: set[str | None]) -> list[Found]:
        found = []
        for path in self.also:
            pids = self._trees.members(path)
            if path not in known and pids and not pids & (taken | self._ours()):
                name = f"{FOUND}{plain(path)}"
                found.append(replace(self._place(name, pids, path), detail=""))
        return found

    def _engine(self, engine: Engine, commands: dict[int, str]) -> Found:
        pids, cgroup, detail = self._match(engine.match, commands)
        if not pids:
            return Found(engine.name, detail=detail)
        found = self._place(engine.name, pids, cgroup)
        now_s = time.monotonic()
        ports = frozenset(port for pid in pids for port in self._ports.of(pid, now_s))
        if engine.match.kind == "port":
            ports = frozenset({int(engine.match.value)})
        attach, detail = found.attach, found.detail
        if attach is None and self.policy.agent.attach_root and self.hierarchies.v2 is not None:
            attach, detail = self.hierarchies.v2.directory(ROOT), ""
        elif attach is not None and not ports:
            detail = "listens on no TCP port yet"
        return replace(found, attach=attach, ports=ports, detail=detail)

    def _neighbour(
        self, neighbour: Neighbour, commands: dict[int, str], taken: set[int]
    ) -> list[Found]:
        if not neighbour.each_child:
            pids, cgroup, detail = self._match(neighbour.match, commands)
            if pids & taken:
                return [Found(neighbour.name, detail="is also an engine: left alone")]
            if pids & self._ours():
                return [Found(neighbour.name, detail="holds the agent itself: left alone")]
            if not pids:
                return [Found(neighbour.name, detail=detail)]
            return [replace(self._place(neighbour.name, pids, cgroup), detail="")]
        found = []
        for name, path in distinct_names(neighbour.name, self._many(neighbour.match)):
            pids = self._trees.members(path)
            if pids and not pids & (taken | self._ours()):
                found.append(replace(self._place(name, pids, path), detail=""))
        return found

    def _many(self, match: Match) -> list[tuple[str, str]]:
        """Name and path of each cgroup that such a match means."""
        value = str(match.value)
        if match.kind == "cgroup":
            return [(path.rpartition("/")[2], path) for path in self._children(value[:-2])]
        found: dict[str, str] = {}
        for mount in self._mounts():
            if match.kind == "qos":
                pairs = pods_below(mount.point, value)
            else:
                path = self._unit(value)
                pairs = units_below(mount.point, mount.directory(path)) if path else iter(())
            found.update((path, name) for name, path in pairs)
        return [(name, path) for path, name in found.items()]

    def _match(
        self, match: Match, commands: dict[int, str]
    ) -> tuple[frozenset[int], str | None, str]:
        """The processes, their common cgroup if the match names one, and why there are none."""
        match match.kind:
            case "cgroup":
                path = str(match.value)
                pids = self._trees.members(path)
                return pids, path, "" if pids else f"no process in cgroup {path}"
            case "unit":
                path = self._unit(str(match.value))
                pids = self._trees.members(path) if path else frozenset()
                return pids, path or None, "" if pids else f"unit {match.value} is not running"
            case "command":
                pattern = re.compile(str(match.value))
                # a shell whose command line matches may have started the agent too
                pids = (
                    self._processes.with_children(
                        pid for pid, line in commands.items() if pattern.search(line)
                    )
                    - self._ours()
                )
                return pids, None, "" if pids else f"no command line matches {match.value}"
            case _:
                found = self._listeners.of(int(match.value), time.monotonic())
                pids = self._processes.with_children(found)
                return pids, None, "" if pids else f"nothing listens on port {match.value}"

    def _place(self, name: str, pids: frozenset[int], cgroup: str | None) -> Found:
        v1, v2 = self.hierarchies.v1_cpu, self.hierarchies.v2
        named = [
            mount
            for mount in self._mounts()
            if cgroup is not None and self._trees.tree(mount, cgroup)
        ]
        cpu_mount = v1 or v2
        in_all = cpu_mount in named and v2 in named
        memberships = [] if in_all else [m for pid in pids if (m := _membership(pid)) is not None]
        cpu_path = _common(m.v2 if v1 is None else m.v1_cpu for m in memberships)
        if cpu_mount in named:
            cpu_path, exclusive = cgroup, True
        else:
            exclusive = cpu_path is not None and self._is_all_of(cpu_path, pids)
        cpu_ids = self._ids(cpu_mount, cpu_path)
        stream_path = cgroup if v2 in named else _common(m.v2 for m in memberships)
        stream_ids = self._ids(v2, stream_path)
        attach, detail = None, ""
        if stream_ids and v2 is not None and stream_path is not None:
            attach = v2.directory(stream_path)
        elif v2 is not None:
            where = "several cgroups" if stream_path is None else "the root cgroup"
            detail = (
                f"is in {where}: its streams are not followed; give it a cgroup of its own, or set"
                " agent.attach_root"
            )
        return Found(
            name=name,
            pids=pids,
            cgroup=cpu_path if exclusive and cpu_ids else None,
            attach=attach,
            cpu_ids=cpu_ids if exclusive else frozenset(),
            stream_ids=stream_ids,
            processes=frozenset() if exclusive and cpu_ids else pids,
            detail=detail,
        )

    def _is_all_of(self, path: str, pids: frozenset[int]) -> bool:
        """Whether a cgroup has only these processes and what they have started meanwhile."""
        members = self._trees.members(path)
        if members <= pids:
            return True
        self._processes.next_look()
        return members <= self._processes.with_children(pids)

    def _commands(self) -> dict[int, str]:
        """Every other process's command line, if any match needs them."""
        matches = [engine.match for engine in self.policy.engines]
        matches += [neighbour.match for neighbour in self.policy.neighbours]
        if not any(match.kind == "command" for match in matches):
            return {}
        return {
            process.pid: " ".join(process.info["cmdline"] or ())
            for process in psutil.process_iter(["cmdline"])
            if process.pid not in self._ours()
        }

    def _mounts(self) -> list[Mount]:
        return [m for m in (self.hierarchies.v1_cpu, self.hierarchies.v2) if m is not None]

    def _ids(self, mount: Mount | None, path: str | None) -> frozenset[int]:
        """The ids of a cgroup and all below it; none for the root, which is everybody's."""
        if mount is None or path is None or path == ROOT:
            return frozenset()
        return self._trees.ids(mount, path)

    def _children(self, path: str) -> list[str]:
        names: set[str] = set()
        for mount in self._mounts():
            try:
                names.update(
                    entry.name for entry in os.scandir(mount.directory(path)) if entry.is_dir()
                )
            except (OSError, CgroupError):
                continue
        return [f"{path.rstrip('/')}/{name}" for name in sorted(names)]

    def _unit(self, unit: str) -> str:
        """The cgroup path of a systemd unit: searched once, then remembered while it exists."""
        known = self._units.get(unit)
        for mount in self._mounts():
            if known is not None and mount.directory(known).is_dir():
                return known
        for mount in reversed(self._mounts()):
            for directory, _ in self._trees.tree(mount, mount.root):
                if directory.endswith(f"/{unit}"):
                    path = directory.removeprefix(str(mount.point))
                    self._units[unit] = path
                    return path
        self._units.pop(unit, None)
        return ""


def distinct_names(neighbour: str, found: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Cgroups by name and path, each with a name that prints and that no other of them has.

    Whoever may make cgroups chooses their names; one that is shown as it is keeps its name whatever
    others call theirs.
    """
    named: dict[str, str] = {}
    for child, path in sorted(found, key=lambda each: not each[0].isprintable()):
        name = first = f"{neighbour}/{plain(child)}"
        number = 1
        while name in named:
            number += 1
            name = f"{first}~{number}"
        named[name] = path
    return list(named.items())


def _common(paths: Iterable[str | None]) -> str | None:
    """The one path that all share, None if they differ or there is none."""
    distinct = set(paths)
    return distinct.pop() if len(distinct) == 1 else None


def _membership(pid: int) -> Membership | None:
    try:
        return read_membership(pid)
    except (CgroupError, OSError):
        return None
