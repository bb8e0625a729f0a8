"""What a service can leave behind on a machine, and the memory that it and the kernel have."""

import ctypes
import os
import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping
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


INFO_BYTES = 256
NAME_AT = {"prog": 64, "map": 24}
"""Where a name of 16 bytes is in struct bpf_prog_info and bpf_map_info."""

PROGRAM_AT = 8
"""Where a link's program is in struct bpf_link_info: its id, in 4 bytes."""

SYSTEMDS = ("sd_", "")
"""How its programs' names begin, and its maps' name: they come and go with other units."""


def bpf_objects() -> Counter[str]:
    """The programs, maps and links that the kernel has, by name; without systemd's."""
    libbpf = ctypes.CDLL("libbpf.so.1")
    found = [(kind, _name(kind, info)) for kind in NAME_AT for info in _all(libbpf, kind)]
    for info in _all(libbpf, "link"):
        program = _info(libbpf, "prog", int.from_bytes(info[PROGRAM_AT : PROGRAM_AT + 4], "little"))
        found.append(("link", _name("prog", program) if program else "of nothing"))
    begins, unnamed = SYSTEMDS
    return Counter(
        f"{kind} {name}" for kind, name in found if name != unnamed and not name.startswith(begins)
    )


def _all(libbpf: ctypes.CDLL, kind: str) -> Iterator[bytes]:
    """What the kernel tells of each object of a kind."""
    last = ctypes.c_uint32(0)
    while libbpf[f"bpf_{kind}_get_next_id"](last, ctypes.byref(last)) == 0:
        if info := _info(libbpf, kind, last.value):
            yield info


def _info(libbpf: ctypes.CDLL, kind: str, number: int) -> bytes:
    """Of one; nothing if it has just gone."""
    fd = libbpf[f"bpf_{kind}_get_fd_by_id"](ctypes.c_uint32(number))
    if fd < 0:
        return b""
    info, size = ctypes.create_string_buffer(INFO_BYTES), ctypes.c_uint32(INFO_BYTES)
    failed = libbpf.bpf_obj_get_info_by_fd(fd, info, ctypes.byref(size))
    os.close(fd)
    return b"" if failed else info.raw


def _name(kind: str, info: bytes) -> str:
    at = NAME_AT[kind]
    return info[at : at + 16].partition(b"\0")[0].decode()


Left = Mapping[str, Counter[str]]
"""How many there are of each thing, by its kind."""


def left() -> Left:
    """What there is besides processes that a service can leave behind."""
    sockets = Path("/proc/net/unix").read_text().splitlines()
    return {
        "bpf": bpf_objects(),
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
