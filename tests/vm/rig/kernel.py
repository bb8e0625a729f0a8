"""Debian's kernels: the newest of each suite, made ready to boot."""

import hashlib
import json
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.vm.rig import bzimage, disk, initrd
from tests.vm.rig.apt import Suite, depends, host_mirror
from tests.vm.rig.cache import Cache
from tests.vm.rig.command import RigError, run

SUITES = {
    "5.10": "bullseye",
    "6.1": "bookworm",
    "6.12": "trixie",
    "newest": "trixie-backports",
}
# The cloud flavour: everything a virtual machine needs, a quarter of the modules.
META_PACKAGE = "linux-image-cloud-amd64"
LOOK_UP_AGAIN_S = 24 * 3600


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel ready to boot: its release (as `uname -r`) and the directory with its parts."""

    release: str
    directory: Path

    @property
    def image(self) -> Path:
        """The uncompressed kernel, or Debian's boot image where that could not be unpacked."""
        return self.directory / "kernel"

    @property
    def initrd(self) -> Path:
        """The initial file system."""
        return self.directory / "initrd"

    @property
    def modules(self) -> Path:
        """The disk that the guest mounts at /lib/modules/RELEASE."""
        return self.directory / "modules.ext4"


@dataclass(frozen=True, slots=True)
class Choice:
    """Which kernel a suite has: its release and the packages that make it up."""

    release: str
    packages: tuple[str, ...]


def choose(show: Callable[[str], dict[str, str]]) -> Choice:
    """Return the kernel that the suite's meta-package stands for.

    `show` gives a package's index stanza. Newer kernels come in several packages, so this follows
    those dependencies that carry the same release in their name. Raises RigError when there is no
    versioned image behind the meta-package.
    """
    for name in depends(show(META_PACKAGE)):
        if match := re.fullmatch(r"linux-image-(\d.*)", name):
            release = match[1]
            break
    else:
        raise RigError(f"{META_PACKAGE} depends on no kernel image")
    packages = [f"linux-image-{release}"]
    for package in packages:
        packages += [
            name
            for name in depends(show(package))
            if name.endswith(f"-{release}") and name not in packages
        ]
    return Choice(release, tuple(packages))


def fetch(cache: Cache, series: str, *, refresh: bool, notice: Callable[[str], None]) -> Kernel:
    """Return the newest kernel of a series, from the cache where it is there.

    A suite is looked up once a day, or now with `refresh`; when that fails, the last kernel found
    is used and `notice` told. Raises RigError when there is none.
    """
    suite = SUITES[series]
    index = Suite(cache.root / "apt" / suite)
    record = cache.root / "apt" / f"{suite}.json"
    choice = _read_choice(record)
    # Wall time, because the record outlives the machine's boot; a wrong clock costs one look-up.
    fresh = choice and abs(time.time() - record.stat().st_mtime) < LOOK_UP_AGAIN_S
    if refresh or not fresh:
        try:
            index.update(host_mirror(), suite)
            choice = choose(index.show)
            content = {"release": choice.release, "packages": choice.packages}
            record.write_text(json.dumps(content))
        except RigError as error:
            if choice is None:
                raise RigError(f"could not find the newest kernel of {suite}: {error}") from error
            notice(f"using {choice.release}, the last known of {suite}: {error}")
    assert choice is not None
    found = choice
    directory = cache.build(
        f"kernels/{found.release}-{_recipe()}", lambda into: _make(cache, index, found, into)
    )
    return Kernel(found.release, directory)


def _read_choice(record: Path) -> Choice | None:
    try:
        content = json.loads(record.read_text())
        return Choice(content["release"], tuple(content["packages"]))
    except (OSError, ValueError, KeyError):
        return None


def _recipe() -> str:
    """Name the way a kernel is made ready, so that a new way does not meet old results."""
    sources = (Path(__file__), Path(initrd.__file__), initrd.INIT)
    return hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:8]


def _make(cache: Cache, index: Suite, choice: Choice, into: Path) -> None:
    debs, tree = cache.scratch(), cache.scratch()
    for deb in index.download(choice.packages, debs):
        run(["dpkg", "-x", deb, tree], timeout_s=120)
    modules = tree / "lib/modules" / choice.release
    if not modules.is_dir():
        # Newer packages install below /usr only, and depmod looks below /lib.
        (tree / "lib").symlink_to("usr/lib")
    run(["depmod", "-b", tree, choice.release], timeout_s=60)
    (into / "initrd").write_bytes(initrd.build(modules))
    disk.ext4(modules, into / "modules.ext4")
    boot_images = [*tree.glob("boot/vmlinuz-*"), modules / "vmlinuz"]
    packed = boot_images[0].read_bytes()
    try:
        (into / "kernel").write_bytes(bzimage.vmlinux(packed))
    except RigError:
        (into / "kernel").write_bytes(packed)
    configs = [*tree.glob("boot/config-*"), *modules.glob("config")]
    (into / "config").write_bytes(configs[0].read_bytes())
