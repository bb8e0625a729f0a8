"""What a service can leave behind on a machine, and the memory that it and the kernel have."""

import ctypes
import re
from pathlib import Path

from tests.vm.guest.conftest import ROOT
from tests.vm.guest.installed import pins


def memory_kib(pid: int) -> int:
    """A process's memory, without what it shares."""
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return sum(int(n) for n in re.findall(r"^Private_\w+:\s+(\d+) kB$", rollup, re.MULTILINE))


def kernel_kib() -> int:
    """The memory that the kernel has for itself and can't give back."""
    kinds = "SUnreclaim|Percpu|KernelStack|PageTables|VmallocUsed"
    told = Path("/proc/meminfo").read_text()
    return sum(int(n) for n in re.findall(rf"^(?:{kinds}):\s+(\d+) kB$", told, re.MULTILINE))


def bpf_objects(kind: str) -> int:
    """How many programs, maps or links the kernel has."""
    libbpf, count, last = ctypes.CDLL("libbpf.so.1"), 0, ctypes.c_uint32(0)
    while libbpf[f"bpf_{kind}_get_next_id"](last, ctypes.byref(last)) == 0:
        count += 1
    return count


def left() -> dict[str, object]:
    """What there is besides processes that a service can leave behind."""
    sockets = Path("/proc/net/unix").read_text().splitlines()
    return {
        **{kind: bpf_objects(kind) for kind in ("prog", "map", "link")},
        "pins": pins(),
        "cgroups": {str(path) for path in ROOT.rglob("*sits*")},
        "sockets": [line for line in sockets if "sits" in line],
        "files": {path.name for at in ("/tmp", "/var/tmp", "/run") for path in Path(at).iterdir()},
    }
