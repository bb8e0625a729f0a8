"""The kernel proper out of a compressed x86 boot image.

QEMU starts an uncompressed kernel through its PVH entry. That spares the guest the decompression,
which is slow in software emulation. Offsets: Documentation/arch/x86/boot.rst of the Linux source.
"""

import lzma
import struct
import subprocess
import zlib

from tests.vm.rig.command import RigError

SECTOR = 512


def payload(image: bytes) -> bytes:
    """Return the compressed payload of a bzImage; raises RigError when it is not one."""
    if image[0x202:0x206] != b"HdrS":
        raise RigError("not an x86 boot image")
    # An old loader may leave the count of set-up sectors 0, which means 4.
    setup_sectors = image[0x1F1] or 4
    offset, length = struct.unpack_from("<II", image, 0x248)
    start = (setup_sectors + 1) * SECTOR + offset
    return image[start : start + length]


def vmlinux(image: bytes) -> bytes:
    """Return the uncompressed ELF kernel of a bzImage.

    Raises RigError when the compression is not one that Debian's kernels use (xz, zstd, gzip).
    """
    packed = payload(image)
    try:
        if packed.startswith(b"\xfd7zXZ\0"):
            elf = lzma.LZMADecompressor().decompress(packed)
        elif packed.startswith(b"\x1f\x8b"):
            elf = zlib.decompressobj(wbits=31).decompress(packed)
        elif packed.startswith(b"\x28\xb5\x2f\xfd"):
            # The kernel build appends the unpacked length, which zstd takes for a broken frame.
            elf = unzstd(packed[:-4])
        else:
            raise RigError(f"kernel compression not known, it starts with {packed[:6].hex()}")
    except (lzma.LZMAError, zlib.error) as error:
        raise RigError(f"could not unpack the kernel: {error}") from error
    if not elf.startswith(b"\x7fELF"):
        raise RigError("the unpacked kernel is not an ELF file")
    return elf


def unzstd(packed: bytes) -> bytes:
    """Return zstd data unpacked by the host's zstd; raises RigError when that refuses."""
    done = subprocess.run(
        ["zstd", "-dcq"], input=packed, capture_output=True, timeout=60, check=False
    )
    if done.returncode != 0:
        raise RigError(f"zstd failed: {done.stderr.decode(errors='replace').strip()}")
    return done.stdout
