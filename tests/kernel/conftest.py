"""What tests in the real kernel need: privileges, cgroups that go away, a private bpffs."""

import ctypes
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from uuid import uuid4

import pytest

from bpf.features import Features, possible_cpus, probe
from bpf.libbpf import Libbpf
from controller.limits.cgroup import read_hierarchies

_CLONE_NEWNS: Final = 0x00020000
_MS_REC: Final = 0x4000
_MS_SLAVE: Final = 1 << 19
_MNT_DETACH: Final = 2


@dataclass(frozen=True, slots=True)
class TwinGroup:
    """One cgroup by the same name in the v2 tree and in the hierarchy that rules the CPU.

    Where the cpu controller is on v2, both are one directory.
    """

    v2: Path
    cpu: Path

    @property
    def stream_id(self) -> int:
        """What stream programs know the group by."""
        return self.v2.stat().st_ino

    @property
    def cpu_id(self) -> int:
        """What scheduler programs know the group by."""
        return self.cpu.stat().st_ino

    def take_in(self, pid: int) -> None:
        """Move a process into the group."""
        for directory in {self.v2, self.cpu}:
            (directory / "cgroup.procs").write_text(str(pid))

    def remove(self) -> None:
        """Kill what is still in the group and remove it."""
        for directory in {self.v2, self.cpu}:
            _remove(directory)


MakeGroup = Callable[[str], TwinGroup]


@pytest.fixture(scope="session")
def lib() -> Libbpf:
    """libbpf, where BPF programs may be loaded at all."""
    if os.geteuid() != 0:
        pytest.skip("loading BPF programs needs root")
    return Libbpf()


@pytest.fixture(scope="session")
def features(lib: Libbpf) -> Features:
    found = probe(lib)
    if not found.can_trace:
        pytest.skip(f"this kernel or container can't trace: {found}")
    return found


@pytest.fixture(scope="session")
def cpus(lib: Libbpf) -> int:
    """How many CPUs there can ever be."""
    return possible_cpus(lib)


@pytest.fixture(scope="module")
def make_cgroup(lib: Libbpf) -> Iterator[MakeGroup]:
    """Makes a cgroup under a name that is nobody else's; removed at the module's end."""
    hierarchies = read_hierarchies()
    if hierarchies.v2 is None:
        pytest.skip("no cgroup2 is mounted")
    v2 = hierarchies.v2
    cpu = hierarchies.v1_cpu or v2
    made: list[TwinGroup] = []

    def make(name: str) -> TwinGroup:
        path = f"/sits-test-{name}-{uuid4().hex[:12]}"
        group = TwinGroup(v2.directory(path), cpu.directory(path))
        made.append(group)
        for directory in {group.v2, group.cpu}:
            directory.mkdir()
        return group

    try:
        yield make
    finally:
        for group in made:
            group.remove()


@pytest.fixture(scope="session")
def bpffs(lib: Libbpf, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A BPF file system that nobody but this process and its children sees.

    It is mounted in a mount namespace of our own, so it goes with us however we end.
    """
    libc = ctypes.CDLL(None, use_errno=True)

    def succeed(result: int, what: str) -> None:
        if result:
            raise OSError(ctypes.get_errno(), f"could not {what}")

    path = tmp_path_factory.mktemp("bpf")
    succeed(libc.unshare(_CLONE_NEWNS), "leave the mount namespace")
    # what the machine mounts meanwhile still reaches us, what we mount stays here
    succeed(libc.mount(b"none", b"/", None, _MS_REC | _MS_SLAVE, None), "detach from other mounts")
    succeed(libc.mount(b"bpf", bytes(path), b"bpf", 0, None), f"mount bpffs on {path}")
    try:
        yield path
    finally:
        succeed(libc.umount2(bytes(path), _MNT_DETACH), f"unmount {path}")


def _remove(directory: Path) -> None:
    """The kernel lets go of a killed process's group a moment after its end."""
    deadline = time.monotonic() + 5
    while directory.exists():
        for pid in (directory / "cgroup.procs").read_text().split():
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        try:
            directory.rmdir()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)
