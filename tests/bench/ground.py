"""What every part stands on: libbpf, this kernel's features, and cgroups that go away again."""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final
from uuid import uuid4

from bpf.features import Features, probe
from bpf.libbpf import Libbpf
from bpf.loader import Plan, load
from controller.limits.cgroup import read_hierarchies
from tests.kernel.bpf.watched import Watched, watching
from tests.kernel.conftest import MakeGroup, TwinGroup

Part = dict[str, Any]
"""What one part found, as it goes into the JSON file."""

ROOT: Final = Path(__file__).parents[2]
MAX_TARGETS: Final = 4

_CLONE_NEWNS: Final = 0x00020000
_MS_REC: Final = 0x4000
_MS_SLAVE: Final = 1 << 19
_MNT_DETACH: Final = 2


@dataclass(frozen=True, slots=True)
class Ground:
    """`make_group` makes a cgroup of a name that is nobody else's."""

    lib: Libbpf
    features: Features
    make_group: MakeGroup

    @contextmanager
    def watched(self) -> Iterator[Watched]:
        """Programs loaded without pins: they go with this process."""
        with watching(load(self.lib, Plan(self.features, MAX_TARGETS, None))) as made:
            yield made


@contextmanager
def ground() -> Iterator[Ground]:
    """`RuntimeError` where this machine can't measure; its cgroups are removed at the end."""
    if os.geteuid() != 0:
        raise RuntimeError("could not load BPF programs: this needs root")
    lib = Libbpf()
    features = probe(lib)
    hierarchies = read_hierarchies()
    if not features.can_stream or hierarchies.v2 is None:
        raise RuntimeError(f"could not follow streams on this kernel: {features}")
    v2, cpu = hierarchies.v2, hierarchies.v1_cpu or hierarchies.v2
    made: list[TwinGroup] = []

    def make(name: str) -> TwinGroup:
        path = f"/sits-bench-{name}-{uuid4().hex[:12]}"
        group = TwinGroup(v2.directory(path), cpu.directory(path))
        made.append(group)
        for directory in {group.v2, group.cpu}:
            directory.mkdir()
        return group

    try:
        yield Ground(lib, features, make)
    finally:
        for group in made:
            group.remove()


@contextmanager
def private_bpffs() -> Iterator[Path]:
    """A BPF file system of our own, see `private_mount`."""
    with TemporaryDirectory() as directory, private_mount("bpf", Path(directory)):
        yield Path(directory)


@contextmanager
def in_memory(directory: Path) -> Iterator[Path]:
    """The directory, made and in memory as /run is on a node, see `private_mount`."""
    directory.mkdir()
    with private_mount("tmpfs", directory):
        yield directory


@contextmanager
def private_mount(kind: str, path: Path) -> Iterator[None]:
    """A file system that only this process and its children see, in a mount namespace of
    their own: it goes with them however they end."""
    libc = ctypes.CDLL(None, use_errno=True)

    def succeed(result: int, what: str) -> None:
        if result:
            raise OSError(ctypes.get_errno(), f"could not {what}")

    succeed(libc.unshare(_CLONE_NEWNS), "leave the mount namespace")
    succeed(libc.mount(b"none", b"/", None, _MS_REC | _MS_SLAVE, None), "detach from mounts")
    mounted = libc.mount(kind.encode(), bytes(path), kind.encode(), 0, None)
    succeed(mounted, f"mount {kind} on {path}")
    try:
        yield
    finally:
        succeed(libc.umount2(bytes(path), _MNT_DETACH), f"unmount {path}")


def python_path() -> tuple[str, ...]:
    """What to put before a script that imports from this checkout."""
    return ("env", f"PYTHONPATH={ROOT}")
