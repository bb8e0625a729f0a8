"""bcc and a kernel's headers, which `--bcc` brings along for one of the machines."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

BCC: Final = Path("/payload/bcc")
HEADERS: Final = BCC / "headers"
LIBRARIES: Final = BCC / "usr/x86_64-linux-gnu"
PACKAGES: Final = BCC / "usr/python3/dist-packages"
SERIES: Final = "6.1."
MISSING: Final = f"the payload has no bcc with headers of this kernel (--bcc, kernel {SERIES}x)"

_MODULES: Final = Path("/lib/modules", os.uname().release)
_KEPT: Final = Path("/run/modules")
_PACKAGE: Final = Path("/usr/lib/python3/dist-packages/bcc")
_LINKER: Final = Path("/etc/ld.so.conf.d/bcc.conf")


def is_there() -> bool:
    """Whether there is bcc for the kernel that runs; fails where it is for another of its series.

    Else an image that is older than the headers would have the tests skipped for ever.
    """
    if not BCC.is_dir() or not os.uname().release.startswith(SERIES):
        return False
    told = (HEADERS / "include/generated/utsrelease.h").read_text()
    assert f'"{os.uname().release}"' in told, told
    return True


@contextmanager
def in_debians_places() -> Iterator[None]:
    """bcc, its libraries and the headers lie meanwhile where Debian's packages put them.

    Meanwhile no kernel module can be loaded.
    """
    _KEPT.mkdir()
    subprocess.run(["mount", "--bind", _MODULES, _KEPT], check=True)
    # the modules' own disk can't be written: their directory is made anew, with the headers in it
    subprocess.run(["mount", "-t", "tmpfs", "none", _MODULES], check=True)
    try:
        for each in _KEPT.iterdir():
            (_MODULES / each.name).symlink_to(each)
        (_MODULES / "build").symlink_to(HEADERS)
        _PACKAGE.parent.mkdir(parents=True, exist_ok=True)
        _PACKAGE.symlink_to(PACKAGES / "bcc")
        _LINKER.write_text(f"{LIBRARIES}\n")
        subprocess.run(["ldconfig"], check=True)
        yield
    finally:
        _LINKER.unlink(missing_ok=True)
        subprocess.run(["ldconfig"], check=True)
        _PACKAGE.unlink(missing_ok=True)
        # a service that runs meanwhile has a view of its own of them
        subprocess.run(["umount", "--lazy", _MODULES], check=True)
        subprocess.run(["umount", "--lazy", _KEPT], check=True)
        _KEPT.rmdir()
