"""The guest's first file system: busybox, the modules that reach the disks, and a small init."""

import gzip
import lzma
import stat
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from tests.vm.rig.bzimage import unzstd
from tests.vm.rig.command import RigError

WANTED = ("virtio_pci", "virtio_blk", "virtio_rng", "ext4")
INIT = Path(__file__).parent / "guest_files" / "init"
BUSYBOX = Path("/usr/bin/busybox")


@dataclass(frozen=True, slots=True)
class Entry:
    """One file or directory of an archive; `mode` holds its type as in stat."""

    name: str
    mode: int
    data: bytes = b""


def directory(name: str) -> Entry:
    """Return a directory entry."""
    return Entry(name, stat.S_IFDIR | 0o755)


def file(name: str, data: bytes, *, executable: bool = False) -> Entry:
    """Return a plain file entry."""
    return Entry(name, stat.S_IFREG | (0o755 if executable else 0o644), data)


def cpio(entries: Iterable[Entry]) -> bytes:
    """Return the entries as a "newc" archive, the format the kernel unpacks at boot.

    Format: Documentation/driver-api/early-userspace/buffer-format.rst of the Linux source.
    """
    out = bytearray()
    for inode, entry in enumerate([*entries, Entry("TRAILER!!!", 0)], start=1):
        name = entry.name.encode() + b"\0"
        fields = (inode, entry.mode, 0, 0, 1, 0, len(entry.data), 0, 0, 0, 0, len(name), 0)
        out += b"070701" + b"".join(b"%08x" % field for field in fields) + name
        out += bytes(-len(out) % 4) + entry.data
        out += bytes(-len(out) % 4)
    return bytes(out)


def module_name(path: str) -> str:
    """Return the name the kernel knows a module file by: `a/virtio-rng.ko.xz` is `virtio_rng`."""
    return PurePosixPath(path).name.partition(".ko")[0].replace("-", "_")


def load_order(modules_dep: str, modules_builtin: str, wanted: Sequence[str]) -> list[str]:
    """Return the module files to load, in order, so that every wanted module works.

    The texts are depmod's modules.dep and the kernel's modules.builtin. What is built in needs no
    file. Raises RigError when a wanted module is in neither.
    """
    files: dict[str, tuple[str, list[str]]] = {}
    for line in modules_dep.splitlines():
        path, _, others = line.partition(":")
        # depmod lists what a module needs with the one to load first at the end.
        files[module_name(path)] = (path, others.split()[::-1])
    builtin = {module_name(path) for path in modules_builtin.split()}
    order: dict[str, None] = {}
    for name in wanted:
        if name in files:
            path, needs = files[name]
            order.update(dict.fromkeys([*needs, path]))
        elif name not in builtin:
            raise RigError(f"the kernel has no module '{name}', and it is not built in")
    return list(order)


def read_module(path: Path) -> bytes:
    """Return a module file's content, unpacked: busybox loads no compressed ones."""
    data = path.read_bytes()
    if path.suffix == ".xz":
        return lzma.decompress(data)
    if path.suffix == ".gz":
        return gzip.decompress(data)
    return unzstd(data) if path.suffix == ".zst" else data


def build(modules: Path) -> bytes:
    """Return the archive for the kernel whose modules, with depmod's lists, are in `modules`."""
    order = load_order(
        (modules / "modules.dep").read_text(), (modules / "modules.builtin").read_text(), WANTED
    )
    names = ("bin", "dev", "proc", "sys", "root", "modules")
    entries = [directory(name) for name in names]
    entries.append(file("bin/busybox", BUSYBOX.read_bytes(), executable=True))
    entries.append(file("init", INIT.read_bytes(), executable=True))
    entries += [
        file(f"modules/{position:02d}-{module_name(path)}.ko", read_module(modules / path))
        for position, path in enumerate(order)
    ]
    return cpio(entries)
