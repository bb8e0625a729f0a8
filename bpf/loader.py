"""Puts the programs into the kernel and keeps them there when the agent goes.

Everything is a file descriptor, and, where there is a BPF file system, a pin:

    PIN_DIR/layout           layout version and a hash of what was loaded
    PIN_DIR/maps/NAME
    PIN_DIR/programs/NAME
    PIN_DIR/links/NAME       and NAME@CGROUP_ID for programs on an engine's cgroup

At start, pins of the same layout and the same programs are adopted as they are: nothing is missed.
Pins of the same layout but other programs keep their maps, so that counters go on. Anything else
is removed and made anew.
"""

import hashlib
import os
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from bpf.features import Features, is_bpffs, possible_cpus
from bpf.layout import LAYOUT_VERSION, MAX_ROLES
from bpf.libbpf import (
    BPF_CGROUP_INET_EGRESS,
    BPF_CGROUP_INET_INGRESS,
    Libbpf,
    LibbpfError,
    Map,
    Object,
    map_info,
)
from bpf.pins import listed, open_pin, pin, read_layout, remove_pins, write_layout

OBJECT_DIR: Final = Path(__file__).parent / "objects"

_TRACING: Final = {
    "sched": {"switch_tasks": "sched_switch"},
    "stream": {"socket_state": "inet_sock_set_state", "socket_gone": "tcp_destroy_sock"},
    "retransmit": {
        "retransmit": "tcp_retransmit_skb",
        "synack": "tcp_retransmit_synack",
        "reset_sent": "tcp_send_reset",
        "reset_received": "tcp_receive_reset",
    },
    "socket": {"engine_read": "sock_recv_length", "engine_write": "sock_send_length"},
}
"""Objects, their programs and the tracepoint of each. A program whose tracepoint this kernel does
not have is left out."""

_ORDER: Final = ("socket", "sched", "stream", "retransmit")
"""The objects as they are loaded: the first alone, the second beside those after it."""

_ON_CGROUPS: Final = {
    "stream_in": BPF_CGROUP_INET_INGRESS,
    "stream_out": BPF_CGROUP_INET_EGRESS,
}


@dataclass(frozen=True, slots=True)
class Plan:
    """What to load: `pin_dir` None keeps everything in this process only."""

    features: Features
    max_targets: int
    pin_dir: Path | None


class Programs:
    """What is loaded: maps by name, and the programs that attach to engines' cgroups."""

    def __init__(
        self,
        lib: Libbpf,
        plan: Plan,
        maps: Mapping[str, int],
        programs: Mapping[str, int],
        links: Mapping[str, int],
        how: str,
    ) -> None:
        """`how` says whether pins were `adopted`, their maps `kept`, or all is `fresh`."""
        self.lib = lib
        self.plan = plan
        self.maps = dict(maps)
        self.programs = dict(programs)
        self.how = how
        self._links = dict(links)
        self.cpus = possible_cpus(lib)

    def map(self, name: str) -> Map:
        """A map to look things up in."""
        return Map(self.lib, self.maps[name])

    @property
    def follows_streams(self) -> bool:
        """Whether stream programs are loaded."""
        return all(name in self.programs for name in _ON_CGROUPS)

    def attached_cgroups(self) -> set[int]:
        """The ids of the cgroups whose streams are followed."""
        return {int(name.partition("@")[2]) for name in self._links if "@" in name}

    def attach(self, cgroup: Path, cgroup_id: int) -> None:
        """Follow the streams of a cgroup of the v2 tree and all below it."""
        directory = os.open(cgroup, os.O_RDONLY | os.O_DIRECTORY)
        try:
            for name, kind in _ON_CGROUPS.items():
                link = f"{name}@{cgroup_id}"
                if link in self._links:
                    continue
                fd = self.lib.check(
                    self.lib.bpf_link_create(self.programs[name], directory, kind, None),
                    f"attach program '{name}' to {cgroup}",
                )
                self._links[link] = fd
                if self.plan.pin_dir:
                    pin(self.lib, fd, self.plan.pin_dir / "links" / link)
        finally:
            os.close(directory)

    def detach(self, cgroup_id: int) -> None:
        """Follow that cgroup's streams no more."""
        for name in _ON_CGROUPS:
            fd = self._links.pop(f"{name}@{cgroup_id}", None)
            if fd is None:
                continue
            if self.plan.pin_dir:
                (self.plan.pin_dir / "links" / f"{name}@{cgroup_id}").unlink(missing_ok=True)
            os.close(fd)

    def close(self) -> None:
        """Let go of every descriptor. What is pinned goes on; the rest ends here."""
        for fd in (*self._links.values(), *self.programs.values(), *self.maps.values()):
            os.close(fd)
        self._links.clear()
        self.programs.clear()
        self.maps.clear()


def load(lib: Libbpf, plan: Plan, objects: Path = OBJECT_DIR) -> Programs:
    """Load, or adopt what is pinned; `LibbpfError` says which program or map failed and why."""
    names = ["sched"]
    if plan.features.can_stream:
        names += ["stream", "retransmit", "socket"]
    constants = _constants(plan.features, plan.max_targets, possible_cpus(lib))
    fingerprint = _fingerprint(objects, names, constants)
    if plan.pin_dir is None:
        return _load_fresh(lib, plan, objects, names, constants, {})

    if not is_bpffs(plan.pin_dir):
        raise LibbpfError(0, f"could not pin to {plan.pin_dir}: not on a BPF file system")
    pinned_version, pinned_fingerprint = read_layout(lib, plan.pin_dir)
    if (pinned_version, pinned_fingerprint) == (LAYOUT_VERSION, fingerprint):
        adopted = _adopt(lib, plan, objects, names)
        if adopted is not None:
            return adopted

    kept = {}
    if pinned_version == LAYOUT_VERSION:
        kept = _kept_maps(lib, plan, objects, names)
    programs = _load_fresh(lib, plan, objects, names, constants, kept)
    write_layout(lib, plan.pin_dir, fingerprint)
    return programs


def unload(pin_dir: Path) -> None:
    """Remove every pin: the programs stop and the counters are gone."""
    remove_pins(pin_dir, ())
    if pin_dir.is_dir() and not any(pin_dir.iterdir()):
        pin_dir.rmdir()


def _constants(features: Features, max_targets: int, cpus: int) -> dict[str, int]:
    return {
        "possible_cpus": cpus,
        "max_targets": max_targets,
        "have_task_storage": features.task_storage,
        "have_prev_state": features.prev_state,
        "have_retransmit_error": features.retransmit_error,
        "have_writes": "sock_send_length" in features.tracepoints,
        "cpu_on_v1": features.cpu_on_v1,
        "hz": features.hz,
    }


def _fingerprint(objects: Path, names: list[str], constants: Mapping[str, int]) -> int:
    digest = hashlib.sha256(repr(sorted(constants.items())).encode())
    for name in names:
        path = objects / f"{name}.bpf.o"
        digest.update(path.read_bytes() if path.is_file() else b"")
    return int.from_bytes(digest.digest()[:8], "little")


def _entries(lib: Libbpf, plan: Plan) -> dict[str, int]:
    cpus = possible_cpus(lib)
    per_target = ("targets", "wait_histograms", "ttft_histograms", "gap_histograms")
    return dict.fromkeys(per_target, plan.max_targets) | {
        "counters": plan.max_targets * cpus,
        "health": cpus,
        "roles": MAX_ROLES * cpus,
    }


def _attached(features: Features, names: Iterable[str]) -> list[str]:
    """The programs of these objects that this kernel has a tracepoint for."""
    return [
        program
        for name in names
        for program, tracepoint in _TRACING[name].items()
        if tracepoint in features.tracepoints
    ]


def _open(
    lib: Libbpf, path: Path, plan: Plan, constants: Mapping[str, int]
) -> tuple[Object, dict[str, int]]:
    """An object ready to load, and those of its maps that this kernel can have."""
    opened = Object(lib, path)
    known = opened.constants()
    for name, value in constants.items():
        if name in known:
            opened.set_constant(name, value)
    wanted = _entries(lib, plan)
    unused = "known_tasks_by_pid" if plan.features.task_storage else "known_tasks"
    maps = {}
    for name, handle in opened.maps().items():
        if name == unused:
            lib.check(lib.bpf_map__set_autocreate(handle, False), f"leave out map '{name}'")
            continue
        if name in wanted:
            lib.check(lib.bpf_map__set_max_entries(handle, wanted[name]), f"size map '{name}'")
        maps[name] = handle
    attached = _attached(plan.features, [path.name.partition(".")[0]])
    for name, handle in opened.programs().items():
        if name not in _ON_CGROUPS and name not in attached:
            lib.check(lib.bpf_program__set_autoload(handle, False), f"leave out '{name}'")
    return opened, maps


def _load_fresh(
    lib: Libbpf,
    plan: Plan,
    objects: Path,
    names: list[str],
    constants: Mapping[str, int],
    kept: Mapping[str, int],
) -> Programs:
    maps, programs, links = dict(kept), dict[str, int](), dict[str, int]()
    try:
        _put_into_kernel(lib, plan, objects, names, constants, maps, programs)
        if plan.pin_dir:
            # only now: had loading failed, what was there before would go on
            remove_pins(plan.pin_dir, kept)
            for directory in ("maps", "programs", "links"):
                (plan.pin_dir / directory).mkdir(parents=True, exist_ok=True)
            for name, fd in maps.items():
                if name not in kept:
                    pin(lib, fd, plan.pin_dir / "maps" / name)
            for name, fd in programs.items():
                pin(lib, fd, plan.pin_dir / "programs" / name)
        for name in _attached(plan.features, names):
            links[name] = lib.check(
                lib.bpf_raw_tracepoint_open(None, programs[name]), f"attach program '{name}'"
            )
            if plan.pin_dir:
                pin(lib, links[name], plan.pin_dir / "links" / name)
    except BaseException:
        for fd in (*links.values(), *programs.values(), *maps.values()):
            os.close(fd)
        raise
    return Programs(lib, plan, maps, programs, links, "kept" if kept else "fresh")


def _put_into_kernel(
    lib: Libbpf,
    plan: Plan,
    objects: Path,
    names: list[str],
    constants: Mapping[str, int],
    maps: dict[str, int],
    programs: dict[str, int],
) -> None:
    """Load the objects, each with the maps there are already; adds what is new to both.

    Most of the time goes into the kernel's BTF, which libbpf reads for each object, so two cores
    are put to use. The maps that the others share are all in the first one.
    """
    one = partial(_put_one_into_kernel, lib, plan, objects, constants, maps, programs)
    first, *rest = sorted(names, key=_ORDER.index)
    one(first)
    if rest:
        with ThreadPoolExecutor(1) as beside:
            others = beside.submit(lambda: [one(name) for name in rest[1:]])
            one(rest[0])
            others.result()


def _put_one_into_kernel(
    lib: Libbpf,
    plan: Plan,
    objects: Path,
    constants: Mapping[str, int],
    maps: dict[str, int],
    programs: dict[str, int],
    name: str,
) -> None:
    opened, handles = _open(lib, objects / f"{name}.bpf.o", plan, constants)
    try:
        for map_name, handle in handles.items():
            if map_name in maps:
                lib.check(lib.bpf_map__reuse_fd(handle, maps[map_name]), f"share map '{map_name}'")
        opened.load()
        for map_name, handle in handles.items():
            if map_name not in maps:
                maps[map_name] = os.dup(lib.bpf_map__fd(handle))
        for program, handle in opened.programs().items():
            if lib.bpf_program__autoload(handle):
                programs[program] = os.dup(lib.bpf_program__fd(handle))
    finally:
        opened.close()


def _adopt(lib: Libbpf, plan: Plan, objects: Path, names: list[str]) -> Programs | None:
    """Everything from its pins, or None if something that should be there is not."""
    assert plan.pin_dir is not None
    found: dict[str, dict[str, int]] = {}
    for kind in ("maps", "programs", "links"):
        found[kind] = {
            path.name: fd
            for path in listed(plan.pin_dir / kind)
            if (fd := open_pin(lib, path)) is not None
        }
    wanted: dict[str, set[str]] = {"maps": set(), "programs": set()}
    wanted["links"] = set(_attached(plan.features, names))
    for name in names:
        opened, handles = _open(lib, objects / f"{name}.bpf.o", plan, {})
        wanted["maps"] |= handles.keys()
        wanted["programs"] |= {
            program
            for program, handle in opened.programs().items()
            if lib.bpf_program__autoload(handle)
        }
        opened.close()
    if all(wanted[kind] <= found[kind].keys() for kind in found):
        return Programs(lib, plan, found["maps"], found["programs"], found["links"], "adopted")
    for fds in found.values():
        for fd in fds.values():
            os.close(fd)
    return None


def _kept_maps(lib: Libbpf, plan: Plan, objects: Path, names: list[str]) -> dict[str, int]:
    """The pinned maps that fit what the objects want, by type, sizes and entries."""
    assert plan.pin_dir is not None
    kept: dict[str, int] = {}
    try:
        for name in names:
            opened, handles = _open(lib, objects / f"{name}.bpf.o", plan, {})
            _keep(lib, plan.pin_dir / "maps", handles, kept)
            opened.close()
    except BaseException:
        for fd in kept.values():
            os.close(fd)
        raise
    # counters without the names of their rows would be misread, and so would what a task remembers
    # of its target without the generation it was true in
    if not {"targets", "counters", "generation"} <= kept.keys():
        for fd in kept.values():
            os.close(fd)
        return {}
    return kept


def _keep(lib: Libbpf, directory: Path, handles: Mapping[str, int], kept: dict[str, int]) -> None:
    """Add those pinned maps that fit an object's."""
    for name, handle in handles.items():
        if name in kept:
            continue
        fd = open_pin(lib, directory / name)
        if fd is None:
            continue
        wanted = (
            lib.bpf_map__type(handle),
            lib.bpf_map__key_size(handle),
            lib.bpf_map__value_size(handle),
            lib.bpf_map__max_entries(handle),
        )
        if map_info(lib, fd) == wanted:
            kept[name] = fd
        else:
            os.close(fd)
