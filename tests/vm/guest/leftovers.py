"""What a service can leave behind on a machine, and the memory that it and the kernel have."""

import ctypes
import re
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from tests.vm.guest.conftest import ROOT
from tests.vm.guest.installed import pins

FOLDERS = ("/tmp", "/var/tmp", "/run")


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


Left = Mapping[str, Counter[str]]
"""How many there are of each thing, by its kind."""


def left() -> Left:
    """What there is besides processes that a service can leave behind."""
    sockets = Path("/proc/net/unix").read_text().splitlines()
    return {
        "bpf": Counter({kind: bpf_objects(kind) for kind in ("prog", "map", "link")}),
        "pins": Counter(pins()),
        "cgroups": Counter(str(path) for path in ROOT.rglob("*sits*")),
        "sockets": Counter(line for line in sockets if "sits" in line),
        "files": Counter(path.name for at in FOLDERS for path in Path(at).iterdir()),
    }


def wait_for_no_more(than: Left, within_s: float = 300) -> Left:
    """What is left once that is no more than before; fails with what is there in addition.

    It may be less: what goes a moment after the service may have been there before.
    """
    until = time.monotonic() + within_s
    while True:
        found = left()
        more = {kind: now - than[kind] for kind, now in found.items() if now - than[kind]}
        if not more:
            return found
        assert time.monotonic() < until, f"left behind: {more}"
        time.sleep(0.5)
