import gzip
import lzma
import struct
from collections.abc import Callable

import pytest

from tests.vm.rig.bzimage import payload, vmlinux
from tests.vm.rig.command import RigError

ELF = b"\x7fELF" + bytes(range(200))


def boot_image(packed: bytes, setup_sectors: int, offset: int) -> bytes:
    """Lay out a boot image as the x86 boot protocol says."""
    image = bytearray(((setup_sectors or 4) + 1) * 512)
    image[0x1F1] = setup_sectors
    image[0x202:0x206] = b"HdrS"
    struct.pack_into("<II", image, 0x248, offset, len(packed))
    return bytes(image) + b"\xee" * offset + packed + b"\xee" * 100


@pytest.mark.parametrize("setup_sectors", [0, 4, 39])
@pytest.mark.parametrize("offset", [0, 771])
def test_the_payload_lies_where_the_header_says(setup_sectors: int, offset: int) -> None:
    assert payload(boot_image(b"packed", setup_sectors, offset)) == b"packed"


@pytest.mark.parametrize("pack", [lzma.compress, gzip.compress])
def test_the_kernel_is_unpacked_and_what_follows_ignored(pack: Callable[[bytes], bytes]) -> None:
    with_length = pack(ELF) + struct.pack("<I", len(ELF))
    assert vmlinux(boot_image(with_length, 39, 771)) == ELF


@pytest.mark.parametrize(
    ("image", "cause"),
    [
        (b"", "not an x86 boot image"),
        (bytes(4096), "not an x86 boot image"),
        (boot_image(b"unknown", 39, 0), "starts with 756e6b6e6f77"),
        (boot_image(gzip.compress(b"no kernel"), 39, 0), "not an ELF file"),
        (boot_image(lzma.compress(ELF)[:10] + b"broken" * 9, 39, 0), "could not unpack"),
    ],
)
def test_an_image_that_is_not_understood_is_an_error(image: bytes, cause: str) -> None:
    with pytest.raises(RigError, match=cause):
        vmlinux(image)
