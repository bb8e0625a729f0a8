"""Disks for the guest: ext4 images made from directories, and a raw disk that carries a tar back.

No mount and no loop device is needed for either, so none can be left behind.
"""

import shutil
import tarfile
from contextlib import suppress
from pathlib import Path

from tests.vm.rig.command import RigError, run

RESULTS_BYTES = 64 << 20


def ext4(directory: Path, image: Path, *, spare_mib: int = 16) -> None:
    """Make `image` an ext4 file system with the contents, owners and times of `directory`."""
    # Each entry takes an inode and up to a block more than its length.
    entries = [path.lstat() for path in directory.rglob("*")]
    content_kib = sum(stat.st_size // 1024 + 4 for stat in entries)
    size_mib = content_kib * 11 // 10 // 1024 + spare_mib
    inodes = len(entries) + 4096
    layout = ["-O", "^has_journal", "-m", "0", "-N", str(inodes), "-E", "root_owner=0:0"]
    try:
        run(
            ["mke2fs", "-q", "-F", "-t", "ext4", *layout, "-d", directory, image, f"{size_mib}M"],
            timeout_s=180,
        )
    except RigError:
        image.unlink(missing_ok=True)
        raise


def blank(image: Path) -> None:
    """Make `image` an empty raw disk of 64 MiB, sparse on the host."""
    with image.open("wb") as disk:
        disk.truncate(RESULTS_BYTES)


def unpack(image: Path, into: Path) -> None:
    """Unpack the tar that the guest wrote to a raw disk, as far as it got with it.

    Only directories and plain files are taken, and none outside `into`: the guest is not trusted.
    """
    base = into.resolve()
    with suppress(tarfile.ReadError), tarfile.open(image, "r:") as tar:
        for member in tar:
            path = (base / member.name).resolve()
            if not path.is_relative_to(base):
                continue
            if member.isdir():
                path.mkdir(parents=True, exist_ok=True)
            elif content := tar.extractfile(member) if member.isfile() else None:
                path.parent.mkdir(parents=True, exist_ok=True)
                with path.open("wb") as out:
                    shutil.copyfileobj(content, out)
