"""Loads the tier without BTF: makes and pins its maps, has a process attach the programs to them.

The maps are those of `bpf/sched.bpf.c` and its like, by name, type and layout, so that who reads or
writes them need not know which tier fills them. Those this tier has nothing for stay empty: edges,
roles, culprits.
"""

import hashlib
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from bpf.bcc_tier import PARTS, PROGRAMS, PYTHON_PACKAGES, SOURCES, kernel_headers
from bpf.features import is_bpffs, possible_cpus
from bpf.layout import (
    COUNTERS,
    CULPRIT,
    CULPRIT_KEY,
    HEALTH,
    HISTOGRAM,
    LAYOUT_VERSION,
    MAX_ROLES,
    ROLE,
    ROLE_KEY,
    TARGET,
)
from bpf.libbpf import (
    BPF_F_MMAPABLE,
    BPF_F_NO_PREALLOC,
    BPF_MAP_TYPE_ARRAY,
    BPF_MAP_TYPE_HASH,
    BPF_MAP_TYPE_LRU_HASH,
    BPF_MAP_TYPE_PERCPU_ARRAY,
    BPF_MAP_TYPE_RINGBUF,
    Libbpf,
    LibbpfError,
    make_map,
)
from bpf.loader import Plan, Programs
from bpf.pins import open_pin, pin, read_layout, remove_pins, write_layout

LOAD_S: Final = 1200.0
"""For compiling: seconds on an idle machine; an emulated one on a busy host took eight minutes."""

_RING_BYTES: Final = 64 * 1024
_LAST_WORDS: Final = 2000


def bcc_problem(release: str) -> str:
    """Why this tier can't run here, empty if it may."""
    headers = kernel_headers(release)
    if not (headers / "include").is_dir():
        return f"the kernel's headers are not at {headers} (Debian: linux-headers-{release})"
    if not (PYTHON_PACKAGES / "bcc").is_dir():
        return f"bcc is not in {PYTHON_PACKAGES} (Debian: python3-bpfcc)"
    return ""


def load_bcc(lib: Libbpf, plan: Plan) -> Programs:
    """Load, or adopt what is pinned; `LibbpfError` says what failed and why. Needs a pin directory.

    Waits for the process that compiles, `LOAD_S` at most.
    """
    pin_dir = plan.pin_dir
    if pin_dir is None or not is_bpffs(pin_dir):
        raise LibbpfError(0, "the bcc tier needs a BPF file system to pin to")
    cpus = possible_cpus(lib)
    fingerprint = _fingerprint(plan, cpus)
    if read_layout(lib, pin_dir) == (LAYOUT_VERSION, fingerprint):
        adopted = _pinned(lib, plan, "adopted")
        if adopted is not None:
            return adopted
    remove_pins(pin_dir, ())
    for directory in ("maps", "programs", "links"):
        (pin_dir / directory).mkdir(parents=True, exist_ok=True)
    try:
        for name, (kind, sizes, flags) in map_shapes(plan.max_targets, cpus).items():
            fd = make_map(lib, name, kind, sizes, flags)
            try:
                pin(lib, fd, pin_dir / "maps" / name)
            finally:
                os.close(fd)
        _compile(plan, pin_dir, cpus)
        loaded = _pinned(lib, plan, "fresh")
        if loaded is None:
            raise LibbpfError(0, "could not load the bcc tier: not everything was pinned")
    except BaseException:
        remove_pins(pin_dir, ())
        raise
    write_layout(lib, pin_dir, fingerprint)
    return loaded


def map_shapes(max_targets: int, cpus: int) -> Mapping[str, tuple[int, tuple[int, int, int], int]]:
    """The maps of this tier: type, sizes of key and value and entries, flags."""
    rows, hashed = max_targets * cpus, BPF_F_NO_PREALLOC
    array, table = BPF_MAP_TYPE_ARRAY, BPF_MAP_TYPE_HASH
    return {
        "targets": (array, (4, TARGET.size, max_targets), 0),
        "counters": (array, (4, COUNTERS.size, rows), BPF_F_MMAPABLE),
        "health": (array, (4, HEALTH.size, cpus), BPF_F_MMAPABLE),
        "edges": (BPF_MAP_TYPE_RINGBUF, (0, 0, _RING_BYTES), 0),
        "generation": (array, (4, 8, 1), BPF_F_MMAPABLE),
        "cpu_cgroups": (table, (8, 4, 16384), hashed),
        "processes": (table, (4, 4, 16384), hashed),
        "stream_cgroups": (table, (8, 4, 16384), hashed),
        "ports": (table, (8, 4, 4096), hashed),
        "wait_histograms": (BPF_MAP_TYPE_PERCPU_ARRAY, (4, HISTOGRAM.size, max_targets), 0),
        "role_rows": (table, (ROLE_KEY.size, 4, MAX_ROLES), 0),
        "role_names": (table, (4, ROLE_KEY.size, MAX_ROLES), 0),
        "roles": (array, (4, ROLE.size, MAX_ROLES * cpus), BPF_F_MMAPABLE),
        "culprits": (BPF_MAP_TYPE_LRU_HASH, (CULPRIT_KEY.size, CULPRIT.size, 4096), 0),
    }


def _compile(plan: Plan, pin_dir: Path, cpus: int) -> None:
    command = [sys.executable, "-m", "bpf.bcc_tier", "--pin-dir", str(pin_dir)]
    command += ["--max-targets", str(plan.max_targets), "--cpus", str(cpus)]
    if plan.features.cpu_on_v1:
        command.append("--cpu-on-v1")
    try:
        done = subprocess.run(
            command,
            cwd=SOURCES.parent,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=LOAD_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LibbpfError(0, f"could not load the bcc tier: {error}") from None
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip()
        raise LibbpfError(0, said[-_LAST_WORDS:] or "could not load the bcc tier")


def _pinned(lib: Libbpf, plan: Plan, how: str) -> Programs | None:
    """Everything from its pins, None if something that should be there is not."""
    assert plan.pin_dir is not None
    wanted = {
        "maps": list(map_shapes(plan.max_targets, possible_cpus(lib))),
        "programs": list(PROGRAMS),
        "links": list(PROGRAMS),
    }
    found: dict[str, dict[str, int]] = {}
    for kind, names in wanted.items():
        opened = {name: open_pin(lib, plan.pin_dir / kind / name) for name in names}
        found[kind] = {name: fd for name, fd in opened.items() if fd is not None}
    if all(len(found[kind]) == len(names) for kind, names in wanted.items()):
        return Programs(lib, plan, found["maps"], found["programs"], found["links"], how)
    for fds in found.values():
        for fd in fds.values():
            os.close(fd)
    return None


def _fingerprint(plan: Plan, cpus: int) -> int:
    said = (os.uname().release, os.uname().version, plan.max_targets, cpus, plan.features.cpu_on_v1)
    digest = hashlib.sha256(repr(said).encode())
    for part in PARTS:
        digest.update((SOURCES / part).read_bytes())
    return int.from_bytes(digest.digest()[:8], "little")
