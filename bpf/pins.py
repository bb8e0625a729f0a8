"""What is kept in the kernel on a BPF file system, and the mark that says what it is."""

import os
import struct
from collections.abc import Collection
from pathlib import Path
from typing import Final

from bpf.layout import LAYOUT_VERSION
from bpf.libbpf import BPF_MAP_TYPE_ARRAY, Libbpf, Map

_LAYOUT: Final = struct.Struct("=QQ")


def listed(directory: Path) -> list[Path]:
    """The files in a directory of pins; none if it is not there."""
    return sorted(directory.iterdir()) if directory.is_dir() else []


def open_pin(lib: Libbpf, path: Path) -> int | None:
    """A descriptor of what is pinned at `path`; None if nothing is."""
    fd = int(lib.bpf_obj_get(str(path).encode()))
    return fd if fd >= 0 else None


def pin(lib: Libbpf, fd: int, path: Path) -> None:
    """Keep what `fd` is at `path`; `LibbpfError` if that can't be done."""
    lib.check(lib.bpf_obj_pin(fd, str(path).encode()), f"pin {path}")


def read_layout(lib: Libbpf, pin_dir: Path) -> tuple[int, int]:
    """The layout version and the hash of what is pinned; zeros where nothing is."""
    fd = open_pin(lib, pin_dir / "layout")
    if fd is None:
        return 0, 0
    try:
        value = Map(lib, fd).get(bytes(4)) or b""
        return _LAYOUT.unpack(value) if len(value) == _LAYOUT.size else (0, 0)
    finally:
        os.close(fd)


def write_layout(lib: Libbpf, pin_dir: Path, fingerprint: int) -> None:
    """Say what is pinned, now that all of it is."""
    fd = lib.check(
        lib.bpf_map_create(BPF_MAP_TYPE_ARRAY, b"sits_layout", 4, _LAYOUT.size, 1, None),
        "create map 'layout'",
    )
    try:
        Map(lib, fd).put(bytes(4), _LAYOUT.pack(LAYOUT_VERSION, fingerprint))
        pin(lib, fd, pin_dir / "layout")
    finally:
        os.close(fd)


def remove_pins(pin_dir: Path, kept_maps: Collection[str]) -> None:
    """Remove every pin but these maps: what nobody holds any more ends."""
    (pin_dir / "layout").unlink(missing_ok=True)
    for name in ("links", "programs", "maps"):
        directory = pin_dir / name
        if not directory.is_dir():
            continue
        for path in directory.iterdir():
            if name != "maps" or path.name not in kept_maps:
                path.unlink()
        if not any(directory.iterdir()):
            directory.rmdir()
