"""bcc and a kernel's headers as a directory, for a guest whose image has neither."""

import hashlib
import shutil
from pathlib import Path
from typing import Final

from tests.vm.rig.apt import Suite
from tests.vm.rig.cache import Cache
from tests.vm.rig.command import RigError, run
from tests.vm.rig.image import SUITE
from tests.vm.rig.kernel import Kernel

PACKAGES: Final = (
    "libbpfcc",
    "libbsd0",
    "libclang-cpp14",
    "libdebuginfod1",
    "libedit2",
    "libelf1",
    "libicu72",
    "libllvm14",
    "libmd0",
    "libxml2",
    "libz3-4",
    "python3-bpfcc",
)
"""bcc of the guest's release, and what its library needs beside the image's packages."""


def fetch(cache: Cache, kernel: Kernel) -> Path:
    """Return a directory with `usr` (bcc and its libraries) and `headers` (of this kernel).

    The kernel must be of the guest's own release, whose package index has been fetched for it.
    """
    flavour = kernel.release.rpartition("-")[2]
    common = f"{kernel.release.removesuffix(flavour).removesuffix('cloud-')}common"
    headers = (f"linux-headers-{kernel.release}", f"linux-headers-{common}")
    recipe = hashlib.sha256(repr((PACKAGES, Path(__file__).read_bytes())).encode()).hexdigest()[:8]

    def make(into: Path) -> None:
        debs, tree = cache.scratch(), cache.scratch()
        index = Suite(cache.root / "apt" / SUITE)
        for deb in index.download((*PACKAGES, *headers), debs):
            run(["dpkg", "-x", deb, tree], timeout_s=120)
        # one tree, as a kernel that was built in place has
        for name in reversed(headers):
            source = tree / "usr/src" / name
            if not source.is_dir():
                raise RigError(f"package {name} has no {source.relative_to(tree)}")
            # without links to what modules are built with: programs need none of it
            links = [path.name for path in source.iterdir() if path.is_symlink()]
            shutil.copytree(
                source,
                into / "headers",
                symlinks=True,
                dirs_exist_ok=True,
                ignore=lambda at, _, top=source, found=links: found if Path(at) == top else (),
            )
        for name in (
            "usr/lib/x86_64-linux-gnu",
            "usr/lib/llvm-14",
            "usr/lib/python3",
            "lib/x86_64-linux-gnu",
        ):
            if (tree / name).is_dir():
                shutil.copytree(
                    tree / name, into / "usr" / Path(name).name, symlinks=True, dirs_exist_ok=True
                )

    return cache.build(f"bcc/{kernel.release}-{recipe}", make)
