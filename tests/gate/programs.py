"""How large the BPF programs are: as compiled, as loaded, and what the verifier had to look at."""

import os
import platform
import struct
import subprocess
from collections.abc import Mapping
from contextlib import closing
from ctypes import byref, c_uint32, create_string_buffer
from pathlib import Path
from typing import Final

from bpf.features import probe
from bpf.libbpf import Libbpf
from bpf.loader import OBJECT_DIR, Plan, load
from tests.gate.comparing import Group

MAX_TARGETS: Final = 8
INSTRUCTION_BYTES: Final = 8

_ELF_HEADER: Final = struct.Struct("<16xHHI3QI6H")
_SECTION: Final = struct.Struct("<IIQQQQIIQQ")
_EXECUTABLE: Final = 4
"""SHF_EXECINSTR of elf(5)."""

_INFO: Final = struct.Struct("=16xII192xI12x")
"""struct bpf_prog_info of include/uapi/linux/bpf.h: machine code and instructions in bytes, and,
since 5.16 (aba64c7da983), the instructions that the verifier visited."""


def object_instructions(path: Path) -> int:
    """Instructions in all executable sections of an object file."""
    data = path.read_bytes()
    header = _ELF_HEADER.unpack_from(data)
    sections_at, entry_bytes, count = header[5], header[10], header[11]
    sections = (_SECTION.unpack_from(data, sections_at + n * entry_bytes) for n in range(count))
    return sum(int(each[5]) for each in sections if each[2] & _EXECUTABLE) // INSTRUCTION_BYTES


def objects() -> Group:
    """What clang makes of our sources."""
    figures = {
        f"{path.name.partition('.')[0]}: instructions": object_instructions(path)
        for path in sorted(OBJECT_DIR.glob("*.bpf.o"))
    }
    return Group({"clang": _clang(), "machine": platform.machine()}, figures)


def programs() -> Group | None:
    """What the kernel makes of it; None where nothing can be loaded, as without root."""
    if os.geteuid() != 0:
        return None
    lib = Libbpf()
    features = probe(lib)
    if not features.can_stream:
        return None
    with closing(load(lib, Plan(features, MAX_TARGETS, None))) as loaded:
        sizes = {name: _sizes(lib, fd) for name, fd in sorted(loaded.programs.items())}
    return Group(
        {
            "clang": _clang(),
            "kernel": ".".join(os.uname().release.split(".")[:2]),
            "machine": platform.machine(),
        },
        {f"{name}: {what}": n for name, each in sizes.items() for what, n in each.items()},
    )


def _sizes(lib: Libbpf, fd: int) -> Mapping[str, int]:
    info = create_string_buffer(_INFO.size)
    lib.check(
        lib.bpf_obj_get_info_by_fd(fd, info, byref(c_uint32(_INFO.size))),
        f"read program info of fd {fd}",
    )
    machine_bytes, instruction_bytes, visited = _INFO.unpack(info.raw)
    return {
        "instructions": instruction_bytes // INSTRUCTION_BYTES,
        "machine code, bytes": machine_bytes,
        "visited by the verifier": visited,
    }


def _clang() -> str:
    command = [os.environ.get("CLANG", "clang"), "--version"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split("\n")[0]
