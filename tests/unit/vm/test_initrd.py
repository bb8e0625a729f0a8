import gzip
import lzma
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.vm.rig.command import RigError
from tests.vm.rig.initrd import (
    Entry,
    cpio,
    directory,
    file,
    load_order,
    module_name,
    read_module,
)

DEP = """\
kernel/virtio/virtio.ko:
kernel/virtio/virtio_ring.ko.xz: kernel/virtio/virtio.ko
kernel/block/virtio_blk.ko.xz: kernel/virtio/virtio_ring.ko.xz kernel/virtio/virtio.ko
kernel/char/virtio-rng.ko: kernel/virtio/virtio_ring.ko.xz kernel/virtio/virtio.ko
"""
BUILTIN = "kernel/fs/ext4/ext4.ko\nkernel/lib/crc16.ko\n"

entries = st.builds(
    Entry,
    st.from_regex(r"[a-z]{1,9}(/[a-z]{1,9}){0,2}", fullmatch=True),
    st.sampled_from([0o100644, 0o100755, 0o040755]),
    st.binary(max_size=50),
)


def read_cpio(archive: bytes) -> list[Entry]:
    """Read a newc archive by its documented layout: every part padded to four bytes."""
    found: list[Entry] = []
    at = 0
    while True:
        assert archive[at : at + 6] == b"070701"
        fields = [int(archive[at + 6 + 8 * i : at + 14 + 8 * i], 16) for i in range(13)]
        mode, size, name_size = fields[1], fields[6], fields[11]
        name = archive[at + 110 : at + 110 + name_size - 1].decode()
        data_at = (at + 110 + name_size + 3) // 4 * 4
        if name == "TRAILER!!!":
            return found
        found.append(Entry(name, mode, archive[data_at : data_at + size]))
        at = (data_at + size + 3) // 4 * 4


@given(st.lists(entries, max_size=6))
def test_an_archive_holds_its_entries_in_order(written: list[Entry]) -> None:
    assert read_cpio(cpio(written)) == written


def test_entries_carry_their_kind() -> None:
    assert directory("a").mode == 0o040755
    assert file("a", b"").mode == 0o100644
    assert file("a", b"", executable=True).mode == 0o100755


@pytest.mark.parametrize("path", ["a/virtio-rng.ko", "virtio_rng.ko.xz", "b/c/virtio-rng.ko.zst"])
def test_a_module_goes_by_the_kernels_name(path: str) -> None:
    assert module_name(path) == "virtio_rng"


def test_what_a_module_needs_is_loaded_before_it_and_once() -> None:
    assert load_order(DEP, BUILTIN, ["virtio_blk", "virtio_rng"]) == [
        "kernel/virtio/virtio.ko",
        "kernel/virtio/virtio_ring.ko.xz",
        "kernel/block/virtio_blk.ko.xz",
        "kernel/char/virtio-rng.ko",
    ]


def test_what_is_built_in_needs_no_loading() -> None:
    assert load_order(DEP, BUILTIN, ["ext4"]) == []


def test_a_module_the_kernel_lacks_is_an_error() -> None:
    with pytest.raises(RigError, match="no module 'btrfs'"):
        load_order(DEP, BUILTIN, ["ext4", "btrfs"])


@pytest.mark.parametrize(
    ("suffix", "pack"), [("", bytes), (".xz", lzma.compress), (".gz", gzip.compress)]
)
def test_a_compressed_module_is_unpacked(
    tmp_path: Path, suffix: str, pack: Callable[[bytes], bytes]
) -> None:
    path = tmp_path / f"a.ko{suffix}"
    path.write_bytes(pack(b"module"))
    assert read_module(path) == b"module"
