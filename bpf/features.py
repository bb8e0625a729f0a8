"""What this kernel allows, probed and never guessed from its version."""

import os
import re
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bpf.libbpf import Libbpf, LibbpfError, tracepoint_arguments

_PROG_TYPE_CGROUP_SKB: Final = 8
_PROG_TYPE_TRACING: Final = 26
_MAP_TYPE_RINGBUF: Final = 27
_MAP_TYPE_TASK_STORAGE: Final = 29
_HELPER_SK_STORAGE_GET: Final = 107
_HELPER_LOOP: Final = 181

_CAPABILITIES: Final = {12: "CAP_NET_ADMIN", 38: "CAP_PERFMON", 39: "CAP_BPF"}
_CAP_SYS_ADMIN: Final = 21
_BTF: Final = Path("/sys/kernel/btf/vmlinux")
_OWN_WAITS: Final = Path("/proc/self/schedstat")


TRACEPOINTS: Final = (
    "sched_switch",
    "inet_sock_set_state",
    "tcp_destroy_sock",
    "tcp_retransmit_skb",
    "tcp_retransmit_synack",
    "tcp_send_reset",
    "tcp_receive_reset",
    "sock_send_length",
    "sock_recv_length",
)
"""All that programs of ours attach to."""

_READS_AND_WRITES: Final = frozenset({"sock_send_length", "sock_recv_length"})
"""These are in kernels from 6.3."""

_CLOCK_MONOTONIC_COARSE: Final = 6


@dataclass(frozen=True, slots=True)
class Features:
    """What was found.

    `cpu_on_v1`: the cpu controller is mounted as cgroup v1. `prev_state` and `retransmit_error`:
    the two tracepoints have that argument. `sched_info`: the scheduler notes each task's waits.
    `tracepoints` are those of ours that this kernel has, `hz` its ticks a second.
    `missing_capabilities`: what this process lacks.
    `cgroup2`: where the v2 tree is mounted, to which stream programs attach.
    """

    libbpf: bool
    btf: bool
    missing_capabilities: tuple[str, ...]
    task_storage: bool
    socket_storage: bool
    ring_buffer: bool
    loop: bool
    prev_state: bool
    retransmit_error: bool
    sched_info: bool
    tracepoints: frozenset[str]
    hz: int
    cpu_on_v1: bool
    cgroup2: Path | None

    @property
    def can_trace(self) -> bool:
        """Whether run-queue delay can be measured."""
        return self.libbpf and self.btf and self.ring_buffer and not self.missing_capabilities

    @property
    def can_stream(self) -> bool:
        """Whether streams can be followed."""
        return self.can_trace and self.loop and self.socket_storage and self.cgroup2 is not None


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of `sitsctl doctor`: what was looked at, whether it is there, what it costs."""

    name: str
    ok: bool
    detail: str
    cost: str = ""


def missing_capabilities(status: str) -> tuple[str, ...]:
    """The capabilities loading needs that are not in a /proc/PID/status text.

    CAP_SYS_ADMIN stands for all of them, as it does in the kernel.
    """
    for line in status.splitlines():
        if line.startswith("CapEff:"):
            held = int(line.split()[1], 16)
            if held >> _CAP_SYS_ADMIN & 1:
                return ()
            return tuple(name for bit, name in _CAPABILITIES.items() if not held >> bit & 1)
    return tuple(_CAPABILITIES.values())


def cgroup_mounts(mountinfo: str) -> tuple[Path | None, bool]:
    """The v2 mount point, and whether a v1 hierarchy has the cpu controller."""
    cgroup2 = None
    cpu_on_v1 = False
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        if not right:
            continue
        kind, _, options = right.split(" ", 2)
        if kind == "cgroup2" and cgroup2 is None:
            cgroup2 = _mount_point(left)
        elif kind == "cgroup" and "cpu" in options.split(","):
            cpu_on_v1 = True
    return cgroup2, cpu_on_v1


def _mount_point(line: str) -> Path:
    r"""The mount point in a line of mountinfo, which writes a space as \040."""
    return Path(re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), line.split(" ")[4]))


def probe(lib: Libbpf | None) -> Features:
    """Ask the kernel; without libbpf only what needs no library is known."""
    lacking = missing_capabilities(Path("/proc/self/status").read_text())
    cgroup2, cpu_on_v1 = cgroup_mounts(Path("/proc/self/mountinfo").read_text())
    can_ask = lib is not None and not lacking

    def helper(program: int, number: int) -> bool:
        return (
            can_ask and lib is not None and lib.libbpf_probe_bpf_helper(program, number, None) == 1
        )

    def map_type(number: int) -> bool:
        return can_ask and lib is not None and lib.libbpf_probe_bpf_map_type(number, None) == 1

    arguments = tracepoint_arguments(lib, TRACEPOINTS) if lib else {}
    return Features(
        libbpf=lib is not None,
        btf=_BTF.exists(),
        missing_capabilities=lacking,
        task_storage=map_type(_MAP_TYPE_TASK_STORAGE),
        socket_storage=helper(_PROG_TYPE_CGROUP_SKB, _HELPER_SK_STORAGE_GET),
        ring_buffer=map_type(_MAP_TYPE_RINGBUF),
        loop=helper(_PROG_TYPE_CGROUP_SKB, _HELPER_LOOP),
        prev_state=arguments.get("sched_switch", 0) >= 4,
        retransmit_error=arguments.get("tcp_retransmit_skb", 0) >= 3,
        sched_info=notes_waits(_OWN_WAITS),
        tracepoints=frozenset(name for name, count in arguments.items() if count),
        hz=ticks_a_second(),
        cpu_on_v1=cpu_on_v1,
        cgroup2=cgroup2,
    )


def notes_waits(schedstat: Path) -> bool:
    """Whether the scheduler has noted how often this process came on a CPU, in its schedstat.

    Without CONFIG_SCHED_INFO there is no such file; a kernel that has it and does not note shows 0.
    """
    try:
        return int(schedstat.read_text().split()[2]) > 0
    except (OSError, LookupError, ValueError):
        return False


def ticks_a_second() -> int:
    """CONFIG_HZ: the coarse clocks advance once a tick, and say so."""
    return round(1 / time.clock_getres(_CLOCK_MONOTONIC_COARSE))


def is_bpffs(path: Path) -> bool:
    """Whether `path`, or the nearest directory above it that exists, is on a BPF file system."""
    real = next(p for p in (path, *path.parents) if p.exists()).resolve()
    best, kind = -1, ""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        left, _, right = line.partition(" - ")
        mount = _mount_point(left)
        if real.is_relative_to(mount) and len(mount.parts) >= best:
            best, kind = len(mount.parts), right.split(" ")[0]
    return kind == "bpf"


def findings(features: Features, pin_dir: Path) -> Iterable[Finding]:
    """Say in words what was found and what each missing thing costs."""
    yield Finding(
        "libbpf",
        features.libbpf,
        "libbpf.so.1 loads" if features.libbpf else "libbpf.so.1 was not found",
        "nothing can be measured; install libbpf1 (Debian) or libbpf (Fedora)",
    )
    yield Finding(
        "privileges",
        not features.missing_capabilities,
        "may load BPF programs"
        if not features.missing_capabilities
        else f"this process lacks {', '.join(features.missing_capabilities)}",
        "nothing can be measured; run as root or give these capabilities",
    )
    yield Finding(
        "btf",
        features.btf,
        f"{_BTF} is there" if features.btf else f"{_BTF} is missing",
        "the bcc tier measures instead, where the kernel's headers and bcc are: no streams",
    )
    yield Finding(
        "ring buffer",
        features.ring_buffer,
        "kernel has BPF ring buffers" if features.ring_buffer else "kernel is older than 5.8",
        "nothing can be measured",
    )
    yield Finding(
        "task storage",
        features.task_storage,
        "what is known of a task lives with it"
        if features.task_storage
        else "kernel is older than 5.12: what is known of tasks is kept by thread id",
        "at most 65,536 threads are followed at a time, and each event costs more",
    )
    yield Finding(
        "scheduler statistics",
        features.sched_info,
        "the scheduler notes since when each task waits"
        if features.sched_info
        else "kernel is built without CONFIG_SCHED_INFO",
        "no run-queue delay",
    )
    yield Finding(
        "streams",
        features.can_stream,
        "streams are followed by their HTTP framing"
        if features.can_stream
        else "needs socket storage, bpf_loop (kernel 5.17) and a mounted cgroup2",
        "no TTFT, no chunk gaps, no retransmits; run-queue delay is still measured",
    )
    writes = features.tracepoints >= _READS_AND_WRITES
    yield Finding(
        "reads and writes",
        writes,
        "the engine's own reads and writes are timed" if writes else "kernel is older than 6.3",
        "no receive-queue wait, no stalled or refused writes, no time with unsent bytes",
    )
    others = sorted(set(TRACEPOINTS) - features.tracepoints - _READS_AND_WRITES)
    yield Finding(
        "tracepoints",
        not others,
        "all there" if not others else f"this kernel has no {', '.join(others)}",
        "what these would tell is not counted",
    )
    yield Finding(
        "cgroup2",
        features.cgroup2 is not None,
        f"mounted at {features.cgroup2}" if features.cgroup2 else "no cgroup2 is mounted",
        "streams can't be followed",
    )
    yield Finding(
        "cpu controller",
        True,
        f"cgroup {'v1' if features.cpu_on_v1 else 'v2'}",
    )
    pinned = is_bpffs(pin_dir)
    yield Finding(
        "bpffs",
        pinned,
        f"{pin_dir} is on a BPF file system"
        if pinned
        else f"{pin_dir} is not on a BPF file system",
        "counters start from zero when the agent does; `mount -t bpf bpf /sys/fs/bpf` helps",
    )


def open_libbpf() -> Libbpf | None:
    """libbpf, or None where there is none."""
    try:
        return Libbpf()
    except LibbpfError:
        return None


def possible_cpus(lib: Libbpf) -> int:
    """How many CPUs there can ever be: what per-CPU things are sized by, not those online now."""
    return lib.check(lib.libbpf_num_possible_cpus(), "count possible CPUs")


def kernel_release() -> str:
    """The running kernel's release, for people to read; nothing is decided from it."""
    return os.uname().release
