"""The targets the kernel knows: which cgroups, processes and ports are whose, and their rows."""

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Final

from bpf.layout import (
    COUNTERS,
    CULPRIT_KEY,
    HISTOGRAM,
    NAME_BYTES,
    ROLE,
    ROLE_KEY,
    TARGET,
    TargetKind,
)
from bpf.libbpf import Map
from bpf.loader import Programs

_KEY_BYTES: Final = {"cpu_cgroups": 8, "processes": 4, "stream_cgroups": 8, "ports": 8}
"""Maps of what is whose, and their keys' sizes."""

COMPARED_EVERY: Final = 10
"""Calls of `apply` with the same targets; nobody else is to write the tables."""


@dataclass(frozen=True, slots=True)
class Target:
    """One target as the kernel is told of it.

    `cpu_cgroups` are ids in the hierarchy that rules the CPU, `stream_cgroups` ids in the v2 tree,
    `processes` process ids where the target shares its cgroup with others, `ports` where it
    listens. A threshold of 0 is none.
    """

    name: str
    kind: TargetKind
    ttft_slo_ns: int = 0
    gap_slo_ns: int = 0
    wait_edge_ns: int = 0
    first_chunk_deadline_ns: int = 0
    cpu_cgroups: frozenset[int] = field(default_factory=frozenset)
    processes: frozenset[int] = field(default_factory=frozenset)
    stream_cgroups: frozenset[int] = field(default_factory=frozenset)
    ports: frozenset[int] = field(default_factory=frozenset)


def carried_name(name: str) -> str:
    """What a row has room for of a target's name: all of it, or its beginning and a hash of all."""
    if len(name.encode()) < NAME_BYTES:
        return name
    mark = "~" + hashlib.sha256(name.encode()).hexdigest()[:16]
    room = NAME_BYTES - 1 - len(mark)
    return name.encode()[:room].decode(errors="ignore") + mark


def _owners(targets: Sequence[Target], rows: Mapping[str, int]) -> dict[str, dict[int, int]]:
    """What each of the kernel's tables is to hold, by its name: keys and the rows they belong to.

    A cgroup that several targets share is nobody's: there, ports tell whose a socket is. A port is
    looked up together with the row its socket's cgroup belongs to, so that engines in network
    namespaces of their own may all have the same one.
    """
    shared = {
        cgroup
        for cgroup, count in Counter(each for t in targets for each in t.stream_cgroups).items()
        if count > 1
    }
    owners: dict[str, dict[int, int]] = {table: {} for table in _KEY_BYTES}
    for target in targets:
        row = rows[target.name]
        own = target.stream_cgroups - shared
        owners["cpu_cgroups"] |= dict.fromkeys(target.cpu_cgroups, row)
        owners["processes"] |= dict.fromkeys(target.processes, row)
        owners["stream_cgroups"] |= dict.fromkeys(own, row)
        for port in target.ports:
            if own:
                owners["ports"][port | row << 32] = row
            if own != target.stream_cgroups or not own:
                owners["ports"][port] = row
    return owners


class TargetTable:
    """Keeps the kernel's tables as the last `apply` said, changing only what differs.

    A target keeps its row as long as its name is in the table, over restarts of the agent too:
    rows carry their names. Row 0 is nobody's.
    """

    def __init__(self, programs: Programs) -> None:
        """Read the rows an earlier agent left."""
        self._programs = programs
        self._targets = programs.map("targets")
        self._watched = {name: programs.map(name) for name in _KEY_BYTES if name in programs.maps}
        self._generation = programs.map("generation")
        self._rows = self._read_rows()
        self._applied: Mapping[str, Target] | None = None
        self._without_row: list[str] = []
        self._unchanged = 0

    @property
    def rows(self) -> Mapping[str, int]:
        """Each target's row by its name."""
        return dict(self._rows)

    def row(self, name: str) -> int | None:
        """A target's row; None if it is not watched."""
        return self._rows.get(name)

    def apply(self, targets: Iterable[Target]) -> list[str]:
        """Make the kernel watch exactly these; returns the names there was no row left for.

        While they stay the same the kernel's tables are compared with them only now and then.
        """
        wanted = {target.name: target for target in targets}
        if wanted == self._applied and self._unchanged < COMPARED_EVERY:
            self._unchanged += 1
            return list(self._without_row)
        self._applied, self._unchanged = None, 0
        self._without_row = self._apply(wanted)
        self._applied = wanted
        return list(self._without_row)

    def _apply(self, wanted: Mapping[str, Target]) -> list[str]:
        # rows that an earlier agent left bear what they have room for
        whole = {carried_name(name): name for name in wanted}
        self._rows = {whole.get(name, name): row for name, row in self._rows.items()}
        gone = [self._rows[name] for name in self._rows.keys() - wanted.keys()]
        if gone:
            # first nothing may count into these rows any more, then they are cleared
            self._watch([target for name, target in wanted.items() if name in self._rows])
            self._free(set(gone))
            self._rows = {name: row for name, row in self._rows.items() if row not in gone}
        without_row = [name for name in wanted if not self._place(wanted[name])]
        self._watch([target for name, target in wanted.items() if name in self._rows])
        return without_row

    def _watch(self, targets: list[Target]) -> None:
        changed = False
        for table, owners in _owners(targets, self._rows).items():
            if table in self._watched:
                changed |= self._sync(self._watched[table], _KEY_BYTES[table], owners)
        if changed:
            self._raise_generation()

    def _read_rows(self) -> dict[str, int]:
        rows = {}
        for row in range(1, self._targets.max_entries):
            raw = self._targets.get(row.to_bytes(4, "little")) or b""
            name = TARGET.unpack(raw)[-1].rstrip(b"\0").decode(errors="replace")
            if name:
                rows[name] = row
        return rows

    def _place(self, target: Target) -> bool:
        row = self._rows.get(target.name)
        if row is None:
            used = set(self._rows.values())
            row = next((r for r in range(1, self._targets.max_entries) if r not in used), None)
            if row is None:
                return False
            self._rows[target.name] = row
        self._targets.put(
            row.to_bytes(4, "little"),
            TARGET.pack(
                target.ttft_slo_ns,
                target.gap_slo_ns,
                target.wait_edge_ns,
                target.first_chunk_deadline_ns,
                target.kind,
                carried_name(target.name).encode(),
            ),
        )
        return True

    def _free(self, gone: Set[int]) -> None:
        """Clear rows and all they counted, so that their next owners start from zero.

        All at once: each look at the culprits is thousands of system calls, and hundreds of
        cgroups may go together.
        """
        counters = self._programs.map("counters")
        for row in gone:
            for cpu in range(self._programs.cpus):
                counters.put(
                    (row * self._programs.cpus + cpu).to_bytes(4, "little"), bytes(COUNTERS.size)
                )
        for name in ("wait_histograms", "ttft_histograms", "gap_histograms"):
            if name in self._programs.maps:
                histograms = self._programs.map(name)
                for row in gone:
                    empty = bytes(HISTOGRAM.size * self._programs.cpus)
                    histograms.put(row.to_bytes(4, "little"), empty)
        culprits = self._programs.map("culprits")
        for culprit in culprits.keys():  # noqa: SIM118
            if CULPRIT_KEY.unpack(culprit)[1] in gone:
                culprits.delete(culprit)
        self._free_roles(gone)
        # the name last: who is stopped before this finds the row its old owner's, and clears it
        for row in gone:
            self._targets.put(row.to_bytes(4, "little"), bytes(TARGET.size))

    def _free_roles(self, gone: Set[int]) -> None:
        rows, names = self._programs.map("role_rows"), self._programs.map("role_names")
        roles = self._programs.map("roles")
        for key in rows.keys():  # noqa: SIM118
            if ROLE_KEY.unpack(key)[0] in gone:
                rows.delete(key)
        for role in names.keys():  # noqa: SIM118
            if ROLE_KEY.unpack(names.get(role) or bytes(ROLE_KEY.size))[0] not in gone:
                continue
            for cpu in range(self._programs.cpus):
                at = int.from_bytes(role, "little") * self._programs.cpus + cpu
                roles.put(at.to_bytes(4, "little"), bytes(ROLE.size))
            names.delete(role)

    @staticmethod
    def _sync(kernel: Map, key_bytes: int, owners: Mapping[int, int]) -> bool:
        changed = False
        there = {int.from_bytes(key, "little") for key in kernel.keys()}  # noqa: SIM118
        for key in there - owners.keys():
            kernel.delete(key.to_bytes(key_bytes, "little"))
            changed = True
        for key, row in owners.items():
            raw, value = key.to_bytes(key_bytes, "little"), row.to_bytes(4, "little")
            if kernel.get(raw) != value:
                kernel.put(raw, value)
                changed = True
        return changed

    def _raise_generation(self) -> None:
        now = int.from_bytes(self._generation.get(bytes(4)) or b"", "little")
        self._generation.put(bytes(4), (now + 1).to_bytes(8, "little"))
